/* SPDX-License-Identifier: Apache-2.0 */
/* brigade bench trace: what a trace record costs the thread that writes it, beside an empty call.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "sched/trace/ring.h"
#include "tools/brigade/bench.h"
#include "tools/brigade/cli.h"

static int64_t max_threads = 4, rounds = 21, records = 100000;
static bool json;

static const cli_option options[] = {
    {.name = "threads",
     .short_name = 't',
     .type = CLI_INT,
     .dest = &max_threads,
     .metavar = "N",
     .min = 1,
     .max = 256,
     .help = "Writers at a time: 1, 2, ... up to N (default: 4)."},
    {.name = "rounds",
     .short_name = 'n',
     .type = CLI_INT,
     .dest = &rounds,
     .metavar = "N",
     .min = 1,
     .max = 100000,
     .help = "Rounds to measure; the median counts (default: 21)."},
    {.name = "records",
     .type = CLI_INT,
     .dest = &records,
     .metavar = "N",
     .min = 1,
     .max = 1000000000,
     .help = "Records that each writer puts in a round (default: 100000)."},
    {.name = "json", .type = CLI_FLAG, .dest = &json, .help = "Print one JSON document."},
    {.name = NULL},
};

static const cli_command command = {
    .name = "bench trace",
    .summary = "What a trace record costs the thread that writes it.",
    .usage = "[options]",
    .details =
        "Puts records into a ring file in the temporary directory (TMPDIR) from one and more "
        "threads at once, and makes an empty call in the same way. Writers of one trace share a "
        "counter, and on a machine with fewer processors they wait for one another.",
    .options = options,
};

typedef void (*put_call)(brg_ring *ring, const brg_rec *rec);

static void __attribute__((noinline)) empty_call(brg_ring *ring, const brg_rec *rec)
{
    __asm__ volatile("" : : "r"(ring), "r"(rec) : "memory"); /* keeps the call */
}

/* Writers start together when the gate is unlocked. */
typedef struct gate {
    pthread_mutex_t lock;
    bool give_up;
} gate;

typedef struct writer {
    pthread_t thread;
    gate *start;
    brg_ring *ring;
    put_call call;
    double ns; /* per record */
} writer;

static void *write_records(void *arg)
{
    writer *w = arg;
    put_call volatile through = w->call;
    const brg_rec rec = {.kind = BRG_REC_COMPUTE, .bucket = BRG_NO_BUCKET};
    pthread_mutex_lock(&w->start->lock);
    bool give_up = w->start->give_up;
    pthread_mutex_unlock(&w->start->lock);
    if (give_up)
        return NULL;
    uint64_t begin = brg_now_ns();
    for (int64_t i = 0; i < records; i++)
        through(w->ring, &rec);
    w->ns = (double)(brg_now_ns() - begin) / (double)records;
    return NULL;
}

/* The mean over writers that run at once; negative: a thread could not be started. */
static double round_ns(brg_ring *ring, put_call call, writer *writers, int nthreads)
{
    gate start = {.lock = PTHREAD_MUTEX_INITIALIZER};
    double sum = 0;
    int started = 0;
    pthread_mutex_lock(&start.lock);
    for (; started < nthreads; started++) {
        writers[started] = (writer){.start = &start, .ring = ring, .call = call};
        if (pthread_create(&writers[started].thread, NULL, write_records, &writers[started]))
            break;
    }
    start.give_up = started < nthreads;
    pthread_mutex_unlock(&start.lock);
    for (int i = 0; i < started; i++) {
        pthread_join(writers[i].thread, NULL);
        sum += writers[i].ns;
    }
    return start.give_up ? -1 : sum / nthreads;
}

static double median_ns(brg_ring *ring, put_call call, writer *writers, int nthreads,
                        double *values)
{
    for (int64_t i = 0; i < rounds; i++) {
        values[i] = round_ns(ring, call, writers, nthreads);
        if (values[i] < 0)
            return -1;
    }
    return bench_median(values, rounds);
}

static int measure(brg_ring *ring, writer *writers, double *values)
{
    double empty = median_ns(ring, empty_call, writers, 1, values);
    if (empty < 0)
        return cli_fail(&command, CLI_FINDING, "cannot start a thread");
    if (json)
        printf("{\"schema\":1,\"rounds\":%lld,\"records\":%lld,\"empty_call_ns\":%.2f,\"put\":[",
               (long long)rounds, (long long)records, empty);
    else
        printf("%-12s %8.2f ns a call\n", "empty call", empty);
    for (int n = 1; n <= max_threads; n++) {
        double put = median_ns(ring, brg_ring_put, writers, n, values);
        if (put < 0)
            return cli_fail(&command, CLI_FINDING, "cannot start %d threads", n);
        if (json)
            printf("%s{\"threads\":%d,\"record_ns\":%.2f}", n > 1 ? "," : "", n, put);
        else
            printf("%2d writer%-3s %8.2f ns a record\n", n, n > 1 ? "s" : "", put);
    }
    if (json)
        printf("]}\n");
    else
        printf("(medians of %lld rounds of %lld records a writer)\n", (long long)rounds,
               (long long)records);
    return CLI_OK;
}

static int run(int argc, char **argv)
{
    int first, code = cli_parse(&command, argc, argv, &first);
    if (code >= 0)
        return code;
    if (first < argc)
        return cli_fail(&command, CLI_USAGE, "unexpected argument '%s'", argv[first]);
    char dir[BENCH_DIR_SIZE], path[BENCH_DIR_SIZE + 32];
    if (!bench_dir_make(dir))
        return cli_fail(&command, CLI_FINDING, "cannot make the directory %s: %m", dir);
    snprintf(path, sizeof path, "%s/rank-0.ring", dir);
    brg_ring *ring = NULL;
    writer *writers = calloc((size_t)max_threads, sizeof *writers);
    double *values = calloc((size_t)rounds, sizeof *values);
    if (!writers || !values)
        code = cli_fail(&command, CLI_FINDING, "no memory");
    else if (brg_ring_create(path, &(brg_ring_options){.world = 1}, &ring) != BRG_OK)
        code = cli_fail(&command, CLI_FINDING, "%s", brg_last_error());
    else
        code = measure(ring, writers, values);
    brg_ring_close(ring);
    bench_dir_remove(dir);
    free(writers);
    free(values);
    return cli_finish(&command, code);
}

const cli_entry cli_bench_trace = {&command, run};
