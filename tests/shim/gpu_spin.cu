/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel that lasts as long as it is told. */
#include "gpu_spin.h"

static __global__ void spin(unsigned long long duration_ns)
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - start < duration_ns);
}

extern "C" int gpu_spin(unsigned long long duration_ns, cudaStream_t stream)
{
    spin<<<1, 1, 0, stream>>>(duration_ns);
    return (int)cudaGetLastError();
}
