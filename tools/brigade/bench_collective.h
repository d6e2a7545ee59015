/* SPDX-License-Identifier: Apache-2.0 */
/* brigade bench collective: what the ranks do, and what they share with the process that reports.
 */
#ifndef BRIGADE_TOOLS_BENCH_COLLECTIVE_H
#define BRIGADE_TOOLS_BENCH_COLLECTIVE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sched/device/device.h"

#define BENCH_MAX_RANKS 256
#define BENCH_MAX_ITERATIONS 10000

typedef enum bench_op {
    BENCH_ALL_REDUCE,
    BENCH_REDUCE_SCATTER,
    BENCH_ALL_GATHER,
    BENCH_BROADCAST,
    BENCH_REDUCE,
    BENCH_ALL_TO_ALL,
    BENCH_SENDRECV,
    BENCH_NUM_OPS,
} bench_op;

typedef struct bench_plan { /* the same in every rank */
    int num_ranks;
    bool ops[BENCH_NUM_OPS];
    size_t min_bytes, max_bytes;
    int factor, iterations, warmup;
    bool check, out_of_place;
    brg_dtype dtype;
    brg_op redop;
    brg_unique_id id;
} bench_plan;

typedef struct bench_shared {  /* in memory that all ranks and the reporter share */
    _Atomic uint32_t finished; /* ranks times measurements */
    _Atomic uint64_t wrong;    /* elements, of the current measurement */
    _Atomic uint32_t printed;  /* measurements that the reporter has taken */
    _Atomic uint32_t failed;
    char error[1024]; /* of the rank that made `failed` 1 */
    char algorithm[32];
    uint64_t times_ns[]; /* [rank][collective, memcpy][iteration] */
} bench_shared;

size_t bench_shared_bytes(const bench_plan *plan);
uint64_t *bench_times(bench_shared *shared, const bench_plan *plan, int rank, bool copies);

/* Elements as the call counts them, for nominally `bytes` bytes in nccl-tests' sense. */
size_t bench_count(const bench_plan *plan, bench_op op, size_t bytes);
/* The bytes that nccl-tests would print for so many elements. */
size_t bench_bytes(const bench_plan *plan, bench_op op, size_t count);
/* The smallest size at which every collective of the plan has an element. */
size_t bench_smallest_bytes(const bench_plan *plan);
/* The bytes that this rank must get from others. */
size_t bench_moved_bytes(const bench_plan *plan, bench_op op, size_t bytes, int rank);
/* The next size, 0 at the end. */
size_t bench_next_bytes(const bench_plan *plan, size_t bytes);
bool bench_op_reduces(bench_op op);

/* Runs all measurements as one rank. Returns false after an error, which is in shared->error. */
bool bench_rank_run(const bench_plan *plan, bench_shared *shared, int rank);

#endif
