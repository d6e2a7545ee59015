/* SPDX-License-Identifier: Apache-2.0 */
/* brigade bench collective: collectives of the host engine, reported as nccl-tests does, beside
 * what memcpy does for the same bytes at the same time on the same ranks. */
#include "tools/brigade/bench_collective.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sched/status.h"
#include "tools/brigade/bench.h"
#include "tools/brigade/cli.h"

static const char *const op_names[] = {"all-reduce", "reduce-scatter", "all-gather", "broadcast",
                                       "reduce",     "all-to-all",     "sendrecv",   "all",
                                       NULL};
static const char *const type_names[] = {"fp32", "fp64", "fp16", "bf16", "i8", "u8",
                                         "i32",  "u32",  "i64",  "u64",  NULL};      /* brg_dtype */
static const char *const redop_names[] = {"sum", "prod", "max", "min", "avg", NULL}; /* brg_op */

static struct {
    int64_t min_bytes, max_bytes, factor, iterations, warmup, check, ranks;
    int op, type, redop;
    bool processes, threads, json, out_of_place, min_given, max_given;
} args = {.min_bytes = 1 << 10,
          .max_bytes = 64 << 20,
          .factor = 4,
          .iterations = 20,
          .warmup = 5,
          .check = 1,
          .ranks = 2,
          .op = BENCH_NUM_OPS};

static const cli_option options[] = {
    {"minbytes", 'b', CLI_SIZE, &args.min_bytes, "BYTES",
     "Smallest size (default 1K, or what gives every rank an element, or the largest size).", NULL,
     1, 1e12, &args.min_given},
    {"maxbytes", 'e', CLI_SIZE, &args.max_bytes, "BYTES",
     "Largest size (default 64M, or the smallest size if that is larger).", NULL, 1, 1e12,
     &args.max_given},
    {"stepfactor", 'f', CLI_INT, &args.factor, "N",
     "Each size is N times the one before (default 4).", NULL, 2, 1 << 20, NULL},
    {"iters", 'n', CLI_INT, &args.iterations, "N", "Timed iterations per size (default 20).", NULL,
     1, BENCH_MAX_ITERATIONS, NULL},
    {"warmup-iters", 'w', CLI_INT, &args.warmup, "N", "Iterations before those (default 5).", NULL,
     0, BENCH_MAX_ITERATIONS, NULL},
    {"check", 'c', CLI_INT, &args.check, "0|1", "Check the results of every size (default 1).",
     NULL, 0, 1, NULL},
    {"ranks", 'r', CLI_INT, &args.ranks, "N", "Number of ranks (default 2).", NULL, 1,
     BENCH_MAX_RANKS, NULL},
    {"op", 0, CLI_CHOICE, &args.op, "OP", "Collective to measure (default all).", op_names, 0, 0,
     NULL},
    {"datatype", 'd', CLI_CHOICE, &args.type, "TYPE", "Element type (default fp32).", type_names, 0,
     0, NULL},
    {"redop", 'o', CLI_CHOICE, &args.redop, "REDOP", "Operator of reductions (default sum).",
     redop_names, 0, 0, NULL},
    {"out-of-place", 0, CLI_FLAG, &args.out_of_place, NULL,
     "Use separate send and receive buffers (default: in place where NCCL allows it).", NULL, 0, 0,
     NULL},
    {"processes", 0, CLI_FLAG, &args.processes, NULL, "Ranks are processes (the default).", NULL, 0,
     0, NULL},
    {"threads", 0, CLI_FLAG, &args.threads, NULL, "Ranks are threads of one process.", NULL, 0, 0,
     NULL},
    {"json", 0, CLI_FLAG, &args.json, NULL, "One JSON document on standard output.", NULL, 0, 0,
     NULL},
    {.name = NULL}};

