/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "sched/trace/recognise_internal.h"

enum {
    SEARCHED_MAX = 1 << 16, /* elements that the period is looked for in: the last ones */
    CANDIDATES = 64,        /* periods that are tried */
    RECURRENCES = 8,        /* how many earlier ones of the same symbol vote for a period */
};
/* A shorter period explains nearly as much as the best: it is the period, and the other a multiple
 * of it. */
#define NEARLY 0.8
/* What explains less than this is chance. */
#define SCORE_MIN 0.7

typedef struct search {
    const uint32_t *symbols;
    const uint64_t *lost; /* operations that are missing up to each: pairs that have some between
                             them say nothing about the period */
    size_t n;
    size_t *previous; /* index + 1 of the one before with the same symbol */
    double *weight;   /* one over how often the symbol occurs: every symbol counts the same; 0 when
                         it occurs once */
    double *votes;    /* by period */
} search;

static brg_status search_start(search *s)
{
    uint32_t nsymbols = 0;
    for (size_t i = 0; i < s->n; i++)
        nsymbols = s->symbols[i] >= nsymbols ? s->symbols[i] + 1 : nsymbols;
    size_t *last = calloc(nsymbols + 1u, sizeof *last);
    size_t *count = calloc(nsymbols + 1u, sizeof *count);
    s->previous = calloc(s->n + 1, sizeof *s->previous);
    s->weight = calloc(s->n + 1, sizeof *s->weight);
    s->votes = calloc(s->n + 1, sizeof *s->votes);
    brg_status status = BRG_OK;
    if (!last || !count || !s->previous || !s->weight || !s->votes) {
        status = brg_fail(BRG_ERR_NO_MEMORY, "no memory for a sequence of %zu collectives", s->n);
        goto out;
    }
    for (size_t i = 0; i < s->n; i++) {
        s->previous[i] = last[s->symbols[i]];
        last[s->symbols[i]] = i + 1;
        count[s->symbols[i]]++;
    }
    for (size_t i = 0; i < s->n; i++)
        s->weight[i] = count[s->symbols[i]] > 1 ? 1.0 / (double)count[s->symbols[i]] : 0;
out:
    free(last);
    free(count);
    return status;
}

/* Distances at which symbols recur. */
static void search_vote(search *s)
{
    for (size_t i = 0; i < s->n; i++) {
        size_t at = i;
        for (int k = 0; k < RECURRENCES && s->previous[at]; k++) {
            at = s->previous[at] - 1;
            if (i - at <= s->n / 2 && s->lost[i] == s->lost[at])
                s->votes[i - at] += s->weight[i];
        }
    }
}

static double score_of(const search *s, size_t period)
{
    double all = 0, same = 0;
    for (size_t i = 0; i + period < s->n; i++) {
        if (s->lost[i] != s->lost[i + period])
            continue;
        all += s->weight[i];
        same += s->symbols[i] == s->symbols[i + period] ? s->weight[i] : 0;
    }
    return all > 0 ? same / all : 0;
}

static size_t search_best(search *s, double *score)
{
    size_t periods[CANDIDATES], count = 0;
    double scores[CANDIDATES], best = 0;
    for (; count < CANDIDATES; count++) {
        size_t most = 0;
        for (size_t p = 1; p <= s->n / 2; p++)
            if (s->votes[p] > s->votes[most])
                most = p;
        if (!most)
            break;
        s->votes[most] = 0;
        periods[count] = most;
        scores[count] = score_of(s, most);
        best = scores[count] > best ? scores[count] : best;
    }
    size_t period = 0;
    for (size_t i = 0; i < count; i++)
        if (scores[i] >= NEARLY * best && (!period || periods[i] < period)) {
            period = periods[i];
            *score = scores[i];
        }
    return period;
}

static int gap_compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Where in the period the cycle begins: at the element with the longest idle time in front, as a
 * median over the periods of the run [first, end). */
static brg_status rotation_find(const int64_t *gaps_ns, size_t first, size_t end, size_t period,
                                size_t *rotation)
{
    int64_t longest = INT64_MIN;
    int64_t *values = calloc((end - first) / period + 1, sizeof *values);
    if (!values)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for a period of %zu collectives", period);
    *rotation = 0;
    for (size_t r = 0; r < period; r++) {
        size_t n = 0;
        for (size_t i = first + r; i < end; i += period)
            if (i > 0 && gaps_ns[i] != BRG_GAP_UNKNOWN)
                values[n++] = gaps_ns[i];
        qsort(values, n, sizeof *values, gap_compare);
        if (n && values[(n - 1) / 2] > longest) {
            longest = values[(n - 1) / 2];
            *rotation = r;
        }
    }
    free(values);
    return BRG_OK;
}

/* The longest stretch in which every element recurs after a period; as [*first, *end). */
static void run_find(const search *s, size_t period, size_t *first, size_t *end)
{
    size_t start = 0, longest = 0;
    *first = *end = 0;
    for (size_t i = 0; i + period < s->n; i++) {
        if (s->symbols[i] != s->symbols[i + period]) {
            start = i + 1;
        } else if (i + 1 - start > longest) {
            longest = i + 1 - start;
            *first = start;
            *end = i + 1 + period;
        }
    }
}

/* Every place where the whole pattern stands, one after another. */
static brg_status cycles_cut(const uint32_t *symbols, size_t n, brg_cycles *cycles)
{
    size_t period = cycles->period;
    cycles->first = calloc(n / period + 1, sizeof *cycles->first);
    if (!cycles->first)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for %zu cycles", n / period);
    for (size_t i = 0; i + period <= n;) {
        if (memcmp(symbols + i, cycles->pattern, period * sizeof *symbols)) {
            i++;
            continue;
        }
        cycles->first[cycles->count++] = i;
        i += period;
    }
    return BRG_OK;
}

brg_status brg_cycles_find(const uint32_t *symbols, const int64_t *gaps_ns, const uint64_t *lost,
                           size_t n, brg_cycles *cycles)
{
    size_t from = n > SEARCHED_MAX ? n - SEARCHED_MAX : 0, first, end, rotation = 0;
    search s = {.symbols = symbols + from, .lost = lost + from, .n = n - from};
    brg_status status;
    *cycles = (brg_cycles){0};
    BRG_TRY(search_start(&s), out);
    search_vote(&s);
    size_t period = search_best(&s, &cycles->score);
    if (!period || cycles->score < SCORE_MIN)
        goto out;
    run_find(&s, period, &first, &end);
    if (end - first < period)
        goto out;
    BRG_TRY(rotation_find(gaps_ns + from, first, end, period, &rotation), out);
    cycles->period = period;
    cycles->pattern = calloc(period, sizeof *cycles->pattern);
    if (!cycles->pattern) {
        status = brg_fail(BRG_ERR_NO_MEMORY, "no memory for a period of %zu collectives", period);
        goto out;
    }
    for (size_t i = 0; i < period; i++)
        cycles->pattern[i] = s.symbols[first + (rotation + i) % period];
    BRG_TRY(cycles_cut(symbols, n, cycles), out);
out:
    free(s.previous);
    free(s.weight);
    free(s.votes);
    if (status != BRG_OK)
        brg_cycles_free(cycles);
    return status;
}

void brg_cycles_free(brg_cycles *cycles)
{
    free(cycles->pattern);
    free(cycles->first);
    *cycles = (brg_cycles){0};
}
