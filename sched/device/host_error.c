/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/device/host_internal.h"

#include <errno.h>
#include <linux/futex.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static _Thread_local thread_error failure;

int host_fail(int code, brg_status cause, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    thread_error_set(&failure, cause, format, args);
    va_end(args);
    return code;
}

const char *host_thread_error(void)
{
    return failure.text;
}

brg_status brg_host_last_cause(void)
{
    return failure.cause;
}

uint64_t host_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void host_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns, bool shared)
{
    struct timespec limit = {.tv_sec = (time_t)(timeout_ns / 1000000000u),
                             .tv_nsec = (long)(timeout_ns % 1000000000u)};
    syscall(SYS_futex, word, shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, value,
            timeout_ns ? &limit : NULL, NULL, 0);
}

void host_futex_wake(_Atomic uint32_t *word, bool shared)
{
    syscall(SYS_futex, word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void host_sleep_ns(uint64_t ns)
{
    struct timespec pause = {.tv_sec = (time_t)(ns / 1000000000u),
                             .tv_nsec = (long)(ns % 1000000000u)};
    nanosleep(&pause, NULL);
}

int host_env_number(const char *name, double fallback, double min, double max, double *value)
{
    const char *text = getenv(name);
    if (!text || !*text) {
        *value = fallback;
        return BRG_NCCL_OK;
    }
    char *end;
    errno = 0;
    double number = strtod(text, &end);
    if (errno || end == text || *end || !isfinite(number) || number < min || number > max)
        return host_fail(BRG_NCCL_INVALID_USAGE, BRG_ERR_INVALID_ARGUMENT,
                         "environment: %s=%s: expected a number from %g to %g", name, text, min,
                         max);
    *value = number;
    return BRG_NCCL_OK;
}
