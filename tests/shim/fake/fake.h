/* SPDX-License-Identifier: Apache-2.0 */
/* What the fake libraries let a test see and do. */
#ifndef TESTS_SHIM_FAKE_H
#define TESTS_SHIM_FAKE_H

#include <stdint.h>

void fake_nccl_note(const char *name);
int fake_nccl_calls(const char *name); /* of the real functions, by whatever name */
int fake_nccl_launched(void);          /* operations that a real NCCL would have put on a stream */

void fake_cuda_capture(void *stream); /* is being captured, in global mode; NULL: none */
void fake_cuda_implicit(int on);      /* asking about the legacy stream fails, as while capturing */
void fake_cuda_fail_records(int on);
/* What is recorded from here on happens so much later, and not before this is called with 0. */
void fake_cuda_behind(int64_t ns);
int fake_cuda_records(void);
int fake_cuda_sins(void);

/* A kernel ran; times of CLOCK_MONOTONIC. */
void fake_cupti_kernel(const char *name, unsigned stream, uint64_t t0_ns, uint64_t t1_ns);

#endif
