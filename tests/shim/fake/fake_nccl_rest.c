/* SPDX-License-Identifier: Apache-2.0 */
/* The fake's other functions, which count and succeed, and NCCL's first name for all of them. */
#include "tests/shim/fake/fake.h"

#include <string.h>

#include "shim/interpose/nccl_api.h"

#define WEAK __attribute__((visibility("default"), weak))

#define RESULT_FORWARD(result) ncclSuccess
#define RESULT_OWN(result) ncclSuccess
#define RESULT_DATA(result) ncclSuccess
#define RESULT_TEXT(result) "fake"
#define RESULT_VALUE(result) ((result){0})
#define RESULT_NOTHING(result)

#define F(kind, result, name, params, args, what)                                                  \
    WEAK result p##name params                                                                     \
    {                                                                                              \
        fake_nccl_note(#name);                                                                     \
        return RESULT_##kind(result);                                                              \
    }                                                                                              \
    WEAK result name params                                                                        \
    {                                                                                              \
        return p##name args;                                                                       \
    }
#ifdef FAKE_OLD
BRG_NCCL_2_19(F)
#else
BRG_NCCL_ALL(F)
#endif
