/* SPDX-License-Identifier: Apache-2.0 */
/* A bounded queue of numbers for any number of threads, without locks: each cell carries the turn
 * at which it may be written or read (D. Vyukov's,
 * https://www.1024cores.net/home/lock-free-algorithms/queues/bounded-mpmc-queue). Turns are stored
 * less the cell's number, so that memory of zeros is an empty queue and takes no pages before it is
 * used. */
#ifndef BRIGADE_SHIM_INTERPOSE_QUEUE_H
#define BRIGADE_SHIM_INTERPOSE_QUEUE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct shim_queue {
    struct {
        _Atomic uint64_t turn;
        int32_t value;
    } * cells;
    uint64_t mask;
    char pad0[48];
    _Atomic uint64_t put_at;
    char pad1[56];
    _Atomic uint64_t take_at;
} shim_queue;

static inline uint64_t shim_queue_turn(shim_queue *queue, uint64_t at)
{
    uint64_t cell = at & queue->mask;
    return atomic_load_explicit(&queue->cells[cell].turn, memory_order_acquire) + cell;
}

static inline void shim_queue_pass(shim_queue *queue, uint64_t at, uint64_t turn)
{
    uint64_t cell = at & queue->mask;
    atomic_store_explicit(&queue->cells[cell].turn, turn - cell, memory_order_release);
}

static inline bool shim_queue_put(shim_queue *queue, int32_t value)
{
    uint64_t at = atomic_load_explicit(&queue->put_at, memory_order_relaxed);
    for (;;) {
        uint64_t turn = shim_queue_turn(queue, at);
        if (turn < at)
            return false;
        if (turn == at &&
            atomic_compare_exchange_weak_explicit(&queue->put_at, &at, at + 1, memory_order_relaxed,
                                                  memory_order_relaxed))
            break;
        if (turn != at)
            at = atomic_load_explicit(&queue->put_at, memory_order_relaxed);
    }
    queue->cells[at & queue->mask].value = value;
    shim_queue_pass(queue, at, at + 1);
    return true;
}

/* -1: empty. */
static inline int32_t shim_queue_take(shim_queue *queue)
{
    uint64_t at = atomic_load_explicit(&queue->take_at, memory_order_relaxed);
    for (;;) {
        uint64_t turn = shim_queue_turn(queue, at);
        if (turn < at + 1)
            return -1;
        if (turn == at + 1 &&
            atomic_compare_exchange_weak_explicit(&queue->take_at, &at, at + 1,
                                                  memory_order_relaxed, memory_order_relaxed))
            break;
        if (turn != at + 1)
            at = atomic_load_explicit(&queue->take_at, memory_order_relaxed);
    }
    int32_t value = queue->cells[at & queue->mask].value;
    shim_queue_pass(queue, at, at + queue->mask + 1);
    return value;
}

#endif
