/* SPDX-License-Identifier: Apache-2.0 */
/* An extension for the case of two NCCLs in a process; built twice. copy_pass(0 to 3): opens a
 * communicator and a group, adds an operation, ends the group, does one outside. */
#include <nccl.h>
#include <stdio.h>

int copy_pass(int number);

int copy_pass(int number)
{
    static ncclComm_t comm;
    static char memory[64];
    cudaStream_t stream = (cudaStream_t)0x3000;
    ncclUniqueId id;
    int version = 0;
    if (number == 0) {
        if (ncclGetVersion(&version) || version != COPY_VERSION)
            return 1;
        return ncclGetUniqueId(&id) || ncclCommInitRank(&comm, COPY_RANKS, id, 0) ||
               (COPY_GROUPS && ncclGroupStart());
    }
    if (number == 1 || number == 3)
        return ncclAllReduce(memory, memory, (size_t)number, ncclInt8, ncclSum, comm, stream);
    return COPY_GROUPS && ncclGroupEnd();
}
