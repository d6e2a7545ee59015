/* SPDX-License-Identifier: Apache-2.0 */
/* What a user of an installed Brigade writes; also compiled as C++. Pulls eight numbers to 1. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <brigade/brigade.h>

#define CHECK(call)                                                                                \
    if ((call) != BRG_OK)                                                                          \
    return fprintf(stderr, "%s: %s\n", #call, brg_last_error()), 1

int main(void)
{
    brg_context *ctx;
    brg_layout *layout;
    brg_scheduler *sched;
    brg_optimizer *adamw;
    brg_param param;
    brg_layout_options layout_options;
    brg_adamw_options options;
    memset(&param, 0, sizeof param);
    param.name = "w";
    param.num_dims = 1;
    param.shape[0] = 8;
    memset(&layout_options, 0, sizeof layout_options);
    memset(&options, 0, sizeof options);
    options.lr = 0.1;
    CHECK(brg_context_open(NULL, &ctx));
    layout_options.data_parallel_size = brg_context_world_size(ctx);
    CHECK(brg_layout_compute(&param, 1, &layout_options, &layout));
    CHECK(brg_scheduler_create(ctx, layout, NULL, &sched));
    CHECK(brg_adamw_create(sched, &options, &adamw));
    float *w = (float *)brg_param_data(sched, 0), *grad = (float *)brg_grad_data(sched, 0);
    for (int step = 0; step < 200; step++) {
        CHECK(brg_zero_grad(sched, NULL));
        CHECK(brg_param_wait(sched, 0, NULL));
        for (int i = 0; i < 8; i++)
            grad[i] = 2 * (w[i] - 1);
        CHECK(brg_grad_ready(sched, 0, NULL));
        CHECK(brg_finish_grad_sync(sched, NULL));
        CHECK(brg_step(adamw, NULL));
    }
    CHECK(brg_finish_param_sync(sched, NULL));
    int near_one = fabsf(w[0] - 1) < 0.02f && fabsf(w[7] - 1) < 0.02f;
    printf("brigade %s: %s\n", brg_version(), near_one ? "learned" : "did not learn");
    brg_optimizer_destroy(adamw);
    brg_scheduler_destroy(sched);
    brg_layout_destroy(layout);
    brg_context_close(ctx);
    return !near_one;
}
