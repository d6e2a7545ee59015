/* SPDX-License-Identifier: Apache-2.0 */
/* Option parsing: getopt_long() under a table, with messages of our own. */
#include "tools/brigade/cli.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LONG_BASE = 256 }; /* getopt_long's value of option i; below are the short names */

enum { COLOR_AUTO, COLOR_ALWAYS, COLOR_NEVER };
static const char *const color_names[] = {"auto", "always", "never", NULL};
static int color_mode = COLOR_AUTO;
static bool help_wanted;

static const cli_option common_options[] = {
    {.name = "color",
     .type = CLI_CHOICE,
     .dest = &color_mode,
     .choices = color_names,
     .help = "Colored output; auto (the default) colors on a terminal unless NO_COLOR is set."},
    {.name = "help",
     .short_name = 'h',
     .type = CLI_FLAG,
     .dest = &help_wanted,
     .help = "Print this help and exit."},
    {.name = NULL},
};

const cli_option *cli_common_options(void)
{
    return common_options;
}

bool cli_use_color(FILE *stream)
{
    if (color_mode != COLOR_AUTO)
        return color_mode == COLOR_ALWAYS;
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    if ((no_color && *no_color) || !term || !strcmp(term, "dumb"))
        return false;
    return isatty(fileno(stream));
}

const char *cli_program(const cli_command *command)
{
    return command->program ? command->program : "brigade";
}

int cli_fail(const cli_command *command, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fflush(stdout); /* keeps the order when both go to one place */
    fprintf(stderr, "%s%s%s: ", cli_program(command), command->name[0] ? " " : "", command->name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return code;
}

/* Levenshtein distance, given up beyond words that nobody types. */
static int edit_distance(const char *a, const char *b)
{
    enum { MAX_WORD = 63 };
    int la = (int)strnlen(a, MAX_WORD + 1), lb = (int)strnlen(b, MAX_WORD + 1);
    if (la > MAX_WORD || lb > MAX_WORD)
        return MAX_WORD;
    int row[MAX_WORD + 1];
    for (int j = 0; j <= lb; j++)
        row[j] = j;
    for (int i = 1; i <= la; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= lb; j++) {
            int above = row[j];
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (above + 1 < best)
                best = above + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = above;
            row[j] = best;
        }
    }
    return row[lb];
}

const char *cli_nearest(const char *word, const char *const *list)
{
    const char *nearest = NULL;
    int length = (int)strlen(word);
    int best = length <= 2 ? 1 : length <= 5 ? 2 : 3; /* farther is no likeness */
    for (; *list; list++) {
        int distance = edit_distance(word, *list);
        if (length >= 3 && !strncmp(word, *list, (size_t)length))
            distance = 1; /* cut short: "coll" means "collective" */
        if (distance < best || (distance == best && !nearest)) {
            best = distance;
            nearest = *list;
        }
    }
    return nearest;
}

/* The command's own options, then those common ones that it does not define itself. */
typedef struct option_set {
    const cli_option **items;
    int count;
} option_set;

static const cli_option *find_name(const option_set *set, const char *name)
{
    for (int i = 0; i < set->count; i++)
        if (!strcmp(set->items[i]->name, name))
            return set->items[i];
    return NULL;
}

static const cli_option *find_short(const option_set *set, int c)
{
    for (int i = 0; i < set->count; i++)
        if (set->items[i]->short_name && set->items[i]->short_name == c)
            return set->items[i];
    return NULL;
}

static int table_size(const cli_option *options)
{
    int count = 0;
    while (options && options[count].name)
        count++;
    return count;
}

static bool collect_options(const cli_command *command, option_set *set)
{
    int own = table_size(command->options), common = table_size(common_options);
    set->count = 0;
    set->items = calloc((size_t)(own + common) + 1, sizeof *set->items);
    if (!set->items)
        return false;
    for (int i = 0; i < own; i++)
        set->items[set->count++] = &command->options[i];
    for (int i = 0; i < common; i++)
        if (!find_name(set, common_options[i].name))
            set->items[set->count++] = &common_options[i];
    return true;
}

/* Digits with an optional sign, and nothing before them, as strtoll would allow. */
static bool starts_number(const char *text)
{
    if (*text == '-' || *text == '+')
        text++;
    return isdigit((unsigned char)*text);
}

