/* SPDX-License-Identifier: Apache-2.0 */
/* brigade bench shim: what libbrigade-shim adds to a call of NCCL, and to a step. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sched/trace/ring.h"
#include "shim/interpose/nccl_api.h"
#include "tools/brigade/bench.h"
#include "tools/brigade/bench_shim_step.h"
#include "tools/brigade/cli.h"
#include "tools/brigade/run.h"

enum { CALLS = 512, GROUP = 8 }; /* of a round: no more than the shim has pairs of events */

static int64_t rounds = 51, pairs = 150;
static bool json;
static bench_peer_options peer;

static const cli_option options[] = {
    {.name = "rounds",
     .short_name = 'n',
     .type = CLI_INT,
     .dest = &rounds,
     .metavar = "N",
     .min = 1,
     .max = 100000,
     .help = "Rounds to measure; the median counts (default: 51)."},
    {.name = "pairs",
     .type = CLI_INT,
     .dest = &pairs,
     .metavar = "N",
     .max = BENCH_SHIM_MAX_PAIRS,
     .help = "Pairs of blocks of 4 steps with and without the shim; 0: none (default: 150)."},
    BENCH_PEER_OPTIONS(peer),
    {.name = "json", .type = CLI_FLAG, .dest = &json, .help = "Print one JSON document."},
    {.name = NULL},
};

static const cli_command command = {
    .name = "bench shim",
    .summary = "What libbrigade-shim adds to a call of NCCL and to a step.",
    .usage = "[options]",
    .details =
        "Calls an NCCL and a CUDA runtime that do nothing, directly and through the shim: "
        "with records only, with device times, and with device times in groups of 8. A real "
        "CUDA runtime adds what its own calls cost, two cudaEventRecord for a launch. Then a "
        "data-parallel step of two ranks on libbrigade-host, with device times and past the "
        "shim in turn: the median ratio and its 95% confidence interval. Where there is a PyTorch "
        "with a GPU, a step of its DistributedDataParallel, too, in two jobs that take turns.",
    .options = options,
};

typedef struct calls {
    typeof(ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                        cudaStream_t)) *all_reduce;
    typeof(ncclResult_t(ncclComm_t *, int, ncclUniqueId, int)) *init;
    typeof(ncclResult_t(void)) *group_start, *group_end;
} calls;

static bool look_up(void *library, const char *prefix, calls *out)
{
    char name[64];
    void **slots[] = {(void **)(void *)&out->all_reduce, (void **)(void *)&out->init,
                      (void **)(void *)&out->group_start, (void **)(void *)&out->group_end};
    const char *const names[] = {"AllReduce", "CommInitRank", "GroupStart", "GroupEnd"};
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "%s%s", prefix, names[i]);
        *slots[i] = dlsym(library, name);
        if (!*slots[i])
            return false;
    }
    return true;
}

static double round_ns(const calls *c, ncclComm_t comm, bool grouped)
{
    static char memory[64];
    uint64_t begin = brg_now_ns();
    for (int i = 0; i < CALLS; i++) {
        if (grouped && i % GROUP == 0)
            c->group_start();
        c->all_reduce(memory, memory, 16, ncclInt8, ncclSum, comm, (cudaStream_t)(void *)memory);
        if (grouped && i % GROUP == GROUP - 1)
            c->group_end();
    }
    return (double)(brg_now_ns() - begin) / CALLS;
}

/* Median per call; the first round is left out. */
static double median_ns(const calls *c, bool grouped, bool pause)
{
    ncclComm_t comm = NULL;
    double *values = calloc((size_t)rounds, sizeof *values);
    if (!values || c->init(&comm, 2, (ncclUniqueId){{1}}, 0) != ncclSuccess)
        return -1;
    for (int64_t i = -1; i < rounds; i++) {
        double ns = round_ns(c, comm, grouped);
        if (i >= 0)
            values[i] = ns;
        if (pause) /* the shim's reader empties its queue every 20 ms at least */
            nanosleep(&(struct timespec){.tv_nsec = 25 * 1000 * 1000}, NULL);
    }
    double median = bench_median(values, rounds);
    free(values);
    return median;
}

typedef struct bench_case {
    const char *key, *text;
    const char *timing; /* NULL: without the shim */
    bool grouped, step;
} bench_case;

typedef struct outcome {
    double call_ns;
    bench_shim_steps steps;
} outcome;

/* Files of the libraries. */
typedef struct files {
    char *null_nccl, *shim, *host;
} files;

static double calls_run(const bench_case *which, const files *where)
{
    calls c;
    void *nccl = dlopen(where->null_nccl, RTLD_NOW | RTLD_GLOBAL), *library = NULL;
    if (which->timing)
        library = dlopen(where->shim, RTLD_NOW | RTLD_LOCAL);
    if (!nccl || (which->timing && !library)) {
        fprintf(stderr, "brigade bench shim: %s\n", dlerror());
        return -1;
    }
    bool timed = which->timing && which->timing[0] == 'e';
    return look_up(which->timing ? library : nccl, which->timing ? "nccl" : "pnccl", &c)
               ? median_ns(&c, which->grouped, timed)
               : -1;
}

