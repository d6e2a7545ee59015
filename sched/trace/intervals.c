/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/trace/intervals.h"

#include <stdlib.h>

void brg_interval_set_free(brg_interval_set *set)
{
    free(set->at);
    *set = (brg_interval_set){0};
}

brg_status brg_interval_set_add(brg_interval_set *set, int64_t t0, int64_t t1)
{
    if (t1 <= t0)
        return BRG_OK;
    if (set->count == set->capacity) {
        size_t capacity = set->capacity ? 2 * set->capacity : 64;
        brg_interval *at = reallocarray(set->at, capacity, sizeof *at);
        if (!at)
            return brg_fail(BRG_ERR_NO_MEMORY, "no memory for %zu intervals", capacity);
        set->at = at;
        set->capacity = capacity;
    }
    set->at[set->count++] = (brg_interval){.t0 = t0, .t1 = t1};
    return BRG_OK;
}

static int interval_compare(const void *a, const void *b)
{
    const brg_interval *x = a, *y = b;
    return (x->t0 > y->t0) - (x->t0 < y->t0);
}

void brg_interval_set_normalize(brg_interval_set *set)
{
    if (!set->count)
        return;
    qsort(set->at, set->count, sizeof *set->at, interval_compare);
    size_t last = 0;
    for (size_t i = 1; i < set->count; i++) {
        if (set->at[i].t0 > set->at[last].t1)
            set->at[++last] = set->at[i];
        else if (set->at[i].t1 > set->at[last].t1)
            set->at[last].t1 = set->at[i].t1;
    }
    set->count = last + 1;
    int64_t before = 0;
    for (size_t i = 0; i < set->count; i++) {
        set->at[i].before = before;
        before += set->at[i].t1 - set->at[i].t0;
    }
}

brg_status brg_interval_set_intersect(const brg_interval_set *a, const brg_interval_set *b,
                                      brg_interval_set *out)
{
    for (size_t i = 0, j = 0; i < a->count && j < b->count;) {
        int64_t t0 = a->at[i].t0 > b->at[j].t0 ? a->at[i].t0 : b->at[j].t0;
        int64_t t1 = a->at[i].t1 < b->at[j].t1 ? a->at[i].t1 : b->at[j].t1;
        brg_status status = brg_interval_set_add(out, t0, t1);
        if (status != BRG_OK)
            return status;
        if (a->at[i].t1 < b->at[j].t1)
            i++;
        else
            j++;
    }
    brg_interval_set_normalize(out);
    return BRG_OK;
}

brg_status brg_interval_set_subtract(const brg_interval_set *a, const brg_interval_set *b,
                                     brg_interval_set *out)
{
    brg_status status = BRG_OK;
    size_t j = 0;
    for (size_t i = 0; i < a->count && status == BRG_OK; i++) {
        int64_t from = a->at[i].t0;
        while (j < b->count && b->at[j].t1 <= from)
            j++;
        /* An interval of b may reach into the next one of a: j stays on it. */
        for (size_t k = j; status == BRG_OK && k < b->count && b->at[k].t0 < a->at[i].t1; k++) {
            status = brg_interval_set_add(out, from, b->at[k].t0);
            from = b->at[k].t1;
            j = k;
        }
        if (status == BRG_OK)
            status = brg_interval_set_add(out, from, a->at[i].t1);
    }
    brg_interval_set_normalize(out);
    return status;
}

/* Length of the part of the set before t. */
static int64_t length_before(const brg_interval_set *set, int64_t t)
{
    size_t low = 0, high = set->count; /* the first interval that begins at t or later */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (set->at[middle].t0 < t)
            low = middle + 1;
        else
            high = middle;
    }
    if (!low)
        return 0;
    const brg_interval *last = &set->at[low - 1];
    return last->before + (last->t1 < t ? last->t1 : t) - last->t0;
}

int64_t brg_interval_set_within(const brg_interval_set *set, int64_t t0, int64_t t1)
{
    return t1 > t0 ? length_before(set, t1) - length_before(set, t0) : 0;
}