static bool parse_int(const char *text, int64_t *value, const char **end)
{
    char *stop;
    errno = 0;
    long long v = starts_number(text) ? strtoll(text, &stop, 10) : 0;
    if (!starts_number(text) || errno)
        return false;
    *value = v;
    *end = stop;
    return true;
}

/* "40M", "40MiB", "40m": powers of 1024. */
static bool parse_size(const char *text, int64_t *value)
{
    static const char suffixes[] = "KMGT";
    const char *end;
    if (!isdigit((unsigned char)*text) || !parse_int(text, value, &end))
        return false;
    if (!*end)
        return true;
    const char *suffix = strchr(suffixes, toupper((unsigned char)*end));
    if (!suffix || (end[1] && strcmp(end + 1, "iB")))
        return false;
    return !__builtin_mul_overflow(*value, (int64_t)1 << (10 * (suffix - suffixes + 1)), value);
}

static bool parse_double(const char *text, double *value)
{
    if (!*text || strspn(text, "0123456789.eE+-") != strlen(text))
        return false; /* no blanks, hexadecimals, inf or nan */
    char *end;
    *value = strtod(text, &end);
    return !*end && isfinite(*value);
}

static bool has_limits(const cli_option *option)
{
    return option->min != 0 || option->max != 0;
}

/* " of 1 to 64", " of at least 1", "". */
static const char *range_text(const cli_option *option, char *buffer, size_t size)
{
    const double huge = 9e18;
    buffer[0] = 0;
    if (!has_limits(option))
        return buffer;
    if (option->max >= huge)
        snprintf(buffer, size, " of at least %.15g", option->min);
    else if (option->min <= -huge)
        snprintf(buffer, size, " of at most %.15g", option->max);
    else
        snprintf(buffer, size, " of %.15g to %.15g", option->min, option->max);
    return buffer;
}

static int bad_value(const cli_command *command, const cli_option *option, const char *text,
                     const char *expected)
{
    char range[96];
    return cli_fail(command, CLI_USAGE, "--%s: '%s' is not %s%s", option->name, text, expected,
                    range_text(option, range, sizeof range));
}

static int set_choice(const cli_command *command, const cli_option *option, const char *text)
{
    for (int i = 0; option->choices[i]; i++)
        if (!strcmp(option->choices[i], text)) {
            *(int *)option->dest = i;
            return CLI_OK;
        }
    char list[512] = "";
    size_t used = 0;
    for (int i = 0; option->choices[i] && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "",
                                 option->choices[i]);
    const char *nearest = cli_nearest(text, option->choices);
    return cli_fail(command, CLI_USAGE, "--%s: '%s' is not one of %s%s%s%s", option->name, text,
                    list, nearest ? "; did you mean '" : "", nearest ? nearest : "",
                    nearest ? "'?" : "");
}

static int set_value(const cli_command *command, const cli_option *option, const char *text)
{
    const char *end = "";
    int64_t integer = 0;
    double real = 0;
    switch (option->type) {
    case CLI_FLAG:
        *(bool *)option->dest = true;
        return CLI_OK;
    case CLI_STRING:
        *(const char **)option->dest = text;
        return CLI_OK;
    case CLI_CHOICE:
        return set_choice(command, option, text);
    case CLI_INT:
        if (!parse_int(text, &integer, &end) || *end)
            return bad_value(command, option, text, "a whole number");
        break;
    case CLI_SIZE:
        if (!parse_size(text, &integer))
            return bad_value(command, option, text,
                             "a size (a whole number, or one with K, M or G)");
        break;
    case CLI_DOUBLE:
        if (!parse_double(text, &real))
            return bad_value(command, option, text, "a number");
        break;
    }
    double value = option->type == CLI_DOUBLE ? real : (double)integer;
    if (has_limits(option) && (value < option->min || value > option->max))
        return bad_value(command, option, text,
                         option->type == CLI_SIZE  ? "a size"
                         : option->type == CLI_INT ? "a whole number"
                                                   : "a number");
    if (option->type == CLI_DOUBLE)
        *(double *)option->dest = real;
    else
        *(int64_t *)option->dest = integer;
    return CLI_OK;
}

