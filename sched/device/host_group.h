/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: what the functions of the NCCL-shaped table do between group_start and group_end. */
#ifndef BRIGADE_SCHED_DEVICE_HOST_GROUP_H
#define BRIGADE_SCHED_DEVICE_HOST_GROUP_H

#include "sched/device/host_comm.h"

typedef struct host_job { /* a communicator to be made or split, which blocks */
    void **out;
    host_comm *parent; /* NULL: make */
    int num_ranks, rank, device, color, key;
    char name[40];
    int result;
    brg_status cause;
    char text[THREAD_ERROR_BYTES];
    pthread_t thread;
    bool running;
} host_job;

int host_group_start(void);
int host_group_end(void);
/* Inside a group keeps the call for its end, outside runs it. */
int host_group_call(const host_call *call, host_comm *comm, void *stream);
int host_group_job(const host_job *job);
/* Runs jobs, each in a thread of its own if there are several. Returns the first error. */
int host_jobs_run(host_job *jobs, int count);
/* Keeps an error for the end of the group, if there is one. Returns it. */
int host_group_error(int result);

int host_split_now(host_comm *parent, int color, int key, void **child); /* host_comm_api.c */

#endif
