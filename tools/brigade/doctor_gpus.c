/* SPDX-License-Identifier: Apache-2.0 */
/* Driver, CUDA runtime, GPUs, and the device that Brigade would choose. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "sched/device/cuda.h"
#include "sched/status.h"
#include "tools/brigade/doctor.h"

/* The kernel's half of the driver: the first line says its version. */
static void driver_check(doctor *d)
{
    static const char check[] = "NVIDIA driver";
    char line[256] = "";
    FILE *file = fopen("/proc/driver/nvidia/version", "re");
    if (!file) {
        doctor_note(d, check, DOCTOR_ABSENT, NULL, "no kernel module is loaded");
        return;
    }
    if (fgets(line, sizeof line, file))
        line[strcspn(line, "\n")] = 0;
    fclose(file);
    char *text = strstr(line, "NVRM version:");
    text = text ? text + strlen("NVRM version:") : line;
    doctor_note(d, check, DOCTOR_PASS, NULL, "%s", text + strspn(text, " "));
}

/* The CUDA version that a library tells by a function of this name; 0: it is not there. */
static int library_version(const char *const *names, const char *function)
{
    int version = 0;
    void *library = NULL;
    for (; *names && !library; names++)
        library = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
    int (*get)(int *) = NULL;
    if (library)
        *(void **)&get = dlsym(library, function);
    return get && !get(&version) ? version : 0;
}

static void versions_check(doctor *d)
{
    static const char check[] = "CUDA versions";
    const char *given = getenv("BRIGADE_CUDART");
    const char *const driver_names[] = {"libcuda.so.1", NULL};
    const char *const runtime_names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0",
                                         NULL};
    const char *const given_names[] = {given, NULL};
    int driver = library_version(driver_names, "cuDriverGetVersion");
    int runtime =
        library_version(given && *given ? given_names : runtime_names, "cudaRuntimeGetVersion");
    if (!driver && !runtime) {
        doctor_note(d, check, DOCTOR_ABSENT, NULL, "neither libcuda nor libcudart is found");
        return;
    }
    char driver_text[32] = "none", runtime_text[32] = "none";
    if (driver)
        snprintf(driver_text, sizeof driver_text, "%d.%d", driver / 1000, driver % 1000 / 10);
    if (runtime)
        snprintf(runtime_text, sizeof runtime_text, "%d.%d", runtime / 1000, runtime % 1000 / 10);
    bool older = driver && driver / 1000 < runtime / 1000;
    doctor_note(d, check, older ? DOCTOR_FAIL : DOCTOR_PASS,
                older ? "update the driver, or use a CUDA runtime of its major version" : NULL,
                "driver %s, runtime %s%s", driver_text, runtime_text,
                older ? ": the driver is older by a major version" : "");
}

static void names_check(doctor *d, const brg_device *device)
{
    int count = 0;
    bool mig = false;
    char first[256] = "?";
    if (device->rt->get_device_count(&count))
        count = 0;
    for (int i = 0; i < count; i++) {
        char name[256] = "?";
        if (!device->rt->device_name || device->rt->device_name(name, sizeof name, i))
            continue;
        mig |= strstr(name, " MIG ") != NULL;
        if (!i)
            snprintf(first, sizeof first, "%s", name);
    }
    doctor_note(d, "GPUs", mig ? DOCTOR_WARN : DOCTOR_PASS,
                mig ? "give every rank a whole GPU" : NULL, "%d visible, the first is %s%s", count,
                first, mig ? "; MIG instances cannot reach each other's memory" : "");
}

/* What BRIGADE_DEVICE comes to, and why. */
static void device_check(doctor *d)
{
    static const char check[] = "BRIGADE_DEVICE";
    const char *text = getenv("BRIGADE_DEVICE");
    bool answers = false, automatic = !text || !*text || !strcasecmp(text, "auto");
    brg_device device;
    brg_status status = brg_cuda_open(&device, &answers);
    char why[1024] = "";
    if (status != BRG_OK)
        snprintf(why, sizeof why, "%s", brg_last_error());
    if (status == BRG_OK)
        names_check(d, &device);
    else
        doctor_note(d, "GPUs", answers ? DOCTOR_PASS : DOCTOR_ABSENT, NULL, "%s",
                    answers ? "one answers; Brigade cannot use it, see below" : why);
    if (!automatic && !strcasecmp(text, "host"))
        doctor_note(d, check, DOCTOR_PASS, NULL, "host, as BRIGADE_DEVICE says");
    else if (!automatic && strcasecmp(text, "cuda"))
        doctor_note(d, check, DOCTOR_FAIL, "set it to auto, host or cuda", "BRIGADE_DEVICE=%s",
                    text);
    else if (status == BRG_OK)
        doctor_note(d, check, DOCTOR_PASS, NULL, "cuda, %s",
                    automatic ? "since a GPU answers" : "as BRIGADE_DEVICE says");
    else if (!automatic)
        doctor_note(d, check, DOCTOR_FAIL, "mend what is named, or unset BRIGADE_DEVICE",
                    "cuda, as BRIGADE_DEVICE says, cannot be opened: %s", why);
    else if (status == BRG_ERR_INVALID_ARGUMENT)
        doctor_note(d, check, DOCTOR_FAIL, "correct the variable, or unset it", "%s", why);
    else
        doctor_note(d, check, answers ? DOCTOR_WARN : DOCTOR_PASS,
                    answers ? "mend what is named, or set BRIGADE_DEVICE=host" : NULL, "host%s%s",
                    answers ? ", although a GPU answers: " : ", since no GPU answers",
                    answers ? why : "");
}

void doctor_gpus(doctor *d)
{
    driver_check(d);
    versions_check(d);
    device_check(d);
}
