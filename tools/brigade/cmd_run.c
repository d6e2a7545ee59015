/* SPDX-License-Identifier: Apache-2.0 */
/* brigade run: starts the ranks of a job on this machine. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sched/trace/ring.h"
#include "tools/brigade/run.h"

enum { MAX_RANKS = 1024 };

static int64_t ranks = 1, port, records;
static bool ranks_given, force, kernels, no_prefix, dry_run, quiet;
static const char *output;
static int shim = RUN_SHIM_AUTO;
static double timeout_s, grace_s = 5;

static const char *const shim_names[] = {"auto", "on", "off", NULL};

static const cli_option options[] = {
    {.name = "ranks",
     .short_name = 'n',
     .type = CLI_INT,
     .dest = &ranks,
     .metavar = "N",
     .help = "Start N ranks (default: one process, whose environment is left alone).",
     .min = 1,
     .max = MAX_RANKS,
     .given = &ranks_given},
    {.name = "output",
     .short_name = 'o',
     .type = CLI_STRING,
     .dest = &output,
     .metavar = "DIR",
     .help = "Record a trace, one file per rank, in DIR, which is created."},
    {.name = "force",
     .short_name = 'f',
     .type = CLI_FLAG,
     .dest = &force,
     .help = "Replace the trace of an earlier run in DIR."},
    {.name = "records",
     .type = CLI_SIZE,
     .dest = &records,
     .metavar = "N",
     .help = "Records of 64 bytes that the trace of each rank keeps, the newest, rounded up to a "
             "power of two (default 64K, with --kernels 1M).",
     .min = BRG_RING_RECORDS_MIN,
     .max = BRG_RING_RECORDS_MAX},
    {.name = "shim",
     .type = CLI_CHOICE,
     .dest = &shim,
     .choices = shim_names,
     .help = "Put libbrigade-shim under the program, which records what it does with NCCL (default "
             "auto: with -o, where the library is found)."},
    {.name = "kernels",
     .type = CLI_FLAG,
     .dest = &kernels,
     .help = "Have the shim record the program's kernels, too, through CUPTI: what of each bucket "
             "is exposed is then known. Costs a few microseconds a kernel."},
    {.name = "no-prefix",
     .type = CLI_FLAG,
     .dest = &no_prefix,
     .help =
         "Leave the ranks' output as it is, instead of putting '[rank]' in front of each line."},
    {.name = "timeout",
     .type = CLI_DOUBLE,
     .dest = &timeout_s,
     .metavar = "SECONDS",
     .help = "End the job after this time, with status 124 (default: never).",
     .min = 0.001,
     .max = 1e8},
    {.name = "grace",
     .type = CLI_DOUBLE,
     .dest = &grace_s,
     .metavar = "SECONDS",
     .help = "Time that ranks get from SIGTERM to SIGKILL when the job is ended (default 5).",
     .min = 0.001,
     .max = 1e6},
    {.name = "port",
     .type = CLI_INT,
     .dest = &port,
     .metavar = "N",
     .help = "MASTER_PORT of the job (default: a free one).",
     .min = 1,
     .max = 65535},
    {.name = "dry-run",
     .type = CLI_FLAG,
     .dest = &dry_run,
     .help = "Print the environment and command of every rank, and start nothing."},
    {.name = "quiet",
     .short_name = 'q',
     .type = CLI_FLAG,
     .dest = &quiet,
     .help = "Print no summary at the end; failures are still reported."},
    {.name = NULL},
};

static const cli_command command = {
    .name = "run",
    .summary = "Start the ranks of a job on this machine, and record a trace.",
    .usage = "[-n N] [-o DIR] [options] -- PROGRAM [ARGUMENTS]",
    .details =
        "With -n, N processes are started with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT set as torchrun sets them. OMP_NUM_THREADS and "
        "OPENBLAS_NUM_THREADS, where unset, share the cores out among the ranks. Lines of output "
        "get the rank in front when there are several ranks. Standard input goes to rank 0.\n\n"
        "When a rank fails, the others are ended: SIGTERM, and SIGKILL after the grace time. The "
        "status is that of the first rank that failed; how all ended is left beside the traces "
        "(run.json), for brigade report. SIGINT is passed on, a second one ends the "
        "job; SIGTERM and SIGHUP end it; SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP and SIGCONT are passed "
        "on. What a rank leaves behind in its process group is ended, too, even when this command "
        "is killed.\n\n"
        "With -o, LD_PRELOAD gets libbrigade-shim in front: a program that uses NCCL is recorded "
        "as it "
        "is. Under a program that uses libbrigade, which writes its own trace, the shim is silent. "
        "BRIGADE_SHIM_TIMING=none leaves out device times.\n\n"
        "--kernels sets BRIGADE_SHIM_KERNELS=cupti and makes the trace larger, 64 MiB a rank. "
        "CUPTI "
        "is looked for among what is loaded, beside the program's CUDA runtime and NCCL, in "
        "CUDA_HOME and by name; BRIGADE_CUPTI names the file. It serves one profiler at a time: "
        "once torch.profiler or the like begins in the program, there are no kernels of later "
        "steps, and the report leaves those steps out of what it says of compute. Without CUPTI "
        "the run goes on without kernels, and the report says why.\n\n"
        "Without -n the program is run as it is, with its trace in DIR if -o is given. This also "
        "works around and inside other launchers.\n\n"
        "  brigade run -n 4 -o trace -- ./trainer --steps 100\n"
        "  brigade report trace\n"
        "  torchrun --nproc-per-node 4 --no-python brigade run -o trace -- ./trainer",
    .options = options,
    .stop_at_positional = true,
};

/* The rank that another launcher gave us, or -1. */
static int outer_rank(void)
{
    const char *text = getenv("RANK");
    char *end;
    if (!text || !*text)
        return -1;
    errno = 0;
    long value = strtol(text, &end, 10);
    return !errno && !*end && value >= 0 && value < INT_MAX ? (int)value : -1;
}

