/* SPDX-License-Identifier: Apache-2.0 */
/* brigade bench collective: one rank. */
#include "tools/brigade/bench_collective.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "sched/device/host.h"

typedef struct rank_state {
    const bench_plan *plan;
    bench_shared *shared;
    brg_device device;
    int rank;
    void *comm, *stream;
    void *send, *recv, *word;
} rank_state;

size_t bench_shared_bytes(const bench_plan *plan)
{
    return sizeof(bench_shared) +
           (size_t)plan->num_ranks * 2 * (size_t)plan->iterations * sizeof(uint64_t);
}

uint64_t *bench_times(bench_shared *shared, const bench_plan *plan, int rank, bool copies)
{
    return shared->times_ns + ((size_t)rank * 2 + copies) * (size_t)plan->iterations;
}

bool bench_op_reduces(bench_op op)
{
    return op == BENCH_ALL_REDUCE || op == BENCH_REDUCE_SCATTER || op == BENCH_REDUCE;
}

static bool counts_per_rank(bench_op op)
{
    return op == BENCH_REDUCE_SCATTER || op == BENCH_ALL_GATHER || op == BENCH_ALL_TO_ALL;
}

size_t bench_count(const bench_plan *plan, bench_op op, size_t bytes)
{
    size_t count = bytes / brg_dtype_bytes(plan->dtype);
    return counts_per_rank(op) ? count / (size_t)plan->num_ranks : count;
}

size_t bench_bytes(const bench_plan *plan, bench_op op, size_t count)
{
    size_t bytes = count * brg_dtype_bytes(plan->dtype);
    return counts_per_rank(op) ? bytes * (size_t)plan->num_ranks : bytes;
}

size_t bench_smallest_bytes(const bench_plan *plan)
{
    size_t smallest = 0;
    for (int op = 0; op < BENCH_NUM_OPS; op++) {
        size_t bytes = plan->ops[op] ? bench_bytes(plan, (bench_op)op, 1) : 0;
        smallest = bytes > smallest ? bytes : smallest;
    }
    return smallest;
}

size_t bench_moved_bytes(const bench_plan *plan, bench_op op, size_t bytes, int rank)
{
    size_t n = (size_t)plan->num_ranks;
    switch (op) {
    case BENCH_ALL_REDUCE:
        return 2 * (bytes / n) * (n - 1);
    case BENCH_BROADCAST:
        return rank == 0 ? 0 : bytes;
    case BENCH_REDUCE:
        return rank == 0 ? bytes * (n - 1) : 0;
    case BENCH_SENDRECV:
        return bytes;
    default:
        return bytes / n * (n - 1);
    }
}

