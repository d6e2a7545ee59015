/* SPDX-License-Identifier: Apache-2.0 */
/* The machine without its GPUs: shared memory, limits, clock, cores, topology. */
#include <errno.h>
#include <hwloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "tools/brigade/doctor.h"
#include "tools/brigade/run.h"

#define MIB (1024.0 * 1024)
#define SHM_SMALL (256 * MIB) /* Docker gives 64 MiB; every rank of NCCL takes some tens */
#define STACK_SMALL (8 * MIB) /* what Linux gives by default */
#define CLOCK_SLOW_NS 200.0   /* a clock that the kernel must be asked for takes longer */
enum { PCI_VENDOR_NVIDIA = 0x10de };

static void shm_check(doctor *d)
{
    static const char check[] = "/dev/shm";
    char total[32], left[32];
    struct statvfs fs;
    if (statvfs("/dev/shm", &fs)) {
        doctor_note(d, check, DOCTOR_FAIL, "mount a tmpfs there", "cannot be looked at: %s",
                    strerror(errno));
        return;
    }
    double all = (double)fs.f_blocks * (double)fs.f_frsize;
    double avail = (double)fs.f_bavail * (double)fs.f_frsize;
    bool small = all < SHM_SMALL, full = avail < SHM_SMALL / 4;
    doctor_note(d, check, small || full ? DOCTOR_WARN : DOCTOR_PASS,
                small  ? "start the container with --shm-size=1g or --ipc=host"
                : full ? "remove what dead processes have left in /dev/shm"
                       : NULL,
                "%s, %s of it free%s", cli_bytes(total, all), cli_bytes(left, avail),
                small || full ? ": NCCL fails, or crashes, when it is used up" : "");
}

static void stack_check(doctor *d)
{
    char size[32];
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit))
        return;
    bool small = limit.rlim_cur != RLIM_INFINITY && (double)limit.rlim_cur < STACK_SMALL;
    doctor_note(
        d, "stack", small ? DOCTOR_WARN : DOCTOR_PASS, small ? "ulimit -s 8192" : NULL, "%s%s",
        limit.rlim_cur == RLIM_INFINITY ? "unlimited" : cli_bytes(size, (double)limit.rlim_cur),
        small ? ": NCCL's search for a topology goes deep" : "");
}

static double reading_ns(void)
{
    enum { READINGS = 2000 };
    struct timespec first, last;
    clock_gettime(CLOCK_MONOTONIC, &first);
    for (int i = 0; i < READINGS; i++)
        clock_gettime(CLOCK_MONOTONIC, &last);
    return ((double)(last.tv_sec - first.tv_sec) * 1e9 + (double)(last.tv_nsec - first.tv_nsec)) /
           READINGS;
}

static void clock_check(doctor *d)
{
    char source[64] = "unknown";
    FILE *file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
    if (file && fgets(source, sizeof source, file))
        source[strcspn(source, "\n")] = 0;
    if (file)
        fclose(file);
    double ns = reading_ns();
    bool slow = ns > CLOCK_SLOW_NS;
    doctor_note(d, "clock", slow ? DOCTOR_WARN : DOCTOR_PASS,
                slow ? "boot with clocksource=tsc, or choose it under /sys/devices/system" : NULL,
                "source %s, %.0f ns a reading%s", source, ns,
                slow ? ": traces are made of readings" : "");
}

static void cores_check(doctor *d)
{
    int cores = run_cores();
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    doctor_note(
        d, "cores", cores < 2 ? DOCTOR_WARN : DOCTOR_PASS,
        cores < 2 ? "bind ranks to several cores each: numactl, --cpus-per-task, --bind-to" : NULL,
        "%d core%s may be used (affinity and quota), %ld CPUs are online%s", cores,
        cores == 1 ? "" : "s", online,
        cores < 2 ? ": NCCL's and Brigade's own threads need one beside the trainer's" : "");
}

/* GPUs on the bus, driver or not, by NUMA node: "2 GPUs: node 0: 0000:1b:00.0 ...". */
static void gpus_list(hwloc_topology_t topology, char *text, size_t size)
{
    int count = 0;
    size_t used = 0;
    text[0] = 0;
    for (hwloc_obj_t pci = NULL; (pci = hwloc_get_next_pcidev(topology, pci)) && used + 1 < size;) {
        const struct hwloc_pcidev_attr_s *attr = &pci->attr->pcidev;
        if (attr->vendor_id != PCI_VENDOR_NVIDIA || attr->class_id >> 8 != 0x03)
            continue;
        hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(topology, pci);
        int node = near && near->nodeset && hwloc_bitmap_weight(near->nodeset) == 1
                       ? hwloc_bitmap_first(near->nodeset)
                       : -1;
        char where[32] = "";
        if (node >= 0)
            snprintf(where, sizeof where, " (node %d)", node);
        int n = snprintf(text + used, size - used, "%s%04x:%02x:%02x.%x%s", count ? ", " : "",
                         attr->domain, attr->bus, attr->dev, attr->func, where);
        used += n > 0 ? (size_t)n : 0;
        count++;
    }
    if (!count)
        snprintf(text, size, "no NVIDIA GPU on the bus");
}

static void topology_check(doctor *d)
{
    static const char check[] = "topology";
    char gpus[1024];
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology)) {
        doctor_note(d, check, DOCTOR_ABSENT, NULL, "hwloc tells nothing");
        return;
    }
    hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (hwloc_topology_load(topology)) {
        doctor_note(d, check, DOCTOR_ABSENT, NULL, "hwloc tells nothing");
    } else {
        gpus_list(topology, gpus, sizeof gpus);
        doctor_note(d, check, DOCTOR_PASS, NULL, "packages %d, NUMA nodes %d, cores %d; %s",
                    hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE),
                    hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE),
                    hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE), gpus);
    }
    hwloc_topology_destroy(topology);
}

void doctor_machine(doctor *d)
{
    shm_check(d);
    stack_check(d);
    clock_check(d);
    cores_check(d);
    topology_check(d);
}