/* Nothing to watch: become the program. */
static int run_in_place(char **argv)
{
    if (!cli_sigpipe_ignored)
        signal(SIGPIPE, SIG_DFL);
    execvp(argv[0], argv);
    const char *why;
    int code = run_exec_code(argv[0], errno, &why);
    return cli_fail(&command, code, "cannot run '%s': %s", argv[0], why);
}

static int prepare(run_config *config, char **trace, char **preload, bool *created)
{
    char error[256];
    if (config->set_env) {
        int cores = run_cores();
        config->threads = cores > config->ranks ? cores / config->ranks : 1;
        config->port = run_free_port((int)port, error, sizeof error);
        if (!config->port)
            return cli_fail(&command, CLI_OWN_FAILURE, "%s", error);
    }
    if (output && dry_run) {
        *trace = run_trace_absolute(output);
        if (!*trace)
            return cli_fail(&command, CLI_OWN_FAILURE, "cannot resolve directory '%s': %s", output,
                            strerror(errno));
    } else if (output) {
        int only = config->set_env ? -1 : outer_rank();
        int code = run_trace_prepare(&command, output, force, only, trace, created);
        if (code)
            return code;
    }
    config->trace = *trace;
    run_shim wanted = kernels ? RUN_SHIM_ON : (run_shim)shim;
    int code = output ? run_shim_preload(&command, wanted, preload) : CLI_OK;
    config->preload = *preload;
    config->shim_off = wanted == RUN_SHIM_OFF;
    config->kernels = kernels;
    return code;
}

static int run_run(int argc, char **argv)
{
    int first;
    int code = cli_parse(&command, argc, argv, &first);
    if (code >= 0)
        return code;
    if (first >= argc)
        return cli_fail(&command, CLI_USAGE,
                        "which program? (brigade run -n 4 -- PROGRAM ARGUMENTS)");
    if (output && !*output)
        return cli_fail(&command, CLI_USAGE, "--output: the directory's name is empty");
    if (force && !output)
        return cli_fail(&command, CLI_USAGE, "--force has no meaning without --output");
    if (records && !output)
        return cli_fail(&command, CLI_USAGE, "--records has no meaning without --output");
    if (shim == RUN_SHIM_ON && !output)
        return cli_fail(&command, CLI_USAGE, "--shim=on has no meaning without --output");
    if (kernels && !output)
        return cli_fail(&command, CLI_USAGE, "--kernels has no meaning without --output");
    if (kernels && shim == RUN_SHIM_OFF)
        return cli_fail(&command, CLI_USAGE, "--kernels has no meaning with --shim=off");
    if (port && !ranks_given)
        return cli_fail(&command, CLI_USAGE, "--port has no meaning without --ranks");
    run_config config = {.command = &command,
                         .ranks = (int)ranks,
                         .set_env = ranks_given,
                         .prefix = ranks > 1 && !no_prefix,
                         .quiet = quiet,
                         .trace_name = output,
                         .records = records,
                         .timeout_s = timeout_s,
                         .grace_s = grace_s,
                         .argv = argv + first};
    char *trace = NULL, *preload = NULL;
    bool created = false;
    code = prepare(&config, &trace, &preload, &created);
    if (code == CLI_OK && dry_run) {
        run_print(&config);
        code = cli_finish(&command, CLI_OK);
    } else if (code == CLI_OK && !ranks_given && !output && timeout_s <= 0) {
        code = run_in_place(config.argv);
    } else if (code == CLI_OK) {
        code = run_job(&config);
        if (created && (code == CLI_NOT_FOUND || code == CLI_NOT_EXECUTABLE))
            rmdir(trace); /* nothing ran; fails harmlessly if something did */
    }
    free(preload);
    free(trace);
    return code;
}

const cli_entry cli_run = {&command, run_run};