static const cli_command command = {
    .name = "bench collective",
    .summary = "Time collectives of the host engine, beside memcpy.",
    .usage = "[-b BYTES] [-e BYTES] [-r N] [--op OP] [options]",
    .details =
        "Sizes, algorithm bandwidth and bus bandwidth are those of nccl-tests: bus bandwidth is "
        "size "
        "/ time, times 2(n-1)/n for all-reduce, (n-1)/n for reduce-scatter, all-gather and "
        "all-to-all, 1 for the others. Times are medians over the iterations of the slowest rank's "
        "time.\n\n"
        "memcpy is the time that all ranks need, at once, to copy the bytes that the collective "
        "must "
        "bring them, and its bandwidth per rank; the last column is that time divided by the "
        "collective's. Exit code 1: wrong results.\n\n"
        " brigade bench collective -b 64K -e 64M -r 4 --op all-gather",
    .options = options,
};

typedef struct row {
    bench_op op;
    size_t bytes, count;
    double time_us, alg_gbs, bus_gbs, copy_us, copy_gbs, ratio;
    uint64_t wrong;
    char algorithm[32];
} row;

/* Median over the iterations of the slowest rank's time. */
static double median_us(bench_shared *shared, const bench_plan *plan, bool copies)
{
    double slowest[BENCH_MAX_ITERATIONS];
    for (int i = 0; i < plan->iterations; i++) {
        slowest[i] = 0;
        for (int r = 0; r < plan->num_ranks; r++) {
            double time = (double)bench_times(shared, plan, r, copies)[i];
            if (time > slowest[i])
                slowest[i] = time;
        }
    }
    return bench_median(slowest, plan->iterations) * 1e-3;
}

static double bus_factor(bench_op op, int num_ranks)
{
    double n = num_ranks;
    switch (op) {
    case BENCH_ALL_REDUCE:
        return 2 * (n - 1) / n;
    case BENCH_REDUCE_SCATTER:
    case BENCH_ALL_GATHER:
    case BENCH_ALL_TO_ALL:
        return (n - 1) / n;
    default:
        return 1;
    }
}

static row take_row(bench_shared *shared, const bench_plan *plan, bench_op op, size_t nominal)
{
    row r = {.op = op, .count = bench_count(plan, op, nominal)};
    size_t moved = 0;
    r.bytes = bench_bytes(plan, op, r.count);
    for (int rank = 0; rank < plan->num_ranks; rank++) {
        size_t bytes = bench_moved_bytes(plan, op, r.bytes, rank);
        moved = bytes > moved ? bytes : moved;
    }
    r.time_us = median_us(shared, plan, false);
    r.alg_gbs = (double)r.bytes / r.time_us * 1e-3;
    r.bus_gbs = r.alg_gbs * bus_factor(op, plan->num_ranks);
    r.copy_us = median_us(shared, plan, true);
    r.copy_gbs = (double)moved / r.copy_us * 1e-3;
    r.ratio = moved ? r.copy_us / r.time_us : 0;
    r.wrong = atomic_exchange(&shared->wrong, 0);
    memcpy(r.algorithm, shared->algorithm, sizeof r.algorithm);
    return r;
}

static void print_head(const bench_plan *plan)
{
    if (args.json) {
        printf(
            "{\"schema\":1,\"device\":\"host\",\"ranks\":%d,\"ranks_are\":\"%s\",\"iterations\":%d,"
            "\"warmup\":%d,\"check\":%s,\"in_place\":%s,\"results\":[",
            plan->num_ranks, args.threads ? "threads" : "processes", plan->iterations, plan->warmup,
            plan->check ? "true" : "false", plan->out_of_place ? "false" : "true");
        return;
    }
    printf("# %d ranks (%s) on the host device, %s, %d iterations after %d\n", plan->num_ranks,
           args.threads ? "threads" : "processes", plan->out_of_place ? "out of place" : "in place",
           plan->iterations, plan->warmup);
    printf("%-14s %12s %12s %5s %5s %11s %8s %8s %9s %7s %11s %8s %6s\n", "# collective", "bytes",
           "count", "type", "redop", "time(us)", "algbw", "busbw", "algorithm", "wrong",
           "memcpy(us)", "GB/s", "ratio");
}

