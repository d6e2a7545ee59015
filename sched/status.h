/* SPDX-License-Identifier: Apache-2.0 */
/* How the library reports errors. A function that fails calls brg_fail() where the failure is known
 * best and returns its status; callers pass it on. */
#ifndef BRIGADE_SCHED_STATUS_H
#define BRIGADE_SCHED_STATUS_H

#include <stdarg.h>
#include <stdbool.h>

#include "brigade/status.h"

/* Sets the calling thread's message and returns `status`. */
brg_status brg_fail(brg_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
brg_status brg_vfail(brg_status status, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));

/* Puts text in front of the calling thread's message: "rank 3: <message>". Returns `status`. */
brg_status brg_fail_prefix(brg_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Evaluates `expr`; on anything but BRG_OK stores it in the local `status` and goes to `label`. */
#define BRG_TRY(expr, label)                                                                       \
    do {                                                                                           \
        status = (expr);                                                                           \
        if (status != BRG_OK)                                                                      \
            goto label;                                                                            \
    } while (0)

/* One line on stderr, "brigade: ..." with the rank in front when it is known. Never stdout. Level
 * from BRIGADE_LOG: error, warn (default), info, debug. */
typedef enum brg_log_level {
    BRG_LOG_ERROR,
    BRG_LOG_WARN,
    BRG_LOG_INFO,
    BRG_LOG_DEBUG
} brg_log_level;
void brg_log(brg_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
