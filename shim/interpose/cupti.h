/* SPDX-License-Identifier: Apache-2.0 */
/* CUPTI, found when the program runs. */
#ifndef BRIGADE_SHIM_INTERPOSE_CUPTI_H
#define BRIGADE_SHIM_INTERPOSE_CUPTI_H

#include <stdbool.h>
#include <stddef.h>

#include "shim/interpose/cupti_api.h"

typedef struct shim_cupti {
#define F(name, parameters) cupti_result(*name) parameters;
    CUPTI_FUNCTIONS(F)
#undef F
    uint32_t version;
    char path[512];
} shim_cupti;

/* The file that BRIGADE_CUPTI names; else the copy that is loaded; else that of the CUDA whose
 * libraries are loaded; else by name. False after a reason in `why`. */
bool shim_cupti_load(shim_cupti *cupti, char *why, size_t why_bytes);

#endif
