/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA-runtime-shaped table, and the devices, which are but numbers. */
#include "sched/device/host_internal.h"

#define DEFAULT_DEVICES 16
#define MOST_URGENT (-5)

static _Thread_local int current_device;

int host_get_device_count(int *count)
{
    double value;
    if (!count)
        return BRG_RT_INVALID_VALUE;
    if (host_env_number("BRIGADE_HOST_DEVICES", DEFAULT_DEVICES, 1, HOST_MAX_DEVICES, &value))
        return BRG_RT_INITIALIZATION;
    if (value != (double)(int)value)
        return host_fail(BRG_RT_INITIALIZATION, BRG_ERR_INVALID_ARGUMENT,
                         "environment: BRIGADE_HOST_DEVICES=%g: expected a whole number", value);
    *count = (int)value;
    return BRG_RT_OK;
}

int host_get_device(int *device)
{
    if (!device)
        return BRG_RT_INVALID_VALUE;
    *device = current_device;
    return BRG_RT_OK;
}

int host_set_device(int device)
{
    int count = 0, error = host_get_device_count(&count);
    if (error)
        return error;
    if (device < 0 || device >= count)
        return BRG_RT_INVALID_DEVICE;
    current_device = device;
    return BRG_RT_OK;
}

static int stream_priority_range(int *least, int *greatest)
{
    if (!least || !greatest)
        return BRG_RT_INVALID_VALUE;
    *least = 0;
    *greatest = MOST_URGENT;
    return BRG_RT_OK;
}

static const char *error_string(int error)
{
    switch (error) {
    case BRG_RT_OK:
        return "no error";
    case BRG_RT_INVALID_VALUE:
        return "invalid value";
    case BRG_RT_NO_MEMORY:
        return "out of memory";
    case BRG_RT_INITIALIZATION:
        return host_thread_error();
    case BRG_RT_INVALID_DEVICE:
        return "no such device";
    case BRG_RT_NOT_READY:
        return "not ready";
    default:
        return "unknown error";
    }
}

const brg_runtime *brg_host_runtime(void)
{
    static const brg_runtime table = {
        .name = "host",
        .get_device_count = host_get_device_count,
        .set_device = host_set_device,
        .get_device = host_get_device,
        .device_synchronize = host_device_synchronize,
        .malloc_device = host_malloc_device,
        .free_device = host_free_device,
        .malloc_host = host_malloc_host,
        .free_host = host_free_host,
        .mem_get_info = host_mem_get_info,
        .memcpy_async = host_memcpy_async,
        .memset_async = host_memset_async,
        .stream_priority_range = stream_priority_range,
        .stream_create = host_stream_create,
        .stream_destroy = host_stream_destroy,
        .stream_synchronize = host_stream_synchronize,
        .stream_query = host_stream_query,
        .stream_wait_event = host_stream_wait_event,
        .event_create = host_event_create,
        .event_destroy = host_event_destroy,
        .event_record = host_event_record,
        .event_query = host_event_query,
        .event_synchronize = host_event_synchronize,
        .event_elapsed = host_event_elapsed,
        .launch_host_func = host_launch_host_func,
        .error_string = error_string,
    };
    return &table;
}
