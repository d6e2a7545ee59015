/* SPDX-License-Identifier: Apache-2.0 */
/* How a wrapper begins. */
#ifndef BRIGADE_SHIM_INTERPOSE_WRAP_H
#define BRIGADE_SHIM_INTERPOSE_WRAP_H

#define SHIM_EXPORT                                                                                \
    __attribute__((visibility("default"))) /* declared nowhere: the list is the declaration */

#define SHIM_ROUTE() shim_route_of(__builtin_return_address(0))

/* Defines `route`; returns from the wrapper if there is no such function. */
#define SHIM_ENTER(name)                                                                           \
    const shim_route route = SHIM_ROUTE();                                                         \
    if (!route.real || !route.real->fn.name)                                                       \
    return shim_missing(route.real, #name)

/* Not a call of the trainer's: NCCL calls its own functions through our names, on the caller's
 * thread and on its own. */
#define SHIM_QUIET() (route.inner || shim_inside > 0)

#endif
