/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/brigade/bench.h"
#include "tools/brigade/bench_shim_step.h"

/* Sets what the job with the shim sees, or takes it away again (dir NULL). */
static void set_environment(const char *shim, const char *dir)
{
    static const char *const names[] = {"LD_PRELOAD", "BRIGADE_TRACE", "BRIGADE_SHIM_TIMING"};
    const char *const values[] = {shim, dir, "events"};
    for (int i = 0; i < 3; i++)
        if (!dir || setenv(names[i], values[i], 1))
            unsetenv(names[i]);
}

/* False: a job did not answer. */
static bool measure(bench_peer *jobs, int pairs, double *blocks[2])
{
    for (int i = 0; i < 2 * pairs; i++) {
        int traced = bench_shim_turn(i);
        double us[BENCH_MAX_PEERS];
        bench_peer_measure(&jobs[traced], BENCH_SHIM_BLOCK, us);
        if (isnan(us[0]))
            return false;
        blocks[traced][i / 2] = us[0] * 1e3;
    }
    return true;
}

bool bench_shim_torch_run(const cli_command *command, const bench_peer_options *options,
                          const char *shim, int pairs, char name[BENCH_PEER_NAME],
                          bench_shim_steps *out)
{
    static const char *const none[] = {NULL};
    char dir[BENCH_DIR_SIZE];
    bench_peer jobs[2];
    double *values = calloc((size_t)(2 * pairs), sizeof *values);
    double *blocks[2] = {values, values ? values + pairs : NULL};
    bool ran = false;
    name[0] = '\0';
    if (!values || !bench_dir_make(dir)) {
        free(values);
        return false;
    }
    set_environment(shim, NULL);
    bench_peer_start(&jobs[0], command, options, "bench_shim.py", none);
    bench_peer_ready(&jobs[0]);
    const bench_peer_options traced = {options->python, jobs[0].count == 0, options->timeout_s};
    set_environment(shim, dir);
    bench_peer_start(&jobs[1], command, &traced, "bench_shim.py", none);
    set_environment(shim, NULL);
    bench_peer_ready(&jobs[1]);
    bool there = jobs[0].count > 0;
    if (there && jobs[1].count > 0)
        ran = measure(jobs, pairs, blocks);
    if (ran) {
        snprintf(name, BENCH_PEER_NAME, "%s", jobs[0].names[0]);
        bench_shim_summarise(blocks[0], blocks[1], pairs, out);
    }
    bench_peer_stop(&jobs[0]);
    bench_peer_stop(&jobs[1]);
    if (!bench_dir_remove(dir) && ran) {
        cli_fail(command, CLI_FINDING, "the shim recorded nothing of torch");
        ran = false;
    }
    free(values);
    return ran || !there;
}
