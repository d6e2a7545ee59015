/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/device/affinity.h"
#include "sched/status.h"

#include <hwloc.h>
#include <sched.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static hwloc_topology_t machine; /* NULL: could not be read; constant after that, never freed */

static void load(void)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology))
        return;
#if HWLOC_API_VERSION >= 0x00020100
    /* plugins that would start the GPU libraries by themselves */
    static const char *const plugins[] = {"cuda", "nvml", "opencl", "gl", "rsmi", "levelzero"};
    for (size_t i = 0; i < sizeof plugins / sizeof plugins[0]; i++)
        hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                      plugins[i]);
#endif
    if (hwloc_topology_set_type_filter(topology, HWLOC_OBJ_PCI_DEVICE,
                                       HWLOC_TYPE_FILTER_KEEP_IMPORTANT) ||
        hwloc_topology_load(topology))
        hwloc_topology_destroy(topology);
    else
        machine = topology;
}

/* The CPUs near the PCI device; NULL: not known. */
static hwloc_const_cpuset_t find_near(const char *pci_bus_id)
{
    hwloc_obj_t object = hwloc_get_pcidev_by_busidstring(machine, pci_bus_id);
    object = object ? hwloc_get_non_io_ancestor_obj(machine, object) : NULL;
    return object ? object->cpuset : NULL;
}

brg_status brg_bind_near_device(const brg_device *device, int index, pthread_t thread, char *where,
                                size_t bytes)
{
    char pci_bus_id[32];
    *where = 0;
    if (!device->rt->device_pci_bus_id)
        return BRG_OK;
    brg_status status = brg_rt_status(
        device, device->rt->device_pci_bus_id(pci_bus_id, sizeof pci_bus_id, index), "PCI bus id");
    if (status != BRG_OK)
        return status;
    pthread_once(&once, load);
    hwloc_const_cpuset_t near_cpus = machine ? find_near(pci_bus_id) : NULL;
    cpu_set_t allowed, chosen;
    int error = pthread_getaffinity_np(thread, sizeof allowed, &allowed);
    hwloc_bitmap_t list = hwloc_bitmap_alloc();
    if (!near_cpus || error || !list)
        goto out;
    CPU_ZERO(&chosen);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && hwloc_bitmap_isset(near_cpus, (unsigned)cpu)) {
            CPU_SET(cpu, &chosen);
            hwloc_bitmap_set(list, (unsigned)cpu);
        }
    if (CPU_COUNT(&chosen) == 0)
        goto out;
    error = pthread_setaffinity_np(thread, sizeof chosen, &chosen);
    if (!error)
        hwloc_bitmap_list_snprintf(where, bytes, list);
out:
    hwloc_bitmap_free(list);
    return error ? brg_fail(BRG_ERR_DEVICE, "cannot bind a thread near device %s: %s", pci_bus_id,
                            strerror(error))
                 : BRG_OK;
}
