/* SPDX-License-Identifier: Apache-2.0 */
/* What a table keeps of a thread's last failure: each has one of these per thread. */
#ifndef BRIGADE_SCHED_DEVICE_THREAD_ERROR_H
#define BRIGADE_SCHED_DEVICE_THREAD_ERROR_H

#include <stdarg.h>

#include "brigade/status.h"

#define THREAD_ERROR_BYTES 768

typedef struct thread_error {
    brg_status cause;
    char text[THREAD_ERROR_BYTES];
} thread_error;

/* The arguments may point into the old text. */
void thread_error_set(thread_error *error, brg_status cause, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

#endif