size_t bench_next_bytes(const bench_plan *plan, size_t bytes)
{
    return bytes > plan->max_bytes / (size_t)plan->factor ? 0 : bytes * (size_t)plan->factor;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool fail(rank_state *s, const char *what, const char *why)
{
    uint32_t none = 0;
    if (atomic_compare_exchange_strong(&s->shared->failed, &none, 2)) {
        snprintf(s->shared->error, sizeof s->shared->error, "rank %d: %s: %s", s->rank, what, why);
        atomic_store(&s->shared->failed, 1);
    }
    return false;
}

static bool nccl_ok(rank_state *s, int result, const char *what)
{
    return !result || fail(s, what, s->device.nccl->last_error(s->comm));
}

static bool finish(rank_state *s, const char *what)
{
    int result = 0;
    s->device.rt->stream_synchronize(s->stream);
    if (!nccl_ok(s, s->device.nccl->comm_get_async_error(s->comm, &result), what))
        return false;
    return nccl_ok(s, result, what);
}

/* In place where NCCL allows it, as trainers do it: nothing but what must move is moved. */
static void place(const rank_state *s, bench_op op, size_t count, char **send, char **recv)
{
    size_t own = (size_t)s->rank * count * brg_dtype_bytes(s->plan->dtype);
    *send = s->send;
    *recv = s->recv;
    if (s->plan->out_of_place || op == BENCH_ALL_TO_ALL || op == BENCH_SENDRECV)
        return;
    if (op == BENCH_REDUCE_SCATTER)
        *recv = *send + own;
    else if (op == BENCH_ALL_GATHER)
        *send = *recv + own;
    else
        *recv = *send;
}

static int issue(rank_state *s, bench_op op, size_t count)
{
    const brg_nccl *t = s->device.nccl;
    char *send, *recv;
    place(s, op, count, &send, &recv);
    int type = brg_nccl_dtype(s->plan->dtype), redop = brg_nccl_op(s->plan->redop);
    int n = s->plan->num_ranks, result;
    switch (op) {
    case BENCH_ALL_REDUCE:
        return t->all_reduce(send, recv, count, type, redop, s->comm, s->stream);
    case BENCH_REDUCE_SCATTER:
        return t->reduce_scatter(send, recv, count, type, redop, s->comm, s->stream);
    case BENCH_ALL_GATHER:
        return t->all_gather(send, recv, count, type, s->comm, s->stream);
    case BENCH_BROADCAST:
        return t->broadcast(send, recv, count, type, 0, s->comm, s->stream);
    case BENCH_REDUCE:
        return t->reduce(send, recv, count, type, redop, 0, s->comm, s->stream);
    case BENCH_ALL_TO_ALL:
        return t->all_to_all(send, recv, count, type, s->comm, s->stream);
    default:
        result = t->group_start();
        if (!result)
            result = t->send(send, count, type, (s->rank + 1) % n, s->comm, s->stream);
        if (!result)
            result = t->recv(recv, count, type, (s->rank + n - 1) % n, s->comm, s->stream);
        int end = t->group_end();
        return result ? result : end;
    }
}

static bool barrier(rank_state *s)
{
    int result = s->device.nccl->all_reduce(s->word, s->word, 1, BRG_NCCL_INT32, BRG_NCCL_MAX,
                                            s->comm, s->stream);
    return nccl_ok(s, result, "barrier") && finish(s, "barrier");
}

/* Copies as many bytes as the collective must bring this rank. */
static void copy_bytes(rank_state *s, size_t moved)
{
    for (size_t left = moved; left;) {
        size_t n = left < s->plan->max_bytes ? left : s->plan->max_bytes;
        memcpy(s->recv, s->send, n);
        left -= n;
    }
}

/* Collective and copies take turns, so that whatever else the machine does hits both alike. */
static bool time_both(rank_state *s, bench_op op, size_t count)
{
    uint64_t *times = bench_times(s->shared, s->plan, s->rank, false);
    uint64_t *copy_times = bench_times(s->shared, s->plan, s->rank, true);
    size_t bytes = bench_bytes(s->plan, op, count);
    size_t moved = bench_moved_bytes(s->plan, op, bytes, s->rank);
    for (int i = -s->plan->warmup; i < s->plan->iterations; i++) {
        if (!barrier(s))
            return false;
        uint64_t start = now_ns();
        if (!nccl_ok(s, issue(s, op, count), "collective") || !finish(s, "collective"))
            return false;
        uint64_t end = now_ns();
        if (s->rank == 0 && i == 0)
            snprintf(s->shared->algorithm, sizeof s->shared->algorithm, "%s",
                     brg_host_algorithm(s->comm));
        if (!barrier(s))
            return false;
        uint64_t copy_start = now_ns();
        copy_bytes(s, moved);
        if (!barrier(s))
            return false;
        if (i >= 0) {
            times[i] = end - start;
            copy_times[i] = now_ns() - copy_start;
        }
    }
    return true;
}

/* The data of the check repeat every 4 (reductions) or 101 elements. */
static double input_value(bench_op op, int rank, size_t i)
{
    if (bench_op_reduces(op))
        return (i * 5 + (size_t)rank * 3) % 4 == 0 ? 2 : 1;
    return (double)((i * 7 + (size_t)rank * 13) % 101);
}

static double expected_value(const bench_plan *plan, bench_op op, int rank, size_t i, size_t count)
{
    int n = plan->num_ranks;
    if (op == BENCH_ALL_GATHER)
        return input_value(op, (int)(i / count), i % count);
    if (op == BENCH_ALL_TO_ALL)
        return input_value(op, (int)(i / count), (size_t)rank * count + i % count);
    if (op == BENCH_BROADCAST)
        return input_value(op, 0, i);
    if (op == BENCH_SENDRECV)
        return input_value(op, (rank + n - 1) % n, i);
    size_t at = op == BENCH_REDUCE_SCATTER ? (size_t)rank * count + i : i;
    double value = input_value(op, 0, at);
    for (int r = 1; r < n; r++) {
        double x = input_value(op, r, at);
        value = plan->redop == BRG_PROD  ? value * x
                : plan->redop == BRG_MAX ? fmax(value, x)
                : plan->redop == BRG_MIN ? fmin(value, x)
                                         : value + x;
    }
    return plan->redop == BRG_AVG ? value / n : value;
}

static double half_to_double(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 31 ? (fraction ? (double)NAN : (double)INFINITY)
                   : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                  : ldexp(fraction, -24);
    return bits & 0x8000 ? -value : value;
}

static uint16_t small_to_half(double value) /* whole numbers below 2048 */
{
    if (value == 0)
        return 0;
    int exponent = ilogb(value);
    return (uint16_t)(((exponent + 15) << 10) + (int)ldexp(value, 10 - exponent) - 1024);
}

static void put(brg_dtype dtype, void *base, size_t i, double value)
{
    float narrow = (float)value;
    uint32_t bits;
    switch (dtype) {
    case BRG_FLOAT32:
        ((float *)base)[i] = narrow;
        break;
    case BRG_FLOAT64:
        ((double *)base)[i] = value;
        break;
    case BRG_FLOAT16:
        ((uint16_t *)base)[i] = small_to_half(value);
        break;
    case BRG_BFLOAT16:
        memcpy(&bits, &narrow, sizeof bits);
        ((uint16_t *)base)[i] = (uint16_t)(bits >> 16);
        break;
    default: { /* non-negative, little endian */
        uint64_t whole = (uint64_t)value;
        memcpy((char *)base + i * brg_dtype_bytes(dtype), &whole, brg_dtype_bytes(dtype));
    }
    }
}

static bool is_right(brg_dtype dtype, const void *base, size_t i, double want)
{
    size_t bytes = brg_dtype_bytes(dtype);
    uint64_t whole = (uint64_t)fmod(want, 18446744073709551616.0);
    uint32_t bits;
    float narrow;
    double tolerance, got;
    switch (dtype) {
    case BRG_FLOAT32:
        got = ((const float *)base)[i];
        tolerance = 1e-6;
        break;
    case BRG_FLOAT64:
        got = ((const double *)base)[i];
        tolerance = 1e-14;
        break;
    case BRG_FLOAT16:
        got = half_to_double(((const uint16_t *)base)[i]);
        tolerance = 1e-3;
        if (want >= 65520)
            return isinf(got);
        break;
    case BRG_BFLOAT16:
        bits = (uint32_t)((const uint16_t *)base)[i] << 16;
        memcpy(&narrow, &bits, sizeof narrow);
        got = narrow;
        tolerance = 8e-3;
        break;
    default:
        return !memcmp((const char *)base + i * bytes, &whole, bytes);
    }
    return fabs(got - want) <= tolerance * fabs(want);
}

static bool check(rank_state *s, bench_op op, size_t count)
{
    const bench_plan *plan = s->plan;
    size_t n = (size_t)plan->num_ranks;
    size_t inputs = op == BENCH_REDUCE_SCATTER || op == BENCH_ALL_TO_ALL ? count * n : count;
    size_t outputs = op == BENCH_ALL_GATHER || op == BENCH_ALL_TO_ALL ? count * n : count;
    char *send, *recv;
    place(s, op, count, &send, &recv);
    memset(recv, 0x55, outputs * brg_dtype_bytes(plan->dtype));
    for (size_t i = 0; i < inputs; i++)
        put(plan->dtype, send, i, input_value(op, s->rank, i));
    if (!nccl_ok(s, issue(s, op, count), "collective") || !finish(s, "collective"))
        return false;
    if (op == BENCH_REDUCE && s->rank != 0)
        return true;
    double period[4]; /* reductions would otherwise cost ranks times elements */
    for (size_t i = 0; i < 4 && bench_op_reduces(op); i++)
        period[i] = expected_value(plan, op, s->rank, i, count);
    uint64_t wrong = 0;
    for (size_t i = 0; i < outputs; i++)
        wrong += !is_right(plan->dtype, recv, i,
                           bench_op_reduces(op) ? period[i % 4]
                                                : expected_value(plan, op, s->rank, i, count));
    atomic_fetch_add(&s->shared->wrong, wrong);
    return true;
}

static bool measure(rank_state *s, bench_op op, size_t bytes, uint32_t index)
{
    size_t count = bench_count(s->plan, op, bytes);
    if (!time_both(s, op, count))
        return false;
    if (s->plan->check && !check(s, op, count))
        return false;
    atomic_fetch_add(&s->shared->finished, 1);
    /* The reporter reads the times before they are overwritten. */
    while (atomic_load(&s->shared->printed) <= index && !atomic_load(&s->shared->failed))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return !atomic_load(&s->shared->failed);
}

static bool set_up(rank_state *s)
{
    const bench_plan *plan = s->plan;
    const brg_runtime *rt = s->device.rt;
    int result = s->device.nccl->comm_init_rank(&s->comm, plan->num_ranks, plan->id, s->rank);
    if (!nccl_ok(s, result, "communicator"))
        return false;
    if (rt->stream_create(&s->stream, BRG_STREAM_NON_BLOCKING, 0))
        return fail(s, "stream", "cannot be made");
    if (rt->malloc_device(&s->send, plan->max_bytes) ||
        rt->malloc_device(&s->recv, plan->max_bytes) ||
        rt->malloc_device(&s->word, sizeof(int32_t)))
        return fail(s, "buffers", "out of memory");
    memset(s->send, 0, plan->max_bytes);
    memset(s->recv, 0, plan->max_bytes);
    memset(s->word, 0, sizeof(int32_t));
    return true;
}

bool bench_rank_run(const bench_plan *plan, bench_shared *shared, int rank)
{
    rank_state s = {.plan = plan, .shared = shared, .rank = rank};
    uint32_t index = 0;
    bool ok = brg_device_open(BRG_DEVICE_HOST, &s.device) == BRG_OK && set_up(&s);
    for (int op = 0; op < BENCH_NUM_OPS; op++)
        for (size_t bytes = plan->min_bytes; bytes && ok && plan->ops[op];
             bytes = bench_next_bytes(plan, bytes))
            ok = measure(&s, (bench_op)op, bytes, index++);
    if (s.stream)
        s.device.rt->stream_destroy(s.stream);
    if (s.comm)
        ok ? s.device.nccl->comm_destroy(s.comm) : s.device.nccl->comm_abort(s.comm);
    if (s.device.rt) {
        s.device.rt->free_device(s.send);
        s.device.rt->free_device(s.recv);
        s.device.rt->free_device(s.word);
    }
    return ok;
}
