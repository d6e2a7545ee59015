/* SPDX-License-Identifier: Apache-2.0 */
/* Hands rank 0's unique id to the other ranks over one TCP connection each, at start-up. */
#ifndef BRIGADE_SCHED_BUCKET_BOOTSTRAP_H
#define BRIGADE_SCHED_BUCKET_BOOTSTRAP_H

#include "brigade/context.h"

/* Collective over `world` ranks; blocks until all have arrived or `timeout_s` is over. On rank 0
 * *id is given, on the others it is filled in. BRG_ERR_TIMEOUT names the ranks that are missing
 * (rank 0) or the address that did not answer; BRG_ERR_MISMATCH when ranks disagree about the world
 * size or two claim the same rank. The message is the same on all ranks that could be told.
 * `kept`, if not NULL: receives the connections, for brg_lifeline_create(): the caller frees the
 * array and owns what is in it. Without it they are closed. */
brg_status brg_bootstrap_run(const char *address, int port, int rank, int world, double timeout_s,
                             brg_unique_id *id, int **kept);

#endif
