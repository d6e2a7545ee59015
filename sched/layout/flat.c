/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/layout/plan.h"

#include "sched/status.h"

/* Backprop order, back to back. With pad_param_starts the gap in front of a parameter belongs to
 * the parameter's bucket, so that buckets stay contiguous and none of a buffer is outside of them.
 */
brg_status brg_plan_flat(const brg_plan_request *request, brg_plan *plan)
{
    brg_status status = brg_plan_init(plan, request->num_items);
    if (status != BRG_OK)
        return status;

    int64_t position = 0;
    for (int i = 0; i < request->num_items; i++) {
        const brg_plan_item *item = &request->items[i];
        if (request->pad_param_starts)
            position = brg_align_start(position);
        brg_plan_place(plan, item, position, -1);
        position += item->numel;
        BRG_TRY(brg_plan_check_end(position, item, request->num_shards), fail);

        int64_t length = position - brg_plan_end(plan);
        bool full = request->bucket_size != BRG_BUCKET_SIZE_NONE && length >= request->bucket_size;
        if (full || i + 1 == request->num_items)
            brg_plan_close(plan, position, length);
    }
    return BRG_OK;

fail:
    brg_plan_free(plan);
    return status;
}
