/* SPDX-License-Identifier: Apache-2.0 */
/* What the host engine offers beside the two tables of device.h.
 *
 * Its environment:
 *   BRIGADE_HOST_DEVICES        number of devices, 1 to 1024 (16)
 *   BRIGADE_INIT_TIMEOUT        seconds for all ranks of a communicator to arrive (60)
 *   BRIGADE_COLLECTIVE_TIMEOUT  seconds for a collective, send or receive to finish (600)
 *   BRIGADE_HOST_TRANSPORT      how this rank may read its peers' memory: auto; mapped (their
 * device memory only), copy (process_vm_readv), staged (not at all) (auto)
 */
#ifndef BRIGADE_SCHED_DEVICE_HOST_H
#define BRIGADE_SCHED_DEVICE_HOST_H

#include "brigade/status.h"

/* Replaces BRIGADE_INIT_TIMEOUT and BRIGADE_COLLECTIVE_TIMEOUT for this process, for communicators
 * made from now on. 0 returns to the environment's value. Any thread. */
void brg_host_set_timeouts(double init_s, double collective_s);

/* How the last collective that finished on `comm` moved its data: "inline" (through the
 * descriptors), "direct" (ranks read each other's memory), "staged" (through shared slots), "none"
 * before the first. A static string. Any thread. */
const char *brg_host_algorithm(void *comm);

/* Why `comm` is broken, BRG_OK while it is not. Any thread. */
brg_status brg_host_comm_status(void *comm);

/* The cause of the calling thread's last failed call on the host table; BRG_OK before the first. */
brg_status brg_host_last_cause(void);

#endif
