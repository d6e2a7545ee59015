/* SPDX-License-Identifier: Apache-2.0 */
/* brigade doctor: what stands in the way of NCCL and Brigade here, and what to do about it. */
#include <stdlib.h>
#include <string.h>

#include "tools/brigade/doctor.h"

static struct {
    bool json;
    const char *binary;
} opt;

static const cli_option options[] = {
    {.name = "json", .type = CLI_FLAG, .dest = &opt.json, .help = "Print one JSON document."},
    {.name = "binary",
     .short_name = 'b',
     .type = CLI_STRING,
     .dest = &opt.binary,
     .metavar = "FILE",
     .help = "Look into this program or library, too: is NCCL linked in, is libbrigade-shim linked "
             "before it?"},
    {.name = NULL},
};

static const cli_command command = {
    .name = "doctor",
    .summary = "Check NCCL, drivers, limits and variables, and say what to mend.",
    .usage = "[options] [-- PROGRAM [ARGUMENTS]]",
    .details =
        "Prints a list of checks: pass, warn (slower or less safe than it could be), fail (will "
        "not work) or absent (not there, so nothing to check), with one line on what to do.\n\n"
        "Checked are the copies of NCCL and their versions, the profiler and tuner plugins that "
        "NCCL would load, RANK, WORLD_SIZE, MASTER_ADDR and their kin, variables of Brigade, NCCL "
        "and CUDA, also in /etc/nccl.conf and ~/.nccl.conf (or NCCL_CONF_FILE), "
        "driver and CUDA runtime, MIG, the device that Brigade would choose, shared memory, stack, "
        "clock, cores, and the machine's topology.\n\n"
        "With a PROGRAM it is run to its end first, its output going to standard error, and the "
        "checks are made with the environment it was started with and the libraries that it had "
        "loaded. It is observed from outside (ptrace); nothing is preloaded. Variables that a "
        "program sets for itself while it runs are not seen.\n\n"
        "Exit status: 0 if nothing failed, 1 if something did, 2 for wrong usage, 3 if the "
        "program could not be run or observed.\n\n"
        "  brigade doctor\n"
        "  brigade doctor -- python -c \"import torch\"\n"
        "  brigade doctor --json | jq '.checks[] | select(.state == \"fail\")'",
    .options = options,
    .stop_at_positional = true,
};

/* Comes back here, in another program, with the list of mapped files. */
static int observe(int argc, char **argv, int first)
{
    /* The same words once more; those of the program are then left alone. */
    char **again = calloc((size_t)argc + 2, sizeof *again);
    if (!again)
        return cli_fail(&command, CLI_INPUT, "no memory");
    again[0] = "brigade";
    memcpy(again + 1, argv, (size_t)argc * sizeof *again);
    int code = doctor_observe(&command, argv + first, again);
    free(again);
    return cli_finish(&command, code);
}

static int run(int argc, char **argv)
{
    int first, code = cli_parse(&command, argc, argv, &first);
    if (code >= 0)
        return code;
    doctor d = {0};
    doctor_observed_take(&d);
    if (first < argc && !d.mapped)
        return observe(argc, argv, first);
    doctor_nccl(&d, opt.binary);
    doctor_plugins(&d);
    doctor_variables(&d);
    doctor_ranks(&d);
    doctor_nccl_files(&d);
    doctor_nccl_values(&d);
    doctor_nccl_variables(&d);
    doctor_gpus(&d);
    doctor_machine(&d);
    code = doctor_count(&d, DOCTOR_FAIL) ? CLI_FINDING : CLI_OK;
    if (!opt.json)
        doctor_text(&d);
    if (d.no_memory || (opt.json && !doctor_json(&d)))
        code = cli_fail(&command, CLI_INPUT, "no memory");
    doctor_free(&d);
    return cli_finish(&command, code);
}

const cli_entry cli_doctor = {&command, run};
