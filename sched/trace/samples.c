/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/trace/samples.h"

#include <stdlib.h>

void brg_samples_free(brg_samples *samples)
{
    free(samples->at);
    *samples = (brg_samples){0};
}

brg_status brg_samples_add(brg_samples *samples, uint64_t key, uint32_t metric, uint32_t step,
                           double value)
{
    if (samples->count == samples->capacity) {
        size_t capacity = samples->capacity ? 2 * samples->capacity : 256;
        brg_sample *at = reallocarray(samples->at, capacity, sizeof *at);
        if (!at)
            return brg_fail(BRG_ERR_NO_MEMORY, "no memory for %zu samples", capacity);
        samples->at = at;
        samples->capacity = capacity;
    }
    samples->at[samples->count++] =
        (brg_sample){.key = key, .metric = metric, .step = step, .value = value};
    return BRG_OK;
}

static int place_compare(const brg_sample *x, const brg_sample *y)
{
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    if (x->metric != y->metric)
        return x->metric < y->metric ? -1 : 1;
    return 0;
}

static int sample_compare(const void *a, const void *b)
{
    const brg_sample *x = a, *y = b;
    int place = place_compare(x, y);
    return place ? place : (x->step > y->step) - (x->step < y->step);
}

void brg_samples_sort(brg_samples *samples)
{
    if (samples->count)
        qsort(samples->at, samples->count, sizeof *samples->at, sample_compare);
}

/* The first sample whose place is not before (key, metric). */
static size_t place_find(const brg_samples *samples, uint64_t key, uint32_t metric)
{
    const brg_sample wanted = {.key = key, .metric = metric};
    size_t low = 0, high = samples->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (place_compare(&samples->at[middle], &wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static size_t place_end(const brg_samples *samples, uint64_t key, uint32_t metric, size_t first)
{
    size_t end = first;
    while (end < samples->count && samples->at[end].key == key && samples->at[end].metric == metric)
        end++;
    return end;
}

static int value_compare(const void *a, const void *b)
{
    const brg_sample *x = a, *y = b;
    return (x->value > y->value) - (x->value < y->value);
}

/* The value of this rank among `zeros` zeros and then the sorted samples. */
static double ranked(const brg_sample *sorted, size_t count, uint64_t zeros, uint64_t rank)
{
    if (rank < zeros)
        return 0;
    return rank - zeros < count ? sorted[rank - zeros].value : 0;
}

/* Statistics of `count` samples' values; sorts them by value. */
static brg_stat stat_of(brg_sample *samples, size_t count, uint64_t zeros)
{
    uint64_t n = count + zeros;
    if (!n)
        return (brg_stat){0};
    if (count)
        qsort(samples, count, sizeof *samples, value_compare);
    return (brg_stat){
        .median = ranked(samples, count, zeros, (n - 1) / 2),
        .p95 = ranked(samples, count, zeros, n - 1 - n / 20),
        .min = ranked(samples, count, zeros, 0),
        .max = ranked(samples, count, zeros, n - 1),
        .n = n,
    };
}

brg_stat brg_samples_stat(brg_samples *samples, uint64_t key, uint32_t metric)
{
    size_t first = place_find(samples, key, metric);
    size_t count = place_end(samples, key, metric, first) - first;
    return stat_of(count ? samples->at + first : NULL, count, 0);
}

brg_stat brg_samples_stat_by_step(brg_samples *samples, uint64_t key, uint32_t metric,
                                  brg_fold fold, uint64_t nsteps)
{
    size_t first = place_find(samples, key, metric);
    size_t end = place_end(samples, key, metric, first), kept = first;
    for (size_t i = first + 1; i < end; i++) {
        brg_sample *into = &samples->at[kept];
        const brg_sample *from = &samples->at[i];
        if (from->step != into->step)
            samples->at[++kept] = *from;
        else if (fold == BRG_FOLD_SUM)
            into->value += from->value;
        else if (fold == BRG_FOLD_MIN ? from->value < into->value : from->value > into->value)
            into->value = from->value;
    }
    size_t steps = end > first ? kept + 1 - first : 0;
    return stat_of(steps ? samples->at + first : NULL, steps, nsteps > steps ? nsteps - steps : 0);
}

brg_step_count brg_samples_count(const brg_samples *samples, uint64_t key, uint32_t metric,
                                 uint64_t nsteps)
{
    size_t first = place_find(samples, key, metric);
    size_t end = place_end(samples, key, metric, first);
    brg_step_count count = {.min = UINT64_MAX, .total = end - first};
    uint64_t steps = 0;
    for (size_t i = first; i < end; steps++) {
        size_t from = i;
        while (i < end && samples->at[i].step == samples->at[from].step)
            i++;
        count.min = i - from < count.min ? i - from : count.min;
        count.max = i - from > count.max ? i - from : count.max;
    }
    if (steps < nsteps || !steps)
        count.min = 0;
    return count;
}
