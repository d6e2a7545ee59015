/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BRIGADE_TESTS_GPU_COUNTING_CUDART_H
#define BRIGADE_TESTS_GPU_COUNTING_CUDART_H

typedef enum brg_count_kind {
    BRG_COUNT_MEMORY,    /* allocating and freeing, on the device or page-locked */
    BRG_COUNT_SYNC,      /* waiting for the device */
    BRG_COUNT_SYNC_COPY, /* copies and fills that may wait */
    BRG_COUNT_ASYNC,     /* copies, fills and events on streams */
    BRG_COUNT_KERNEL,
    BRG_COUNT_KINDS
} brg_count_kind;

/* Calls so far; looked up by dlsym(), since only preloaded it counts everything. */
typedef long (*brg_counted_calls_fn)(brg_count_kind kind);
long brg_counted_calls(brg_count_kind kind);

#endif
