/* SPDX-License-Identifier: Apache-2.0 */
/* Helper threads near their GPU. */
#ifndef BRIGADE_SCHED_DEVICE_AFFINITY_H
#define BRIGADE_SCHED_DEVICE_AFFINITY_H

#include <pthread.h>

#include "sched/device/device.h"

/* Binds `thread`, of this process, to those of the CPUs it may use that are nearest to the device,
 * and writes them as a list, "0-15,32-47". Where the machine does not tell, or none of them may be
 * used, the thread stays where it is and `where` is "". So it is on the device `host`. Reads the
 * machine's topology on the first call (tens of milliseconds), once per process. Any thread.
 * @return BRG_OK, or BRG_ERR_DEVICE when the system refuses. */
brg_status brg_bind_near_device(const brg_device *device, int index, pthread_t thread, char *where,
                                size_t bytes);

#endif
