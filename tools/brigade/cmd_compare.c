/* SPDX-License-Identifier: Apache-2.0 */
/* brigade compare: whether one run's steps are slower than another's. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/brigade/compare.h"

enum { MAX_RUNS = 64 };

static const char *const metric_words[] = {"step_ns", "compute_ns",   "comm_ns", "exposed_ns",
                                           "idle_ns", "optimizer_ns", "wait_ns", NULL};
static const char *const by_words[] = {"run", "bucket", NULL};

static struct {
    bool json, rank_given, skip_given, metric_given;
    int64_t rank, skip, repeats;
    int metric, by;
    const char *threshold;
} opt = {.skip = 1, .threshold = "3%"};

static const cli_option options[] = {
    {.name = "metric",
     .short_name = 'm',
     .type = CLI_CHOICE,
     .dest = &opt.metric,
     .choices = metric_words,
     .given = &opt.metric_given,
     .help = "What is judged, per step (default: step_ns; with --by bucket: comm_ns, which can be "
             "exposed_ns and wait_ns, too)."},
    {.name = "threshold",
     .short_name = 't',
     .type = CLI_STRING,
     .dest = &opt.threshold,
     .metavar = "PERCENT",
     .help = "A regression is a detectable increase of the metric by more than this (default: "
             "3%)."},
    {.name = "by",
     .type = CLI_CHOICE,
     .dest = &opt.by,
     .choices = by_words,
     .help = "Judge the step as a whole, or every bucket that all runs have (default: run)."},
    {.name = "rank",
     .short_name = 'r',
     .type = CLI_INT,
     .dest = &opt.rank,
     .metavar = "N",
     .max = UINT32_MAX,
     .given = &opt.rank_given,
     .help = "Compare this rank (default: in each run the one that computes most, for which the "
             "others wait)."},
    {.name = "skip",
     .type = CLI_INT,
     .dest = &opt.skip,
     .metavar = "N",
     .max = UINT32_MAX,
     .given = &opt.skip_given,
     .help = "Leave out the first N steps of each run (default: 1, where there are more)."},
    {.name = "repeats",
     .type = CLI_INT,
     .dest = &opt.repeats,
     .metavar = "K",
     .min = 1,
     .max = BRG_REPEATS_MAX,
     .help = "Recognise steps in which the same buckets are reduced K times, as brigade report "
             "does."},
    {.name = "json", .type = CLI_FLAG, .dest = &opt.json, .help = "Print one JSON document."},
    {.name = NULL},
};

static const cli_command command = {
    .name = "compare",
    .summary = "Tell whether the steps of one run are slower than those of another.",
    .usage = "A B [C...] [options]",
    .details =
        "A, B, ... are traces as brigade report reads them; the first is the baseline. Of each, "
        "the steps of one rank are taken.\n\n"
        "The difference is the median of the differences between a step of the one and a step of "
        "the other run (Hodges and Lehmann). Its interval of 95% confidence belongs to the "
        "Mann-Whitney test, which assumes no distribution; where the interval contains 0, no "
        "difference is detectable, and how wide it is says how large one could be. With --by "
        "bucket the confidence is that of all buckets together. Steps of one run are not "
        "independent runs: what differs from run to run, such as the placement of ranks, shows as "
        "a difference, too. That is what the threshold is for.\n\n"
        "step_ns, compute_ns, comm_ns (communication), exposed_ns and idle_ns are those of brigade "
        "report; optimizer_ns is the time in optimizers and the gradient norm. Of a bucket, "
        "comm_ns is the time of its collectives, exposed_ns what the step would save without "
        "them, wait_ns how long compute stood waiting for it. Buckets are the same when their "
        "names and sizes are.\n\n"
        "Exit status: 0 if there is no regression, 1 if there is one, 2 for wrong usage, 3 if a "
        "file cannot be read, is no trace, or is cut off, 4 if there is nothing to compare: no "
        "complete step, none behind --skip, no collectives, no bucket in common.\n\n"
        "  brigade compare before after\n"
        "  brigade compare before after --metric exposed_ns --threshold 5%\n"
        "  brigade compare before after --by bucket --json",
    .options = options,
};

/* "3%", "3", "0.5%"; false: no such number. */
static bool percent_parse(const char *text, double *percent)
{
    char *end;
    if (!*text || strchr(" \t+", *text))
        return false;
    *percent = strtod(text, &end);
    if (*end == '%')
        end++;
    return !*end && isfinite(*percent) && *percent >= 0;
}

