/* SPDX-License-Identifier: Apache-2.0 */
/* Linked with the shim alone: a linker that leaves out what seems not needed (--as-needed) makes
 * this of -lbrigade-shim -lnccl. */
#include <nccl.h>
#include <stdio.h>

int main(void)
{
    int version = 0;
    ncclResult_t result = ncclGetVersion(&version);
    printf("result %d version %d\n", result, version);
    return 0;
}