static void print_row(const row *r, bool first)
{
    const char *redop = bench_op_reduces(r->op) ? redop_names[args.redop] : "none";
    const char *type = type_names[args.type];
    if (args.json) {
        printf("%s\n{\"op\":\"%s\",\"bytes\":%zu,\"count\":%zu,\"type\":\"%s\",\"redop\":\"%s\","
               "\"time_us\":%.3f,\"algbw_gbs\":%.4f,\"busbw_gbs\":%.4f,\"algorithm\":\"%s\",",
               first ? "" : ",", op_names[r->op], r->bytes, r->count, type, redop, r->time_us,
               r->alg_gbs, r->bus_gbs, r->algorithm);
        if (args.check)
            printf("\"wrong\":%llu,", (unsigned long long)r->wrong);
        printf("\"memcpy_us\":%.3f,\"memcpy_gbs\":%.4f,\"ratio_to_memcpy\":%.4f}", r->copy_us,
               r->copy_gbs, r->ratio);
        return;
    }
    char wrong[24] = "n/a";
    if (args.check)
        snprintf(wrong, sizeof wrong, "%llu", (unsigned long long)r->wrong);
    printf("%-14s %12zu %12zu %5s %5s %11.2f %8.2f %8.2f %9s %7s %11.2f %8.2f %6.2f\n",
           op_names[r->op], r->bytes, r->count, type, redop, r->time_us, r->alg_gbs, r->bus_gbs,
           r->algorithm, wrong, r->copy_us, r->copy_gbs, r->ratio);
    fflush(stdout);
}

typedef struct job {
    const bench_plan *plan;
    bench_shared *shared;
    pid_t pids[BENCH_MAX_RANKS];
    pthread_t threads[BENCH_MAX_RANKS];
    int started;
    _Atomic int next_rank;
} job;

static void *thread_main(void *argument)
{
    job *j = argument;
    bench_rank_run(j->plan, j->shared, atomic_fetch_add(&j->next_rank, 1));
    return NULL;
}

static int start(job *j)
{
    pid_t parent = getpid();
    for (; j->started < j->plan->num_ranks; j->started++) {
        if (args.threads) {
            int error = pthread_create(&j->threads[j->started], NULL, thread_main, j);
            if (error)
                return error;
            continue;
        }
        fflush(stdout);
        pid_t pid = fork();
        if (pid < 0)
            return errno;
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent)
                _exit(1);
            _exit(bench_rank_run(j->plan, j->shared, j->started) ? 0 : 1);
        }
        j->pids[j->started] = pid;
    }
    return 0;
}

/* A rank process that ended before its work was done, -1 if there is none. */
static int lost_rank(job *j)
{
    for (int r = 0; r < j->started && !args.threads; r++) {
        int status;
        if (j->pids[r] > 0 && waitpid(j->pids[r], &status, WNOHANG) == j->pids[r]) {
            j->pids[r] = 0;
            if (status)
                return r;
        }
    }
    return -1;
}

