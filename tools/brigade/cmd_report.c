/* SPDX-License-Identifier: Apache-2.0 */
/* brigade report: what a trace says about the steps, in one screen or as JSON. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/brigade/cli.h"
#include "tools/brigade/report.h"
#include "tools/brigade/report_export.h"

static const char *const sort_words[] = {
    [REPORT_SORT_ID] = "id",     [REPORT_SORT_EXPOSED] = "exposed", [REPORT_SORT_WAIT] = "wait",
    [REPORT_SORT_SIZE] = "size", [REPORT_SORT_READY] = "ready",     [REPORT_SORT_BUSBW] = "busbw",
    [REPORT_SORT_TIME] = "time", [REPORT_SORT_COUNT] = NULL};
static const char *const by_words[] = {[REPORT_BY_BUCKET] = "bucket",
                                       [REPORT_BY_COMM] = "comm",
                                       [REPORT_BY_RANK] = "rank",
                                       [REPORT_BY_FUNC] = "func",
                                       NULL};

static struct {
    bool json, rank_given, skip_given, sort_given, comm_given, force;
    int64_t rank, skip, top, comm, repeats;
    int sort, by;
    const char *perfetto, *chrome, *html, *csv, *bucket_map;
} opt = {.skip = 1, .top = 16};

static const cli_option options[] = {
    {.name = "json", .type = CLI_FLAG, .dest = &opt.json, .help = "Print one JSON document."},
    {.name = "rank",
     .short_name = 'r',
     .type = CLI_INT,
     .dest = &opt.rank,
     .metavar = "N",
     .max = UINT32_MAX,
     .given = &opt.rank_given,
     .help =
         "Show the step and the buckets of this rank (default: of the one that computes most, for "
         "which the others wait)."},
    {.name = "skip",
     .type = CLI_INT,
     .dest = &opt.skip,
     .metavar = "N",
     .max = UINT32_MAX,
     .given = &opt.skip_given,
     .help =
         "Leave out the first N steps; the very first one learns and overlaps nothing (default: "
         "1, where there are more)."},
    {.name = "by",
     .type = CLI_CHOICE,
     .dest = &opt.by,
     .choices = by_words,
     .help = "What to list: buckets, communicators, ranks or kinds of collectives (default: "
             "bucket; JSON always has all)."},
    {.name = "sort",
     .type = CLI_CHOICE,
     .dest = &opt.sort,
     .choices = sort_words,
     .given = &opt.sort_given,
     .help = "Order of the list, ids and ready times from the smallest, all else from the largest: "
             "of buckets by any (default: id), of communicators and kinds by id, size or time "
             "(default: time), of ranks by id, exposed or time, that of the step (default: id)."},
    {.name = "top",
     .type = CLI_INT,
     .dest = &opt.top,
     .metavar = "N",
     .max = UINT32_MAX,
     .help = "Print at most N rows of the list, 0 for all (default: 16; JSON always has all)."},
    {.name = "perfetto",
     .type = CLI_STRING,
     .dest = &opt.perfetto,
     .metavar = "FILE",
     .help = "Write the timeline for ui.perfetto.dev, too: of all ranks, or of that of --rank."},
    {.name = "chrome",
     .type = CLI_STRING,
     .dest = &opt.chrome,
     .metavar = "FILE",
     .help = "Write it as Chrome JSON; HolisticTraceAnalysis takes one file per rank (--rank)."},
    {.name = "html",
     .type = CLI_STRING,
     .dest = &opt.html,
     .metavar = "FILE",
     .help = "Write the report with a timeline of some steps as a page that needs no other file."},
    {.name = "force",
     .short_name = 'f',
     .type = CLI_FLAG,
     .dest = &opt.force,
     .help = "Replace files that exist."},
    {.name = "csv",
     .type = CLI_STRING,
     .dest = &opt.csv,
     .metavar = "FILE",
     .help = "Also write the list of --by to FILE, as comma-separated values with all columns."},
    {.name = "bucket-map",
     .type = CLI_STRING,
     .dest = &opt.bucket_map,
     .metavar = "FILE",
     .help =
         "Name the buckets that were recognised in a trace without buckets after those of FILE, "
         "which brigade plan --json has written: of the same number of elements, in order."},
    {.name = "comm",
     .type = CLI_INT,
     .dest = &opt.comm,
     .metavar = "N",
     .max = UINT32_MAX,
     .given = &opt.comm_given,
     .help = "Recognise steps and buckets in communicator N (default: the one whose recurring "
             "reductions have most bytes)."},
    {.name = "repeats",
     .type = CLI_INT,
     .dest = &opt.repeats,
     .metavar = "K",
     .min = 1,
     .max = BRG_REPEATS_MAX,
     .help = "Recognise steps in which the same buckets are reduced K times, as in gradient "
             "accumulation without no_sync (default: what gathers of parameters tell, else 1)."},
    {.name = NULL},
};

static const cli_command command = {
    .name = "report",
    .summary = "Show what a trace says: step, overlap, exposed communication, buckets.",
    .usage = "DIR|FILE [options]",
    .details =
        "DIR holds the files rank-N.ring that a traced run has written (brigade run -o DIR). The "
        "trace "
        "of a run that was killed, or is still going on, can be read. Of ranks that brigade run "
        "started, it says which died first, and of what.\n\n"
        "A step is everything from one brg_zero_grad() to the next. Compute: some stream works. "
        "Exposed: communication runs and nothing else does. Idle: neither. The three add up to the "
        "step. The typical step is the mean over the half of the steps whose lengths are in the "
        "middle; everything else is a median over the steps.\n\n"
        "Of a bucket: when its last gradient was ready, its collective issued, started and ended, "
        "counted from the beginning of its step on the device (the host runs ahead, so it may ask "
        "for a collective long before the gradients are there, and before the step has begun: "
        "issued is then negative); how long compute stood waiting for it; its bus "
        "bandwidth as nccl-tests defines it; and, as exposed, how much shorter the step would be "
        "if "
        "that bucket's communication were free, found by replaying the recorded step without it. "
        "The "
        "replay error says how well the replay reproduces the step as it was. Costs of buckets "
        "need "
        "not add up: behind one another they hide each other.\n\n"
        "Of a trainer that knows nothing of Brigade (brigade run -- COMMAND), steps and buckets "
        "are recognised: a step is what recurs in the collectives of one communicator, a bucket, "
        "r0, r1, ..., is a reduction in it with the gathers of the same buffer or size. Such a "
        "step begins when its first collective starts on the device; that one was issued before, "
        "so its time of issue is negative. Where the same buckets are reduced several times a "
        "step and nothing marks its end, each round would be taken for a step: --repeats says how "
        "many rounds make one. What is exposed is then known only with kernels or "
        "stream waits in the trace; the report says what it was taken from. Where several ranks "
        "have traces, their clocks are aligned on the ends of the collectives, and waiting for a "
        "late rank is told apart from a slow transfer; differences below the error that is printed "
        "mean nothing.\n\n"
        "Collectives of one group call carry the times of the group: * marks them (JSON and CSV: "
        "reduce_group and gather_group, how many carry the same). Their bus bandwidth is that of "
        "all bytes of the group, and what a bucket exposes its share by bytes.\n\n"
        "Exit status: 0 on success, 2 for wrong usage, 3 if a file cannot be read, is no trace, or "
        "is cut off, or a file cannot be written, 4 if there is nothing to report: no complete "
        "step, none behind --skip, no collectives.\n\n"
        "  brigade report traces\n"
        "  brigade report traces --sort exposed --top 5\n"
        "  brigade report traces --by comm --csv comms.csv\n"
        "  brigade report traces --json | jq '.buckets[].exposed_ns'\n"
        "  brigade report traces --html report.html --perfetto report.pftrace",
    .options = options,
};

static int exit_code(brg_status status)
{
    return status == BRG_ERR_NO_DATA ? CLI_NO_DATA : CLI_INPUT;
}

static void report_free(report *r)
{
    for (size_t i = 0; i < r->nranks; i++) {
        brg_rank_report_free(&r->ranks[i].data);
        brg_arrival_list_free(&r->ranks[i].arrivals);
        brg_trace_close(r->ranks[i].trace);
    }
    for (size_t i = 0; i < r->nwarnings; i++)
        free(r->warnings[i]);
    free(r->warnings);
    free(r->ends);
    free(r->ranks);
    free(r->order);
    free(r->rank_order);
    brg_arrivals_free(&r->arrivals);
}

static bool exporting(void)
{
    return opt.perfetto || opt.chrome || opt.html;
}

/* Opens and analyzes one file. A trace with nothing in it is a warning, unless no trace has
 * anything: the first such message is kept in `nothing`. */
