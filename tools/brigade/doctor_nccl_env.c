/* SPDX-License-Identifier: Apache-2.0 */
/* Variables of NCCL and CUDA that cost speed. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tools/brigade/doctor.h"

/* Variables that are there to find faults, and cost speed when they are forgotten. */
static void brakes_check(doctor *d)
{
    static const struct {
        const char *name, *value, *effect;
    } brakes[] = {
        {"CUDA_LAUNCH_BLOCKING", "1", "nothing overlaps"},
        {"NCCL_P2P_DISABLE", "1", "GPUs of one machine talk through host memory"},
        {"NCCL_SHM_DISABLE", "1", "ranks of one machine talk through the network"},
        {"NCCL_IB_DISABLE", "1", "InfiniBand and RoCE are not used"},
        {"NCCL_DEBUG", "TRACE", "every call is logged"},
        {"NCCL_LAUNCH_MODE", "GROUP", "kernels are launched together, which can serialize them"},
    };
    size_t found = 0;
    for (size_t i = 0; i < sizeof brakes / sizeof *brakes; i++) {
        const char *where, *value = doctor_nccl_value(d, brakes[i].name, &where);
        if (!value || strcasecmp(value, brakes[i].value) != 0)
            continue;
        found++;
        doctor_note(d, "brakes", DOCTOR_WARN, "unset the variable when the fault is found",
                    "%s=%s in %s: %s", brakes[i].name, value, where, brakes[i].effect);
    }
    if (!found)
        doctor_note(d, "brakes", DOCTOR_PASS, NULL,
                    "no variable is set that is known to cost speed");
}

static void connections_check(doctor *d)
{
    static const char check[] = "CUDA connections";
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    char *end;
    if (!text) {
        doctor_note(d, check, DOCTOR_PASS, NULL, "CUDA_DEVICE_MAX_CONNECTIONS is not set");
        return;
    }
    long value = strtol(text, &end, 10);
    if (!*text || *end || value < 1 || value > 32)
        doctor_note(d, check, DOCTOR_FAIL, "set it to a number from 1 to 32, or unset it",
                    "CUDA_DEVICE_MAX_CONNECTIONS=%s", text);
    else if (value == 1)
        doctor_note(d, check, DOCTOR_WARN,
                    "unset it, unless tensor parallelism needs that order (Megatron-LM does)",
                    "CUDA_DEVICE_MAX_CONNECTIONS=1: all streams share one queue, and kernels "
                    "begin in the order in which they are issued");
    else
        doctor_note(d, check, DOCTOR_PASS, NULL, "CUDA_DEVICE_MAX_CONNECTIONS=%ld", value);
}

void doctor_nccl_variables(doctor *d)
{
    brakes_check(d);
    connections_check(d);
    const char *where, *nvls = doctor_nccl_value(d, "NCCL_NVLS_ENABLE", &where);
    doctor_note(d, "NVLS", DOCTOR_PASS, NULL, "%s%s%s%s%s", nvls ? "NCCL_NVLS_ENABLE=" : "",
                nvls ? nvls : "left to NCCL", nvls ? " in " : "", nvls ? where : "",
                nvls && !strcmp(nvls, "0") ? ": no reductions in the switch" : "");
}