static int usage_error(const cli_command *command, const char *what)
{
    return cli_fail(command, CLI_USAGE, "%s (see '%s%s%s --help')", what, cli_program(command),
                    command->name[0] ? " " : "", command->name);
}

/* `word` is what was typed, such as "--buckt-size=3". */
static int unknown_long(const cli_command *command, const option_set *set, const char *word)
{
    char text[512], name[128];
    snprintf(name, sizeof name, "%s", word + strspn(word, "-"));
    name[strcspn(name, "=")] = 0;
    int matches = 0;
    size_t used = (size_t)snprintf(text, sizeof text, "option '--%s' is ambiguous:", name);
    const char **names = calloc((size_t)set->count + 1, sizeof *names);
    for (int i = 0; i < set->count; i++) {
        if (names)
            names[i] = set->items[i]->name;
        if (strncmp(set->items[i]->name, name, strlen(name)) || used >= sizeof text)
            continue;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s --%s", matches ? "," : "",
                                 set->items[i]->name);
        matches++;
    }
    if (matches < 2) {
        const char *nearest = names ? cli_nearest(name, names) : NULL;
        snprintf(text, sizeof text, "unknown option '--%s'%s%s%s", name,
                 nearest ? "; did you mean '--" : "", nearest ? nearest : "", nearest ? "'?" : "");
    }
    free(names);
    return usage_error(command, text);
}

static int explain(const cli_command *command, const option_set *set, int result, const char *word)
{
    char text[256];
    const cli_option *option =
        optopt >= LONG_BASE ? set->items[optopt - LONG_BASE] : find_short(set, optopt);
    if (result == ':' && option) {
        char metavar[128];
        snprintf(text, sizeof text, "option '--%s' needs a value (%s)", option->name,
                 cli_metavar(option, metavar, sizeof metavar));
    } else if (optopt >= LONG_BASE) {
        snprintf(text, sizeof text, "option '--%s' takes no value", option->name);
    } else if (optopt) {
        snprintf(text, sizeof text, "unknown option '-%c'", isprint(optopt) ? optopt : '?');
    } else {
        return unknown_long(command, set, word);
    }
    return usage_error(command, text);
}

static int parse_set(const cli_command *command, const option_set *set, int argc, char **argv)
{
    struct option *longs = calloc((size_t)set->count + 1, sizeof *longs);
    char *shorts = calloc((size_t)set->count * 2 + 3, 1);
    int code = -1;
    if (!longs || !shorts) {
        code = cli_fail(command, CLI_INPUT, "out of memory");
        goto out;
    }
    char *s = shorts;
    if (command->stop_at_positional)
        *s++ = '+';
    *s++ = ':'; /* tells a missing value from an unknown option */
    for (int i = 0; i < set->count; i++) {
        bool value = set->items[i]->type != CLI_FLAG;
        longs[i] = (struct option){.name = set->items[i]->name,
                                   .has_arg = value ? required_argument : no_argument,
                                   .val = LONG_BASE + i};
        if (set->items[i]->short_name) {
            *s++ = set->items[i]->short_name;
            if (value)
                *s++ = ':';
        }
    }
    opterr = 0;
    optind = 0; /* glibc: start afresh */
    help_wanted = false;
    int result;
    while (code < 0 && (result = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
        if (result == '?' || result == ':') {
            code = explain(command, set, result, argv[optind > 0 ? optind - 1 : 0]);
            break;
        }
        const cli_option *option =
            result >= LONG_BASE ? set->items[result - LONG_BASE] : find_short(set, result);
        int failed = set_value(command, option, optarg);
        if (failed)
            code = failed;
        else if (option->given)
            *option->given = true;
        if (help_wanted) {
            cli_print_help(command, stdout);
            code = cli_finish(command, CLI_OK);
        }
    }
out:
    free(longs);
    free(shorts);
    return code;
}

int cli_parse(const cli_command *command, int argc, char **argv, int *first)
{
    option_set set;
    if (!collect_options(command, &set))
        return cli_fail(command, CLI_INPUT, "out of memory");
    int code = parse_set(command, &set, argc, argv);
    if (code < 0)
        *first = optind;
    free(set.items);
    return code;
}