static brg_status rank_load(report *r, const char *path, char nothing[1024])
{
    report_rank *rank = &r->ranks[r->nranks];
    brg_status status = brg_trace_open(path, &rank->trace);
    if (status != BRG_OK)
        return status;
    r->nranks++;
    const brg_analysis_options how = {
        .warmup_steps = (uint32_t)opt.skip,
        .warmup_exact = opt.skip_given,
        .recognise = {.comm_given = opt.comm_given,
                      .comm = (uint32_t)opt.comm,
                      .repeats = (uint32_t)opt.repeats},
    };
    status = brg_trace_analyze(rank->trace, &how, &rank->data);
    if (status == BRG_OK)
        status = brg_arrival_list_make(rank->trace, &rank->data, &rank->arrivals);
    if (!exporting())
        brg_trace_forget_records(rank->trace);
    rank->usable = status == BRG_OK;
    if (status == BRG_ERR_NO_DATA) {
        report_warn(r, "%s", brg_last_error());
        if (!nothing[0])
            snprintf(nothing, 1024, "%s", brg_last_error());
        return BRG_OK;
    }
    return status;
}

static int rank_compare(const void *a, const void *b)
{
    const report_rank *x = a, *y = b;
    return (x->trace->rank > y->trace->rank) - (x->trace->rank < y->trace->rank);
}

