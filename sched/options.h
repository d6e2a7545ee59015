/* SPDX-License-Identifier: Apache-2.0 */
/* Options structs begin with their size, so that they can grow: what a caller's struct does not
 * have is zero, which means default; what it has more is ignored. A size of 0 means the struct of
 * version 1.0. */
#ifndef BRIGADE_SCHED_OPTIONS_H
#define BRIGADE_SCHED_OPTIONS_H

#include <string.h>

#include "sched/status.h"

/* Fills `options`, a struct of `bytes` bytes that begins with a size_t, from the caller's, which
 * may be NULL. All structs have their version 1.0 size today. `name` is for the message. */
static inline brg_status brg_options_copy(const char *name, void *options, size_t bytes,
                                          const void *given)
{
    size_t size = 0;
    memset(options, 0, bytes);
    if (given) {
        memcpy(&size, given, sizeof size);
        if (size && size < sizeof size)
            return brg_fail(BRG_ERR_INVALID_ARGUMENT, "%s: size is %zu, expected sizeof or 0", name,
                            size);
        memcpy(options, given, size && size < bytes ? size : bytes);
    }
    memcpy(options, &bytes, sizeof bytes);
    return BRG_OK;
}

#endif