static bool wait_for_row(job *j, uint32_t index)
{
    uint32_t target = (index + 1) * (uint32_t)j->plan->num_ranks, none = 0;
    while (atomic_load(&j->shared->finished) < target && atomic_load(&j->shared->failed) != 1) {
        int lost = lost_rank(j);
        if (lost >= 0 && atomic_compare_exchange_strong(&j->shared->failed, &none, 2)) {
            snprintf(j->shared->error, sizeof j->shared->error, "rank %d has died", lost);
            atomic_store(&j->shared->failed, 1);
        }
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    return !atomic_load(&j->shared->failed);
}

static void stop(job *j, bool failed)
{
    for (int r = 0; r < j->started; r++) {
        if (args.threads) {
            pthread_join(j->threads[r], NULL);
        } else if (j->pids[r] > 0) {
            if (failed)
                kill(j->pids[r], SIGKILL);
            while (waitpid(j->pids[r], NULL, 0) < 0 && errno == EINTR)
                ;
        }
    }
}

static int run_job(job *j)
{
    uint32_t index = 0;
    uint64_t wrong = 0;
    print_head(j->plan);
    int error = start(j);
    if (error) {
        snprintf(j->shared->error, sizeof j->shared->error, "cannot start rank %d: %s", j->started,
                 strerror(error));
        atomic_store(&j->shared->failed, 1);
    }
    bool ok = !error;
    for (int op = 0; op < BENCH_NUM_OPS && ok; op++) {
        size_t bytes = j->plan->ops[op] ? j->plan->min_bytes : 0;
        for (; bytes && ok; bytes = bench_next_bytes(j->plan, bytes)) {
            ok = wait_for_row(j, index);
            if (!ok)
                break;
            row r = take_row(j->shared, j->plan, (bench_op)op, bytes);
            print_row(&r, index == 0);
            wrong += r.wrong;
            atomic_store(&j->shared->printed, ++index);
        }
    }
    stop(j, !ok);
    if (args.json)
        printf("]}\n");
    if (!ok)
        return cli_fail(&command, CLI_FINDING, "%s", j->shared->error);
    if (wrong)
        return cli_fail(&command, CLI_FINDING, "%llu elements are wrong",
                        (unsigned long long)wrong);
    return CLI_OK;
}

/* A size without elements would be timed as nothing. */
static int sizes_check(bench_plan *plan)
{
    size_t smallest = bench_smallest_bytes(plan);
    if (!args.min_given && (size_t)args.min_bytes < smallest)
        args.min_bytes = (int64_t)smallest;
    if (!args.min_given && args.max_given && args.max_bytes < args.min_bytes)
        args.min_bytes = args.max_bytes;
    if ((size_t)args.min_bytes < smallest)
        return cli_fail(&command, CLI_USAGE,
                        "%s %lld rounds to 0 elements of %s for %d ranks; the smallest size is %zu "
                        "bytes",
                        args.min_given ? "-b" : "-e", (long long)args.min_bytes,
                        type_names[args.type], plan->num_ranks, smallest);
    if (!args.max_given && args.max_bytes < args.min_bytes)
        args.max_bytes = args.min_bytes;
    if (args.max_bytes < args.min_bytes)
        return cli_fail(&command, CLI_USAGE, "-e %lld is less than -b %lld",
                        (long long)args.max_bytes, (long long)args.min_bytes);
    plan->min_bytes = (size_t)args.min_bytes;
    plan->max_bytes = (size_t)args.max_bytes;
    return -1;
}

static int make_plan(bench_plan *plan)
{
    if (args.processes && args.threads)
        return cli_fail(&command, CLI_USAGE, "--processes and --threads exclude each other");
    *plan = (bench_plan){.num_ranks = (int)args.ranks,
                         .factor = (int)args.factor,
                         .iterations = (int)args.iterations,
                         .warmup = (int)args.warmup,
                         .check = args.check != 0,
                         .out_of_place = args.out_of_place,
                         .dtype = (brg_dtype)args.type,
                         .redop = (brg_op)args.redop};
    for (int op = 0; op < BENCH_NUM_OPS; op++)
        plan->ops[op] = args.op == BENCH_NUM_OPS || args.op == op;
    int code = sizes_check(plan);
    if (code >= 0)
        return code;
    size_t available, total;
    brg_host_runtime()->mem_get_info(&available, &total);
    if ((double)plan->max_bytes * 2 * plan->num_ranks > (double)available)
        return cli_fail(&command, CLI_INPUT,
                        "%d ranks with two buffers of %zu bytes: only %zu bytes "
                        "of memory are available",
                        plan->num_ranks, plan->max_bytes, available);
    if (brg_host_nccl()->get_unique_id(&plan->id))
        return cli_fail(&command, CLI_INPUT, "%s", brg_host_nccl()->last_error(NULL));
    return -1;
}

static int bench_collective_run(int argc, char **argv)
{
    int first, code = cli_parse(&command, argc, argv, &first);
    if (code >= 0)
        return code;
    if (first < argc)
        return cli_fail(&command, CLI_USAGE, "unexpected argument '%s'", argv[first]);
    bench_plan plan;
    code = make_plan(&plan);
    if (code >= 0)
        return code;
    size_t bytes = bench_shared_bytes(&plan);
    bench_shared *shared =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return cli_fail(&command, CLI_INPUT, "cannot map %zu bytes: %s", bytes, strerror(errno));
    job j = {.plan = &plan, .shared = shared};
    code = run_job(&j);
    munmap(shared, bytes);
    return cli_finish(&command, code);
}

const cli_entry cli_bench_collective = {&command, bench_collective_run};
