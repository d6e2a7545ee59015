/* SPDX-License-Identifier: Apache-2.0 */
/* brigade bench: the benchmarks. A new one is one line in cli_benchmarks and one in meson.build. */
#include "tools/brigade/cli.h"

/* clang-format off */
const cli_entry *const cli_benchmarks[] = {
    &cli_bench_adamw,
    &cli_bench_bucket,
    &cli_bench_collective,
    &cli_bench_grad_ready,
    &cli_bench_host_cost,
    &cli_bench_newton_schulz,
    &cli_bench_plan,
    &cli_bench_shim,
    &cli_bench_step,
    &cli_bench_trace,
    NULL,
};
/* clang-format on */

static const cli_option options[] = {{.name = NULL}};

static const cli_command command = {
    .name = "bench",
    .summary = "Measure parts of Brigade on this machine.",
    .usage = "BENCHMARK [options]",
    .details = "Every benchmark has its own options: 'brigade bench BENCHMARK --help'.",
    .options = options,
    .stop_at_positional = true,
};

static int bench_run(int argc, char **argv)
{
    int first;
    int code = cli_parse(&command, argc, argv, &first);
    if (code >= 0)
        return code;
    if (first >= argc) {
        cli_fail(&command, CLI_USAGE, "which benchmark?");
        cli_print_list(cli_benchmarks, stderr);
        return CLI_USAGE;
    }
    const cli_entry *entry = cli_find(cli_benchmarks, argv[first], &command);
    return entry ? entry->run(argc - first, argv + first) : CLI_USAGE;
}

const cli_entry cli_bench = {&command, bench_run};
