/* SPDX-License-Identifier: Apache-2.0 */
/* Uses what only the shim has, so that the linker keeps it behind an NCCL that has all the rest. */
void ncclResetDebugInit(void);
extern void (*const late_use)(void);
void (*const late_use)(void) = ncclResetDebugInit;
