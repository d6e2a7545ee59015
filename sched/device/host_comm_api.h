/* SPDX-License-Identifier: Apache-2.0 */
/* The functions behind brg_nccl; device.h says what each does. */
#ifndef BRIGADE_SCHED_DEVICE_HOST_COMM_API_H
#define BRIGADE_SCHED_DEVICE_HOST_COMM_API_H

#include "sched/device/host_comm.h"

int host_get_version(int *version);
int host_get_unique_id(brg_unique_id *id);
int host_comm_init_rank(void **comm, int num_ranks, brg_unique_id id, int rank);
int host_comm_init_all(void **comms, int num_devices, const int *devices);
int host_comm_split(void *comm, int color, int key, void **child);
int host_comm_finalize(void *comm);
int host_comm_destroy(void *comm);
int host_comm_abort(void *comm);
int host_comm_get_async_error(void *comm, int *result);
int host_comm_num_done(void *comm, uint64_t *count);
int host_comm_count(void *comm, int *count);
int host_comm_user_rank(void *comm, int *rank);
int host_comm_device(void *comm, int *device);
const char *host_nccl_error_string(int result);
const char *host_last_error(void *comm);

#endif
