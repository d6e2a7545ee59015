/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/device/thread_error.h"

#include <stdio.h>
#include <string.h>

void thread_error_set(thread_error *error, brg_status cause, const char *format, va_list args)
{
    char text[THREAD_ERROR_BYTES];
    vsnprintf(text, sizeof text, format, args);
    memcpy(error->text, text, sizeof text);
    error->cause = cause;
}
