/* SPDX-License-Identifier: Apache-2.0 */
/* The part of CUPTI's activity interface that the shim uses, declared here so that neither its
 * header nor its library is needed; tests/shim/cupti_api_check.cc compares with the header where
 * there is one. */
#ifndef BRIGADE_SHIM_INTERPOSE_CUPTI_API_H
#define BRIGADE_SHIM_INTERPOSE_CUPTI_API_H

#include <stddef.h>
#include <stdint.h>

#ifndef CUPTI_API_CHECK
typedef int cupti_result; /* CUptiResult; 0 is success */
typedef int cupti_kind;   /* CUpti_ActivityKind */
typedef void *cupti_context;
typedef void cupti_record; /* CUpti_Activity */
#endif

enum {
    CUPTI_KIND_CONCURRENT_KERNEL = 10, /* unlike kind 3 it lets kernels run side by side */
    CUPTI_FLUSH_FORCED = 1,            /* also records that are not complete */
    CUPTI_OLDEST = 13                  /* of CUDA 11.0 */
};
/* From CUDA 13.0 on, CUDA's own version times 10000 and more. The layout of later ones is not
 * known. */
#define CUPTI_TOO_NEW 140000

typedef void (*cupti_requested)(uint8_t **buffer, size_t *size, size_t *max_records);
typedef void (*cupti_completed)(cupti_context context, uint32_t stream, uint8_t *buffer,
                                size_t size, size_t valid);

/* F(name, parameters) */
#define CUPTI_FUNCTIONS(F)                                                                         \
    F(cuptiGetVersion, (uint32_t * version))                                                       \
    F(cuptiGetTimestamp, (uint64_t * timestamp))                                                   \
    F(cuptiGetResultString, (cupti_result result, const char **text))                              \
    F(cuptiActivityRegisterCallbacks, (cupti_requested requested, cupti_completed completed))      \
    F(cuptiActivityEnable, (cupti_kind kind))                                                      \
    F(cuptiActivityFlushAll, (uint32_t flag))                                                      \
    F(cuptiActivityGetNextRecord, (uint8_t * buffer, size_t valid, cupti_record * *record))        \
    F(cuptiActivityGetNumDroppedRecords, (cupti_context context, uint32_t stream, size_t * dropped))

/* What CUpti_ActivityKernel3 to 10, CUDA 7 to 13, have in common. */
typedef struct cupti_kernel {
    uint32_t kind;
    uint8_t unread0[12];
    uint64_t start, end; /* ns of CUPTI's clock; 0: unknown */
    uint64_t completed;
    uint32_t device, context, stream;
    uint8_t unread1[52];
    const char *name; /* mangled, CUPTI's own for good */
} cupti_kernel;

#endif
