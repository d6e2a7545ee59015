/* SPDX-License-Identifier: Apache-2.0 */
/* What the trainer of the GPU tests computes on streams. */
#ifndef BRIGADE_TESTS_GPU_TRAINER_KERNELS_H
#define BRIGADE_TESTS_GPU_TRAINER_KERNELS_H

#include <stdint.h>

/* *step += 1 */
void gpu_count(int64_t *step, void *stream);
/* grad[i] += contribution(rank, *step, param_id, i) + 0.125 * param[i] */
void gpu_gradient(float *grad, const float *param, int64_t numel, int rank, const int64_t *step,
                  int param_id, uint64_t seed, float feedback, void *stream);

#endif
