/* SPDX-License-Identifier: Apache-2.0 */
/* Options structs begin with their size, so that they can grow: what a caller's struct does not
 * have is zero, which means default; what it has more is ignored. A size of 0 means the struct of
 * version 1.0. */
#ifndef BRIGADE_SCHED_OPTIONS_H
#define BRIGADE_SCHED_OPTIONS_H

#include <string.h>

/* *copy = the options in force. All structs have their version 1.0 size today. */
#define BRG_OPTIONS_COPY(copy, given)                                                              \
    do {                                                                                           \
        memset((copy), 0, sizeof *(copy));                                                         \
        if (given) {                                                                               \
            size_t size_ = (given)->size ? (given)->size : sizeof *(copy);                         \
            memcpy((copy), (given), size_ < sizeof *(copy) ? size_ : sizeof *(copy));              \
        }                                                                                          \
        (copy)->size = sizeof *(copy);                                                             \
    } while (0)

#endif