static bool case_run(const bench_case *which, const files *where, const char *dir, outcome *out)
{
    unsetenv("BRIGADE_NCCL_LIB");
    if (which->timing) {
        setenv("BRIGADE_TRACE", dir, 1);
        setenv("BRIGADE_SHIM_TIMING", which->timing, 1);
        setenv("RANK", "0", 1);
        setenv("WORLD_SIZE", "2", 1);
    }
    if (which->step)
        return bench_shim_steps_run(where->host, where->shim, (int)pairs, &out->steps);
    out->call_ns = calls_run(which, where);
    return out->call_ns >= 0;
}

/* The shim sets itself up once per process: one process per case. */
static bool in_child(const bench_case *which, const files *where, outcome *out)
{
    char dir[BENCH_DIR_SIZE];
    int ends[2];
    if (!bench_dir_make(dir) || pipe(ends))
        return false;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        bool ran = case_run(which, where, dir, out);
        _exit(ran && write(ends[1], out, sizeof *out) == sizeof *out ? 0 : 1);
    }
    close(ends[1]);
    bool ran = child > 0 && read(ends[0], out, sizeof *out) == sizeof *out;
    close(ends[0]);
    if (child > 0)
        waitpid(child, NULL, 0);
    bool traced = bench_dir_remove(dir);
    return ran && traced == (which->timing != NULL);
}

static int calls_measure(const files *where)
{
    static const bench_case cases[] = {
        {"direct_ns", "direct", NULL, false, false},
        {"untimed_ns", "through the shim, records only", "none", false, false},
        {"timed_ns", "through the shim, with device times", "events", false, false},
        {"timed_group_ns", "the same, in groups of 8", "events", true, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        outcome got = {0};
        if (!in_child(&cases[i], where, &got))
            return cli_fail(&command, CLI_FINDING, "case '%s' did not run", cases[i].text);
        if (json)
            printf(",\"%s\":%.1f", cases[i].key, got.call_ns);
        else
            printf("%-36s %8.1f ns a call\n", cases[i].text, got.call_ns);
    }
    if (!json)
        printf("(medians of %lld rounds of %d calls)\n", (long long)rounds, CALLS);
    return CLI_OK;
}

static void steps_print(const char *key, const char *text, const bench_shim_steps *s)
{
    if (json)
        printf(",\"%sstep_ms\":%.4f,\"%straced_step_ms\":%.4f,\"%sstep_ratio\":%.5f,"
               "\"%sstep_ratio_low\":%.5f,\"%sstep_ratio_high\":%.5f",
               key, s->plain_ns / 1e6, key, s->traced_ns / 1e6, key, s->ratio, key, s->low, key,
               s->high);
    else
        printf("DDP step of %s: %.3f ms, under trace %.3f ms: %.4fx (95%%: %.4f to %.4f)\n", text,
               s->plain_ns / 1e6, s->traced_ns / 1e6, s->ratio, s->low, s->high);
}

static int step_measure(const files *where)
{
    static const bench_case step = {.timing = "events", .step = true};
    char text[32];
    outcome got = {0};
    if (!in_child(&step, where, &got))
        return cli_fail(&command, CLI_FINDING, "the data-parallel step did not run");
    snprintf(text, sizeof text, "%d all-reduces", BENCH_SHIM_BUCKETS);
    if (json)
        printf(",\"all_reduces\":%d", BENCH_SHIM_BUCKETS);
    steps_print("", text, &got.steps);
    return CLI_OK;
}

static int torch_measure(const files *where)
{
    char name[BENCH_PEER_NAME];
    bench_shim_steps steps;
    fflush(stdout);
    if (!bench_shim_torch_run(&command, &peer, where->shim, (int)pairs, name, &steps))
        return cli_fail(&command, CLI_FINDING, "the step of torch did not run");
    if (name[0])
        steps_print("torch_", name, &steps);
    return CLI_OK;
}

static int measure(const files *where)
{
    if (json)
        printf("{\"schema\":1,\"rounds\":%lld,\"calls\":%d,\"pairs\":%lld", (long long)rounds,
               CALLS, (long long)pairs);
    int code = calls_measure(where);
    if (code == CLI_OK && pairs)
        code = step_measure(where);
    if (code == CLI_OK && pairs && !peer.none)
        code = torch_measure(where);
    if (json)
        printf("}\n");
    return code;
}

static int run(int argc, char **argv)
{
    int first, code = cli_parse(&command, argc, argv, &first);
    if (code >= 0)
        return code;
    if (first < argc)
        return cli_fail(&command, CLI_USAGE, "unexpected argument '%s'", argv[first]);
    files where = {.null_nccl = run_library_find("libbrigade-null-nccl.so"),
                   .shim = run_library_find(RUN_SHIM_FILE),
                   .host = pairs ? run_library_find("libbrigade-host.so.1") : NULL};
    const char *missing = !where.shim            ? RUN_SHIM_FILE
                          : !where.null_nccl     ? "libbrigade-null-nccl.so"
                          : pairs && !where.host ? "libbrigade-host.so.1"
                                                 : NULL;
    code = missing ? cli_fail(&command, CLI_FINDING, "%s is not beside the command", missing)
                   : measure(&where);
    free(where.null_nccl);
    free(where.shim);
    free(where.host);
    return cli_finish(&command, code);
}

const cli_entry cli_bench_shim = {&command, run};
