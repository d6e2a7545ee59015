/* SPDX-License-Identifier: Apache-2.0 */
/* Threads near GPUs, on a made-up machine of two packages with one CPU and one GPU each. */
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

extern "C" {
#include "sched/device/affinity.h"
}

namespace
{

int pci_bus_id(char *text, int bytes, int device)
{
    static const char *const ids[] = {"0000:1B:00.0", "0000:C1:00.0", "0000:99:00.0"};
    snprintf(text, (size_t)bytes, "%s", ids[device]);
    return 0;
}

brg_device gpu_machine()
{
    static brg_runtime rt = *brg_host_runtime();
    rt.device_pci_bus_id = pci_bus_id;
    setenv("HWLOC_XMLFILE", BRIGADE_TEST_DATA "/topology.xml", 1);
    return {&rt, brg_host_nccl(), nullptr};
}

/* Binds a thread that may use `allowed`; returns where the library says it is, and checks it. */
std::string bind(const brg_device &device, int index, const cpu_set_t &allowed)
{
    std::string where = "?";
    std::thread([&] {
        char text[64] = "?";
        cpu_set_t now;
        ASSERT_EQ(pthread_setaffinity_np(pthread_self(), sizeof allowed, &allowed), 0);
        EXPECT_EQ(brg_bind_near_device(&device, index, pthread_self(), text, sizeof text), BRG_OK);
        where = text;
        pthread_getaffinity_np(pthread_self(), sizeof now, &now);
        if (where.empty()) {
            EXPECT_TRUE(CPU_EQUAL(&now, &allowed)) << "not bound, so not moved";
        } else {
            EXPECT_EQ(CPU_COUNT(&now), 1);
            EXPECT_TRUE(CPU_ISSET(atoi(text), &now));
        }
    }).join();
    return where;
}

TEST(Affinity, BindsNearTheDeviceWithinWhatIsAllowed)
{
    brg_device device = gpu_machine();
    cpu_set_t all, first;
    sched_getaffinity(0, sizeof all, &all);
    if (!CPU_ISSET(0, &all) || !CPU_ISSET(1, &all))
        GTEST_SKIP() << "needs CPUs 0 and 1";
    CPU_ZERO(&first);
    CPU_SET(0, &first);
    EXPECT_EQ(bind(device, 0, all), "0");
    EXPECT_EQ(bind(device, 1, all), "1");
    EXPECT_EQ(bind(device, 1, first), "") << "its CPU is not allowed";
    EXPECT_EQ(bind(device, 2, all), "") << "a device that the topology lacks";
    brg_device host = {brg_host_runtime(), brg_host_nccl(), nullptr};
    EXPECT_EQ(bind(host, 0, all), "");
}

} // namespace
