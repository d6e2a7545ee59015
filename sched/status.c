/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/status.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MESSAGE_BYTES 1024

static _Thread_local char message[MESSAGE_BYTES];

const char *brg_status_str(brg_status status)
{
    switch (status) {
    case BRG_OK:
        return "ok";
    case BRG_IN_PROGRESS:
        return "in progress";
    case BRG_ERR_INVALID_ARGUMENT:
        return "invalid argument";
    case BRG_ERR_NO_MEMORY:
        return "out of memory";
    case BRG_ERR_IO:
        return "input/output error";
    case BRG_ERR_FORMAT:
        return "malformed input";
    case BRG_ERR_NO_DATA:
        return "no data";
    case BRG_ERR_MISMATCH:
        return "ranks disagree";
    case BRG_ERR_PEER_LOST:
        return "lost a peer";
    case BRG_ERR_TIMEOUT:
        return "timed out";
    case BRG_ERR_DEVICE:
        return "device error";
    case BRG_ERR_STATE:
        return "call out of order";
    case BRG_ERR_NON_FINITE:
        return "non-finite or too large gradient";
    case BRG_ERR_UNSUPPORTED:
        return "not supported here";
    case BRG_ERR_READINESS:
        return "gradient readiness changed";
    }
    return "unknown status";
}

const char *brg_last_error(void)
{
    return message;
}

const char *brg_version(void)
{
    return BRIGADE_VERSION;
}

brg_status brg_vfail(brg_status status, const char *format, va_list args)
{
    char text[MESSAGE_BYTES]; /* the arguments may point into the old message */
    vsnprintf(text, sizeof text, format, args);
    memcpy(message, text, sizeof message);
    return status;
}

brg_status brg_fail(brg_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    brg_vfail(status, format, args);
    va_end(args);
    return status;
}

brg_status brg_fail_prefix(brg_status status, const char *format, ...)
{
    char prefix[MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    return brg_fail(status, "%s%s", prefix, message);
}

static brg_log_level log_threshold(void)
{
    static const char *const levels[] = {"error", "warn", "info", "debug"};
    static atomic_flag complained = ATOMIC_FLAG_INIT;
    const char *value = getenv("BRIGADE_LOG");
    if (!value || !*value)
        return BRG_LOG_WARN;
    for (int i = 0; i < 4; i++)
        if (!strcasecmp(value, levels[i]))
            return (brg_log_level)i;
    if (!atomic_flag_test_and_set(&complained))
        fprintf(stderr,
                "brigade: warning: environment variable BRIGADE_LOG is \"%s\", expected error, "
                "warn, info or debug\n",
                value);
    return BRG_LOG_WARN;
}

void brg_log(brg_log_level level, const char *format, ...)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    if (level > log_threshold())
        return;
    char text[MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "brigade: %s: %s\n", names[level], text);
}