/* The files must be those of one run. False after a message. */
static bool ranks_match(report *r)
{
    qsort(r->ranks, r->nranks, sizeof *r->ranks, rank_compare);
    const brg_trace *first = r->ranks[0].trace;
    r->world = first->world;
    for (size_t i = 1; i < r->nranks; i++) {
        const brg_trace *trace = r->ranks[i].trace;
        if (trace->world != first->world) {
            cli_fail(&command, CLI_INPUT, "traces of different runs: %s is of %u ranks, %s of %u",
                     first->path, first->world, trace->path, trace->world);
            return false;
        }
        if (trace->rank == r->ranks[i - 1].trace->rank) {
            cli_fail(&command, CLI_INPUT, "%s and %s are both of rank %u",
                     r->ranks[i - 1].trace->path, trace->path, trace->rank);
            return false;
        }
    }
    return true;
}

static int ranks_load(report *r)
{
    char **paths = NULL;
    size_t npaths = 0;
    char nothing[1024] = "";
    brg_status status = brg_trace_list(r->path, &paths, &npaths);
    if (status == BRG_OK) {
        r->ranks = calloc(npaths, sizeof *r->ranks);
        if (!r->ranks)
            status = brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for %zu ranks", r->path, npaths);
    }
    for (size_t i = 0; status == BRG_OK && i < npaths; i++)
        status = rank_load(r, paths[i], nothing);
    brg_trace_list_free(paths, npaths);
    if (status != BRG_OK)
        return cli_fail(&command, exit_code(status), "%s", brg_last_error());
    if (!ranks_match(r))
        return CLI_INPUT;
    report_ends_load(r);
    for (size_t i = 0; i < r->nranks; i++)
        if (r->ranks[i].usable)
            return CLI_OK;
    char ends[512];
    report_ends_text(r, ends, sizeof ends);
    return cli_fail(&command, CLI_NO_DATA, "%s%s%s", nothing, ends[0] ? "; " : "", ends);
}

/* Fastest, slowest, and the one to show. Where compute is unknown, lengths of steps say nothing of
 * who was slow: ranks wait for each other. */
static int ranks_choose(report *r)
{
    for (size_t i = 0; i < r->nranks; i++) {
        const report_rank *rank = &r->ranks[i];
        r->drops += rank->trace->drops;
        r->torn += rank->trace->torn;
        r->overwritten += rank->trace->overwritten;
        r->invalid += rank->trace->invalid;
        if (!rank->usable)
            continue;
        if (!r->fastest || rank->data.compute.median < r->fastest->data.compute.median)
            r->fastest = rank;
        if (!r->slowest || rank->data.compute.median > r->slowest->data.compute.median)
            r->slowest = rank;
        if (opt.rank_given && rank->trace->rank == opt.rank)
            r->shown = rank;
    }
    if (opt.rank_given && !r->shown)
        return cli_fail(&command, CLI_NO_DATA, "%s: nothing is recorded of rank %lld", r->path,
                        (long long)opt.rank);
    r->shown_by_choice = opt.rank_given;
    if (!r->shown)
        r->shown = r->slowest;
    return CLI_OK;
}

