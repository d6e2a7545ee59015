/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks of a program on the GPUs that there are: one each, or both on the same. */
#ifndef TESTS_SHIM_GPU_H
#define TESTS_SHIM_GPU_H

#include <string.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

extern "C" {
#include "sched/device/cuda.h"
#include "sched/device/device.h"
}

/* 0: none answers, brg_last_error() says why. */
inline int gpu_count()
{
    brg_device device = {};
    bool answers = false;
    int count = 0;
    if (brg_cuda_open(&device, &answers) != BRG_OK || !answers ||
        device.rt->get_device_count(&count))
        return 0;
    return count;
}

/* What programs on GPUs need from this environment, the user's settings of NCCL among it. */
inline std::map<std::string, std::string> gpu_environment()
{
    std::map<std::string, std::string> environment;
    for (char **item = environ; *item; item++)
        for (const char *prefix : {"LD_LIBRARY_PATH=", "PYTHON", "NCCL_", "TORCH_", "CUDA_"})
            if (!strncmp(*item, prefix, strlen(prefix))) {
                const std::string text = *item;
                const size_t equals = text.find('=');
                environment[text.substr(0, equals)] = text.substr(equals + 1);
            }
    return environment;
}

/* NCCL refuses two ranks of one host on one GPU. Each says here that it is a host of its own, and
 * they talk over sockets. Their kernels take turns on the GPU. */
inline std::vector<std::string> sharing_gpu(const std::vector<std::string> &program)
{
    std::vector<std::string> words = {
        "/bin/sh", "-c",
        "NCCL_HOSTID=rank$RANK NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 "
        "NCCL_MNNVL_ENABLE=0 NCCL_NVLS_ENABLE=0 LOCAL_RANK=0 exec \"$0\" \"$@\""};
    words.insert(words.end(), program.begin(), program.end());
    return words;
}

#endif
