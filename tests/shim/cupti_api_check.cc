/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled where CUPTI's own header is: the shim's declarations are its, and so is the layout of
 * what it reads, in every version of the record that this header knows. */
#include <cuda.h>
#include <cupti.h>

#include <cstddef>

#define CUPTI_API_CHECK
typedef CUptiResult cupti_result;
typedef CUpti_ActivityKind cupti_kind;
typedef CUcontext cupti_context;
typedef CUpti_Activity cupti_record;
#include "shim/interpose/cupti_api.h"

static_assert(sizeof(CUptiResult) == 4 && sizeof(CUpti_ActivityKind) == 4, "int to the shim");
static_assert(CUPTI_SUCCESS == 0, "results");
static_assert(int{CUPTI_KIND_CONCURRENT_KERNEL} == int{CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL}, "");
static_assert(int{CUPTI_FLUSH_FORCED} == int{CUPTI_ACTIVITY_FLAG_FLUSH_FORCED}, "");
static_assert(CUPTI_API_VERSION < CUPTI_TOO_NEW, "look at the records of this version");

#define F(name, parameters)                                                                        \
    [[maybe_unused]] static cupti_result(*const check_##name) parameters = &name;
CUPTI_FUNCTIONS(F)
#undef F

#define SAME(type, mine, theirs)                                                                   \
    static_assert(offsetof(cupti_kernel, mine) == offsetof(type, theirs) &&                        \
                      sizeof(cupti_kernel::mine) == sizeof(type::theirs),                          \
                  #type "::" #theirs)
#define SAME_KERNEL(type)                                                                          \
    SAME(type, kind, kind);                                                                        \
    SAME(type, start, start);                                                                      \
    SAME(type, end, end);                                                                          \
    SAME(type, completed, completed);                                                              \
    SAME(type, device, deviceId);                                                                  \
    SAME(type, context, contextId);                                                                \
    SAME(type, stream, streamId);                                                                  \
    SAME(type, name, name)

/* Which of them CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL gives: 5 in CUDA 11.0, ..., 10 in 13. */
SAME_KERNEL(CUpti_ActivityKernel5);
#if CUPTI_API_VERSION >= 14
SAME_KERNEL(CUpti_ActivityKernel6);
#endif
#if CUPTI_API_VERSION >= 17
SAME_KERNEL(CUpti_ActivityKernel7);
SAME_KERNEL(CUpti_ActivityKernel8);
#endif
#if CUPTI_API_VERSION >= 18
SAME_KERNEL(CUpti_ActivityKernel9);
#endif
#if CUPTI_API_VERSION >= 130000
SAME_KERNEL(CUpti_ActivityKernel10);
#endif