/* Who came late, where ranks can be compared. */
static brg_status arrivals_compare(report *r)
{
    size_t n = 0;
    brg_arrival_list *lists = calloc(r->nranks + 1, sizeof *lists);
    if (!lists)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for %zu ranks", r->path, r->nranks);
    for (size_t i = 0; i < r->nranks; i++)
        if (r->ranks[i].arrivals.count)
            lists[n++] = r->ranks[i].arrivals;
    brg_status status = n > 1 ? brg_arrivals_compare(lists, n, &r->arrivals) : BRG_OK;
    free(lists);
    return status;
}

static int exports_write(const report *r)
{
    const struct {
        const char *path;
        report_writer writer;
    } exports[] = {
        {opt.perfetto, report_perfetto}, {opt.chrome, report_chrome}, {opt.html, report_html}};
    int code = CLI_OK;
    for (size_t i = 0; code == CLI_OK && i < sizeof exports / sizeof *exports; i++)
        if (exports[i].path)
            code = report_export(&command, r, exports[i].path, opt.force, exports[i].writer);
    return code;
}

static report_sort_key sort_key(void)
{
    bool groups = opt.by == REPORT_BY_COMM || opt.by == REPORT_BY_FUNC;
    return opt.sort_given ? (report_sort_key)opt.sort : groups ? REPORT_SORT_TIME : REPORT_SORT_ID;
}

/* The list must have what it is to be sorted by. CLI_OK, or CLI_USAGE after a message. */
static int sort_check(void)
{
    char words[128] = "";
    size_t used = 0;
    if (report_sorts_by((report_by)opt.by, sort_key()))
        return CLI_OK;
    for (int key = 0; key < REPORT_SORT_COUNT && used < sizeof words; key++)
        if (report_sorts_by((report_by)opt.by, (report_sort_key)key))
            used += (size_t)snprintf(words + used, sizeof words - used, "%s%s", used ? ", " : "",
                                     sort_words[key]);
    return cli_fail(&command, CLI_USAGE,
                    "--sort %s: the list of --by %s has no such column; "
                    "it can be sorted by %s",
                    sort_words[opt.sort], by_words[opt.by], words);
}

static int report_print(report *r)
{
    int code = ranks_load(r);
    if (code == CLI_OK)
        code = ranks_choose(r);
    if (code != CLI_OK)
        return code;
    if (!report_sort(r, (report_by)opt.by, sort_key(), (size_t)opt.top))
        return cli_fail(&command, CLI_INPUT, "%s: no memory", r->path);
    brg_status status = arrivals_compare(r);
    if (status == BRG_OK && opt.bucket_map)
        status = report_map(r, opt.bucket_map);
    if (status != BRG_OK)
        return cli_fail(&command, exit_code(status), "%s", brg_last_error());
    if (opt.repeats && !r->shown->data.recognition)
        report_warn(r, "--repeats is not used: the trace has its own steps");
    report_warn_all(r);
    code = exports_write(r);
    if (code != CLI_OK)
        return code;
    if (opt.csv && !report_csv(r, (report_by)opt.by, opt.csv, opt.force))
        return errno == EEXIST
                   ? cli_fail(&command, CLI_INPUT,
                              "'%s' exists; name another file or replace it with --force", opt.csv)
                   : cli_fail(&command, CLI_INPUT, "cannot write %s: %s", opt.csv, strerror(errno));
    if (!opt.json)
        report_text(r, (report_by)opt.by, (size_t)opt.top);
    else if (!report_json(r))
        return cli_fail(&command, CLI_INPUT, "%s: no memory", r->path);
    return CLI_OK;
}

static int run(int argc, char **argv)
{
    int first, code = cli_parse(&command, argc, argv, &first);
    if (code >= 0)
        return code;
    if (first >= argc)
        return cli_fail(&command, CLI_USAGE, "which trace? Give the directory that it is in");
    if (first + 1 < argc)
        return cli_fail(&command, CLI_USAGE, "unexpected argument '%s'", argv[first + 1]);
    if (opt.force && !exporting() && !opt.csv)
        return cli_fail(&command, CLI_USAGE, "--force has no meaning without a file to write");
    code = sort_check();
    if (code != CLI_OK)
        return code;
    report r = {.path = argv[first]};
    code = report_print(&r);
    report_free(&r);
    return cli_finish(&command, code);
}

const cli_entry cli_report = {&command, run};
