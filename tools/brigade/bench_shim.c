/* SPDX-License-Identifier: Apache-2.0 */
/* brigade bench shim: what libbrigade-shim adds to a call of NCCL. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sched/trace/ring.h"
#include "shim/interpose/nccl_api.h"
#include "tools/brigade/bench.h"
#include "tools/brigade/cli.h"
#include "tools/brigade/run.h"

enum { CALLS = 512, GROUP = 8 }; /* of a round: no more than the shim has pairs of events */

static int64_t rounds = 51;
static bool json;

static const cli_option options[] = {
    {.name = "rounds",
     .short_name = 'n',
     .type = CLI_INT,
     .dest = &rounds,
     .metavar = "N",
     .min = 1,
     .max = 100000,
     .help = "Rounds to measure; the median counts (default: 51)."},
    {.name = "json", .type = CLI_FLAG, .dest = &json, .help = "Print one JSON document."},
    {.name = NULL},
};

static const cli_command command = {
    .name = "bench shim",
    .summary = "What libbrigade-shim adds to a call of NCCL.",
    .usage = "[options]",
    .details = "Calls an NCCL and a CUDA runtime that do nothing, directly and through the shim: "
               "with records only, with device times, and with device times in groups of 8. A real "
               "CUDA runtime adds what its own calls cost, two cudaEventRecord for a launch.",
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

/* The shim sets itself up once per process: one process per case. `timing` NULL: without it. */
static double case_run(const char *null_nccl, const char *shim, const char *timing, bool grouped,
                       const char *dir)
{
    calls c;
    void *nccl = dlopen(null_nccl, RTLD_NOW | RTLD_GLOBAL), *library = NULL;
    if (timing) {
        setenv("BRIGADE_TRACE", dir, 1);
        setenv("BRIGADE_SHIM_TIMING", timing, 1);
        setenv("RANK", "0", 1);
        setenv("WORLD_SIZE", "2", 1);
        library = dlopen(shim, RTLD_NOW | RTLD_LOCAL);
    }
    if (!nccl || (timing && !library)) {
        fprintf(stderr, "brigade bench shim: %s\n", dlerror());
        return -1;
    }
    bool timed = timing && timing[0] == 'e';
    return look_up(timing ? library : nccl, timing ? "nccl" : "pnccl", &c)
               ? median_ns(&c, grouped, timed)
               : -1;
}

static double in_child(const char *null_nccl, const char *shim, const char *timing, bool grouped)
{
    const char *tmp = getenv("TMPDIR");
    char dir[1024], path[1100];
    int ends[2];
    double ns = -1;
    snprintf(dir, sizeof dir, "%s/brigade-bench-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(dir) || pipe(ends))
        return -1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        ns = case_run(null_nccl, shim, timing, grouped, dir);
        _exit(write(ends[1], &ns, sizeof ns) == sizeof ns ? 0 : 1);
    }
    close(ends[1]);
    if (child < 0 || read(ends[0], &ns, sizeof ns) != sizeof ns)
        ns = -1;
    close(ends[0]);
    if (child > 0)
        waitpid(child, NULL, 0);
    snprintf(path, sizeof path, "%s/rank-0.ring", dir);
    unlink(path);
    rmdir(dir);
    return ns;
}

static int measure(const char *null_nccl, const char *shim)
{
    static const struct {
        const char *key, *text, *timing;
        bool grouped;
    } cases[] = {{"direct_ns", "direct", NULL, false},
                 {"untimed_ns", "through the shim, records only", "none", false},
                 {"timed_ns", "through the shim, with device times", "events", false},
                 {"timed_group_ns", "the same, in groups of 8", "events", true}};
    if (json)
        printf("{\"schema\":1,\"rounds\":%lld,\"calls\":%d", (long long)rounds, CALLS);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double ns = in_child(null_nccl, shim, cases[i].timing, cases[i].grouped);
        if (ns < 0)
            return cli_fail(&command, CLI_FINDING, "case '%s' did not run", cases[i].text);
        if (json)
            printf(",\"%s\":%.1f", cases[i].key, ns);
        else
            printf("%-36s %8.1f ns a call\n", cases[i].text, ns);
    }
    if (json)
        printf("}\n");
    else
        printf("(medians of %lld rounds of %d calls)\n", (long long)rounds, CALLS);
    return CLI_OK;
}

static int run(int argc, char **argv)
{
    int first, code = cli_parse(&command, argc, argv, &first);
    if (code >= 0)
        return code;
    if (first < argc)
        return cli_fail(&command, CLI_USAGE, "unexpected argument '%s'", argv[first]);
    char *shim = run_library_find(RUN_SHIM_FILE);
    char *null_nccl = run_library_find("libbrigade-null-nccl.so");
    if (shim && null_nccl)
        code = measure(null_nccl, shim);
    else
        code = cli_fail(&command, CLI_FINDING, "%s is not beside the command",
                        shim ? "libbrigade-null-nccl.so" : RUN_SHIM_FILE);
    free(shim);
    free(null_nccl);
    return cli_finish(&command, code);
}

const cli_entry cli_bench_shim = {&command, run};
