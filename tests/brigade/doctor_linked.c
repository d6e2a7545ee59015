/* SPDX-License-Identifier: Apache-2.0 */
/* Needs functions that only the shim has and such as only the host engine has, so that the linker
 * names both, in the order of the command line. */
int ncclGetVersion(int *version);
int cudaGetDeviceCount(int *count);
void ncclResetDebugInit(void);

int main(int argc, char **argv)
{
    int version = 0, count = 0;
    if (argc > 1)
        ncclResetDebugInit();
    return ncclGetVersion(&version) || cudaGetDeviceCount(&count);
}