static int bucket_metric(brg_bucket_metric *metric)
{
    static const char *const words[] = {[BRG_BUCKET_COMMUNICATION] = "comm_ns",
                                        [BRG_BUCKET_EXPOSED] = "exposed_ns",
                                        [BRG_BUCKET_WAIT] = "wait_ns"};
    const char *wanted = opt.metric_given ? metric_words[opt.metric] : "comm_ns";
    for (int i = 0; i < BRG_BUCKET_METRICS; i++)
        if (!strcmp(words[i], wanted)) {
            *metric = (brg_bucket_metric)i;
            return CLI_OK;
        }
    return cli_fail(&command, CLI_USAGE,
                    "--metric %s is not known of buckets: comm_ns, exposed_ns or wait_ns", wanted);
}

static int compare_print(comparison *c, compare_run *runs, char **paths)
{
    brg_bucket_metric of_bucket = BRG_BUCKET_COMMUNICATION;
    int code = c->by_bucket ? bucket_metric(&of_bucket) : CLI_OK;
    if (code != CLI_OK)
        return code;
    if (!c->by_bucket && !strcmp(metric_words[opt.metric], "wait_ns"))
        return cli_fail(&command, CLI_USAGE, "--metric wait_ns is known of buckets only");
    const brg_analysis_options how = {.warmup_steps = (uint32_t)opt.skip,
                                      .warmup_exact = opt.skip_given,
                                      .recognise = {.repeats = (uint32_t)opt.repeats}};
    for (size_t i = 0; i < c->nruns; i++) {
        code = compare_load(&command, paths[i], &how, opt.rank_given ? opt.rank : -1, &runs[i]);
        if (code != CLI_OK)
            return code;
    }
    c->metric = c->by_bucket && !opt.metric_given ? "comm_ns" : metric_words[opt.metric];
    if (!(c->by_bucket ? compare_buckets(c, of_bucket)
                       : compare_metrics(c, (brg_series_metric)opt.metric)))
        return cli_fail(&command, CLI_INPUT, "no memory");
    if (!c->nrows)
        return cli_fail(&command, CLI_NO_DATA, "the runs have no bucket in common");
    if (!c->measured)
        return cli_fail(&command, CLI_NO_DATA, "%s is not measured in both of two runs", c->metric);
    if (!opt.json)
        compare_text(c);
    else if (!compare_json(c))
        return cli_fail(&command, CLI_INPUT, "no memory");
    return c->regression ? CLI_FINDING : CLI_OK;
}

static int run(int argc, char **argv)
{
    int first, code = cli_parse(&command, argc, argv, &first);
    if (code >= 0)
        return code;
    double threshold_percent;
    if (!percent_parse(opt.threshold, &threshold_percent))
        return cli_fail(&command, CLI_USAGE, "--threshold '%s': expected a percentage such as 3%%",
                        opt.threshold);
    if (argc - first < 2)
        return cli_fail(&command, CLI_USAGE,
                        "which traces? Give a baseline and one or more others");
    if (argc - first > MAX_RUNS)
        return cli_fail(&command, CLI_USAGE, "%d traces are too many, at most %d are compared",
                        argc - first, MAX_RUNS);
    compare_run runs[MAX_RUNS] = {0};
    comparison c = {.runs = runs,
                    .nruns = (size_t)(argc - first),
                    .by_bucket = opt.by == 1,
                    .threshold_percent = threshold_percent,
                    .confidence = 0.95};
    code = compare_print(&c, runs, argv + first);
    compare_free(&c);
    for (size_t i = 0; i < c.nruns; i++)
        brg_series_free(&runs[i].series);
    return cli_finish(&command, code);
}

const cli_entry cli_compare = {&command, run};
