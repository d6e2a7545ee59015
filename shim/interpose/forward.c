/* SPDX-License-Identifier: Apache-2.0 */
/* The wrappers that need no thought, generated from the list. */
#include "shim/interpose/internal.h"
#include "shim/interpose/wrap.h"

#define BRG_STRIP(...) __VA_ARGS__
#define BRG_OP(func, address, count, per_rank, type, op, comm, stream)                             \
    {                                                                                              \
        func, address, count, per_rank, (int)(type), op, comm, stream                              \
    }

#define BRG_PASS(result, name, params, args, missing)                                              \
    SHIM_EXPORT result name params                                                                 \
    {                                                                                              \
        const shim_route route = SHIM_ROUTE();                                                     \
        if (!route.real || !route.real->fn.name) {                                                 \
            ncclResult_t why = shim_missing(route.real, #name);                                    \
            (void)why;                                                                             \
            return missing;                                                                        \
        }                                                                                          \
        return route.real->fn.name args;                                                           \
    }

#define BRG_MAKE_OWN(result, name, params, args, what)
#define BRG_MAKE_FORWARD(result, name, params, args, what)                                         \
    SHIM_EXPORT result name params                                                                 \
    {                                                                                              \
        SHIM_ENTER(name);                                                                          \
        shim_inside++;                                                                             \
        result outcome = route.real->fn.name args;                                                 \
        shim_inside--;                                                                             \
        return outcome;                                                                            \
    }
#define BRG_MAKE_TEXT(result, name, params, args, what)                                            \
    BRG_PASS(result, name, params, args,                                                           \
             why == ncclSystemError ? "no NCCL library found" : "not in this NCCL")
#define BRG_MAKE_VALUE(result, name, params, args, what)                                           \
    BRG_PASS(result, name, params, args, (result){0})
#define BRG_MAKE_NOTHING(result, name, params, args, what) BRG_PASS(result, name, params, args, )
#define BRG_MAKE_DATA(result, name, params, args, what)                                            \
    SHIM_EXPORT result name params                                                                 \
    {                                                                                              \
        SHIM_ENTER(name);                                                                          \
        if (SHIM_QUIET())                                                                          \
            return route.real->fn.name args;                                                       \
        const shim_op op_of_call = BRG_OP what;                                                    \
        shim_call call;                                                                            \
        shim_op_begin(route.real, &op_of_call, &call);                                             \
        shim_inside++;                                                                             \
        result outcome = route.real->fn.name args;                                                 \
        shim_inside--;                                                                             \
        shim_op_end(route.real, &op_of_call, &call, outcome);                                      \
        return outcome;                                                                            \
    }

#define F(kind, result, name, params, args, what) BRG_MAKE_##kind(result, name, params, args, what)
BRG_NCCL_ALL(F)
