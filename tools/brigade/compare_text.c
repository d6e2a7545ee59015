/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/brigade/compare.h"

enum { NAME_COLUMNS = 24 };

static const char *const verdicts[] = {
    [COMPARE_BASELINE] = "",
    [COMPARE_UNKNOWN] = "not measured",
    [COMPARE_TOO_FEW] = "too few steps",
    [COMPARE_NONE] = "no difference detectable",
    [COMPARE_SLOWER] = "more",
    [COMPARE_FASTER] = "less",
};

static void color(const char *code)
{
    if (cli_use_color(stdout))
        printf("\033[%sm", code);
}

static void name_print(const char *name)
{
    char buffer[NAME_COLUMNS + 1];
    printf("  %-*s", NAME_COLUMNS, cli_label(buffer, sizeof buffer, name));
}

static void number(double value_ns)
{
    printf(" %11.3f", value_ns / 1e6);
}

/* "+1.2%"; in ms where the baseline is 0. */
static const char *change(char buffer[32], double percent, double ns)
{
    if (isnan(percent))
        snprintf(buffer, 32, "%+.3f ms", ns / 1e6);
    else
        snprintf(buffer, 32, "%+.2f%%", percent);
    return buffer;
}

static void verdict_print(const compare_cell *cell)
{
    const char *code = cell->regression                  ? "1;31"
                       : cell->verdict == COMPARE_SLOWER ? "33"
                       : cell->verdict == COMPARE_FASTER ? "32"
                                                         : "0";
    color(code);
    printf("%s%s", verdicts[cell->verdict], cell->regression ? ": REGRESSION" : "");
    color("0");
    printf("\n");
}

/* Difference, interval, verdict. */
static void cell_end(const compare_cell *cell)
{
    char text[32], low[32], high[32], interval[80] = "-";
    const shift_result *shift = &cell->shift;
    if (cell->verdict == COMPARE_BASELINE) {
        printf("   (baseline)\n");
        return;
    }
    if (shift->bounded)
        snprintf(interval, sizeof interval, "%s to %s", change(low, cell->low_percent, shift->low),
                 change(high, cell->high_percent, shift->high));
    printf(" %12s  %-20s  ",
           cell->verdict == COMPARE_UNKNOWN ? "-" : change(text, cell->percent, shift->estimate),
           interval);
    verdict_print(cell);
}

static void head(const char *first, const char *numbers, double confidence)
{
    color("1");
    printf("  %-*s%s %12s  %.0f%% interval", NAME_COLUMNS, first, numbers, "difference",
           100 * confidence);
    color("0");
    printf("\n");
}

static void runs_print(const comparison *c, const compare_row *row)
{
    printf("%s\n", row->name);
    head("run", "   rank  steps   median ms      min ms      max ms", c->confidence);
    for (size_t i = 0; i < c->nruns; i++) {
        const compare_cell *cell = &row->cells[i];
        name_print(c->runs[i].path);
        printf(" %6" PRIu32 " %6zu", c->runs[i].rank, cell->n);
        number(cell->median);
        number(cell->min);
        number(cell->max);
        cell_end(cell);
    }
}

/* Medians of the baseline and of one run, row by row. */
static void pair_print(const comparison *c, size_t run, size_t first)
{
    char title[NAME_COLUMNS + 1], size[32], label[NAME_COLUMNS + 1];
    cli_label(title, sizeof title, c->runs[run].path);
    printf("\n%s against %s\n", title, cli_label(label, sizeof label, c->runs[0].path));
    head(c->by_bucket ? "bucket" : "metric",
         c->by_bucket ? "       size baseline ms      run ms" : " baseline ms      run ms",
         c->confidence);
    for (size_t i = first; i < c->nrows; i++) {
        name_print(c->rows[i].name);
        if (c->by_bucket)
            printf(" %10s", cli_bytes(size, (double)c->rows[i].bytes));
        number(c->rows[i].cells[0].median);
        number(c->rows[i].cells[run].median);
        cell_end(&c->rows[i].cells[run]);
    }
}

static void notes_print(const comparison *c)
{
    printf(
        "\nmedians of the steps; a difference is Hodges and Lehmann's, its interval that of the\n"
        "Mann-Whitney test%s; steps of one run share that run's luck:\n"
        "repeat runs to be sure\n",
        c->by_bucket ? ", for all buckets together" : "");
    if (c->unmatched)
        printf("note: %zu bucket%s left out, which not all runs have\n", c->unmatched,
               c->unmatched == 1 ? "" : "s");
    for (size_t i = 0; i < c->nruns; i++) {
        if (c->runs[i].world != c->runs[0].world)
            printf("note: %s is of %u ranks, %s of %u\n", c->runs[i].path, c->runs[i].world,
                   c->runs[0].path, c->runs[0].world);
        if (c->runs[i].lost)
            printf("note: %s has lost %" PRIu64 " records\n", c->runs[i].path, c->runs[i].lost);
    }
}

void compare_text(const comparison *c)
{
    if (c->by_bucket)
        printf("%s of buckets\n", c->metric);
    else
        runs_print(c, &c->rows[0]);
    for (size_t i = 1; i < c->nruns; i++)
        pair_print(c, i, c->by_bucket ? 0 : 1);
    notes_print(c);
    printf("\n%s of %s by more than %g%%%s\n", c->regression ? "REGRESSION" : "no regression",
           c->metric, c->threshold_percent, c->undecided ? "; too few steps to tell of some" : "");
}
