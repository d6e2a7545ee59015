/* SPDX-License-Identifier: Apache-2.0 */
/* libbrigade-host is built with hidden symbols; these are its interface. */
#ifndef BRIGADE_SHIM_HOST_NAMES_H
#define BRIGADE_SHIM_HOST_NAMES_H

#define BRG_HOST_NAME __attribute__((visibility("default")))
/* As in NCCL: the name that tools may replace is weak, pncclX is the same function. */
#define BRG_NCCL_NAME __attribute__((visibility("default"), weak))

#endif
