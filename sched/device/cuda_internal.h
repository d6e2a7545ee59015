/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the device `cuda`; not for others. No lock is held across a call of CUDA
 * or NCCL, so that comm_abort can come in while another thread is inside one. */
#ifndef BRIGADE_SCHED_DEVICE_CUDA_INTERNAL_H
#define BRIGADE_SCHED_DEVICE_CUDA_INTERNAL_H

#include "sched/device/cuda.h"
#include "sched/device/cuda_api.h"
#include "sched/device/thread_error.h"
#include "sched/status.h"

/* The libraries (cuda_load.c): filled before a table is handed out, constant from then on. */
extern brg_cudart cuda_rt;
extern brg_nccl_lib cuda_nccl;
extern int cuda_nccl_version;      /* 22809 is 2.28.9 */
extern bool cuda_buffers_are_nccl; /* BRIGADE_BUFFERS */

/* libbrigade-cuda.so (cuda_kernels.c). NULL: sets *status and the message. */
const brg_kernels *cuda_kernels_open(brg_status *status);

/* Libraries by name (cuda_search.c). */

typedef struct cuda_library {
    const char *what;         /* "CUDA runtime" */
    const char *variable;     /* "BRIGADE_CUDART" */
    const char *const *names; /* NULL-terminated, best first */
} cuda_library;

/* Opens the file that the variable names, else a loaded copy, else by name. NULL: sets *status and
 * the message. */
void *cuda_library_open(const cuda_library *library, brg_status *status);
/* The symbol or NULL; `library` NULL gives NULL. */
void *cuda_symbol(void *library, const char *name);

/* Errors of the calling thread (cuda_nccl.c). */

/* Keeps the cause and the text for last_error and returns `result`. */
int cuda_nccl_fail(int result, brg_status cause, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Passes on NCCL's own result; keeps NCCL's text for a failure. */
int cuda_nccl_done(int result);
const char *cuda_nccl_text(void);

/* Communicators (cuda_comm.c). */
int cuda_comm_init_rank(void **comm, int num_ranks, brg_unique_id id, int rank);
int cuda_comm_init_all(void **comms, int num_devices, const int *devices);
int cuda_comm_split(void *comm, int color, int key, void **child);
int cuda_comm_finalize(void *comm);
int cuda_comm_destroy(void *comm);
int cuda_comm_abort(void *comm);
int cuda_comm_get_async_error(void *comm, int *result);
int cuda_group_start(void);
int cuda_group_end(void);

#endif
