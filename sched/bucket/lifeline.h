/* SPDX-License-Identifier: Apache-2.0 */
/* The start-up connections between rank 0 and the others, kept: a communication library that maps
 * its peers' memory neither notices that one has died nor knows who is late, and what one rank
 * fails with, the others would wait for. Rank 0 passes news on. Every rank looks often, by its
 * watchdog; calls of one lifeline come from one thread at a time.
 *
 * A process that a rank forks without exec holds the connection open after the rank's death.
 */
#ifndef BRIGADE_SCHED_BUCKET_LIFELINE_H
#define BRIGADE_SCHED_BUCKET_LIFELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "sched/status.h"

typedef struct brg_lifeline brg_lifeline;

/* What a rank failed with, or that it is gone. */
typedef struct brg_lifeline_news {
    brg_status status;
    int rank;
    char text[480]; /* names the rank */
} brg_lifeline_news;

/* `fds`, which are taken over also in case of failure: on rank 0 the connections by rank (fds[0] is
 * -1), elsewhere fds[0] to rank 0. */
brg_status brg_lifeline_create(int rank, int world, const int *fds, brg_lifeline **lifeline);

/* Says goodbye and frees; NULL allowed. A rank that has failed tells it before. */
void brg_lifeline_destroy(brg_lifeline *lifeline);

/* Whether there is news, waiting for it for at most `wait_ms`. Also says how many collectives this
 * rank has issued, once a second. */
bool brg_lifeline_look(brg_lifeline *lifeline, uint64_t num_ops, int wait_ms,
                       brg_lifeline_news *news);

/* Tells the others, once; `text` should name this rank. */
void brg_lifeline_tell(brg_lifeline *lifeline, brg_status status, const char *text);

/* Which ranks have issued fewer collectives than others, as far as is known: "rank 3 has issued 17
 * collectives, others 20". Empty when nobody answers within a second. */
void brg_lifeline_name_late(brg_lifeline *lifeline, uint64_t num_ops, char text[256]);

#endif
