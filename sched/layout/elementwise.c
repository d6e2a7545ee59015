/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/layout/plan.h"

#include "sched/status.h"

/* Ends the open bucket at `position` and returns where the next one starts. What lies between
 * parameters counts as unpadded, what lies behind `position` does not. */
static int64_t close_bucket(brg_plan *plan, int64_t position, int64_t divisor)
{
    int64_t end = brg_round_up(position, divisor);
    brg_plan_close(plan, end, position - brg_plan_end(plan));
    return end;
}

brg_status brg_plan_elementwise(const brg_plan_request *request, brg_plan *plan)
{
    int64_t divisor =
        brg_plan_bucket_divisor(request->num_shards, request->pad_for_high_bus_bandwidth);
    brg_status status = brg_plan_init(plan, request->num_items);
    if (status != BRG_OK)
        return status;

    int64_t position = 0;
    bool open = false; /* the bucket at `position` has parameters */
    for (int i = 0; i < request->num_items; i++) {
        const brg_plan_item *item = &request->items[i];
        position = brg_align_start(position);
        if (item->shared_embedding && open)
            position = close_bucket(plan, position, divisor);
        brg_plan_place(plan, item, position, -1);
        position += item->numel;
        open = true;

        bool full = request->bucket_size != BRG_BUCKET_SIZE_NONE &&
                    position - brg_plan_end(plan) >= request->bucket_size;
        if (full || item->shared_embedding || i + 1 == request->num_items) {
            position = close_bucket(plan, position, divisor);
            open = false;
        }
        BRG_TRY(brg_plan_check_end(position, item, request->num_shards), fail);
    }
    return BRG_OK;

fail:
    brg_plan_free(plan);
    return status;
}
