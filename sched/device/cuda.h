/* SPDX-License-Identifier: Apache-2.0 */
/* The device `cuda`: the tables of device.h over libcudart and libnccl, which are opened when the
 * program runs.
 *
 * Its environment:
 *   BRIGADE_CUDART        file of the CUDA runtime library. Unset: a copy that the process has
 *                         loaded already, else by soname (libcudart.so.13, .12, .11.0)
 *   BRIGADE_NCCL          file of the NCCL library; the same (libnccl.so.2)
 *   BRIGADE_CUDA_KERNELS  file of libbrigade-cuda.so. Unset: beside libbrigade.so, else by name
 *   BRIGADE_BUFFERS       what mem_alloc uses: auto, cuda (cudaMalloc), nccl (ncclMemAlloc, for
 *                         window registration); auto is cuda. Read once
 *   BRIGADE_INIT_TIMEOUT  seconds for comm_init_rank, comm_init_all, comm_split, comm_destroy (60)
 *   BRIGADE_COLLECTIVE_TIMEOUT  seconds for comm_finalize, which waits for collectives (600)
 */
#ifndef BRIGADE_SCHED_DEVICE_CUDA_H
#define BRIGADE_SCHED_DEVICE_CUDA_H

#include <stdbool.h>

#include "sched/device/device.h"

/* Opens the libraries, once per process; every later call gives the same. On failure the message
 * says in one line what is missing, what was tried, and what to do. *gpu_answers says whether the
 * CUDA runtime sees a device, also on failure. Any thread. */
brg_status brg_cuda_open(brg_device *device, bool *gpu_answers);

/* Replaces the two time-outs of the environment for this process. 0 returns to the environment's
 * value. Any thread. */
void brg_cuda_set_timeouts(double init_s, double collective_s);

/* The tables, for brg_device_open(); they work after brg_cuda_open() has succeeded only. */
const brg_runtime *brg_cuda_runtime(void);
const brg_nccl *brg_cuda_nccl(void);

/* Why the calling thread's last failed call on the NCCL table failed, where NCCL's own code says
 * less; BRG_OK where it says enough. */
brg_status brg_cuda_last_cause(void);

#endif
