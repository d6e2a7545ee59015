/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands share in printing: help, units, terminal facts, a safe end. */
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tools/brigade/cli.h"

enum { DEFAULT_WIDTH = 100, MIN_WIDTH = 40, MAX_WIDTH = 1000, HELP_COLUMN = 28 };

bool cli_use_utf8(void)
{
    static int known = -1;
    if (known < 0) {
        setlocale(LC_CTYPE, ""); /* the type of characters only: numbers keep their point */
        known = !strcmp(nl_langinfo(CODESET), "UTF-8");
    }
    return known;
}

int cli_width(void)
{
    struct winsize size;
    int width = 0;
    if (isatty(STDOUT_FILENO) && !ioctl(STDOUT_FILENO, TIOCGWINSZ, &size))
        width = size.ws_col;
    const char *columns = getenv("COLUMNS");
    if (width <= 0 && columns)
        width = atoi(columns);
    if (width <= 0)
        return DEFAULT_WIDTH;
    return width < MIN_WIDTH ? MIN_WIDTH : width > MAX_WIDTH ? MAX_WIDTH : width;
}

const char *cli_bytes(char buffer[32], double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;
    if (!isfinite(bytes))
        return "-";
    while (fabs(bytes) >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        bytes /= 1024;
        unit++;
    }
    /* 1023.96 KiB must not print as 1024.0 KiB */
    if (unit > 0 && unit + 1 < sizeof units / sizeof *units && fabs(bytes) >= 1023.95) {
        bytes /= 1024;
        unit++;
    }
    snprintf(buffer, 32, "%.*f %s", unit ? 1 : 0, bytes, units[unit]);
    return buffer;
}

const char *cli_label(char *buffer, size_t size, const char *text)
{
    size_t length = strlen(text), from = length >= size ? length - size + 1 : 0, n = 0;
    for (size_t i = from; text[i]; i++)
        buffer[n++] =
            (unsigned char)text[i] >= ' ' && (unsigned char)text[i] < 0x7f ? text[i] : '?';
    if (from)
        buffer[0] = '~';
    buffer[n] = '\0';
    return buffer;
}

const char *cli_time_ns(char buffer[32], double ns)
{
    static const char *const units[] = {"us", "ms", "s"};
    if (!isfinite(ns))
        return "-";
    if (fabs(ns) < 999.5) {
        snprintf(buffer, 32, "%.0f ns", ns);
        return buffer;
    }
    size_t unit = 0;
    double value = ns / 1e3;
    while (unit < 2 && fabs(value) >= 999.9995) {
        value /= 1e3;
        unit++;
    }
    snprintf(buffer, 32, "%.3f %s", value, units[unit]);
    return buffer;
}

/* Whether stdout is a pipe that nobody reads any more; errno may long be overwritten. */
static bool reader_gone(void)
{
    struct pollfd fd = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&fd, 1, 0) == 1 && (fd.revents & POLLERR);
}

int cli_finish(const cli_command *command, int code)
{
    errno = 0;
    bool failed = fflush(stdout) != 0;
    int error = errno;
    if (!failed && !ferror(stdout))
        return code;
    if (error == EPIPE || reader_gone())
        return code;
    return cli_fail(command, CLI_INPUT, "cannot write to standard output%s%s", error ? ": " : "",
                    error ? strerror(error) : "");
}

const char *cli_metavar(const cli_option *option, char *buffer, size_t size)
{
    if (option->type == CLI_FLAG)
        return NULL;
    if (option->metavar)
        return option->metavar;
    if (option->type != CLI_CHOICE)
        return option->type == CLI_STRING ? "TEXT" : "N";
    size_t used = 0;
    for (int i = 0; option->choices[i] && used < size; i++)
        used +=
            (size_t)snprintf(buffer + used, size - used, "%s%s", i ? "|" : "", option->choices[i]);
    return buffer;
}

void cli_print_wrapped(FILE *stream, const char *text, int indent, int width)
{
    int column = indent;
    bool line_start = true;
    while (*text) {
        text += strspn(text, " \n");
        int length = (int)strcspn(text, " \n");
        if (!length)
            break;
        if (!line_start && column + 1 + length > width) {
            fprintf(stream, "\n%*s", indent, "");
            column = indent;
            line_start = true;
        }
        fprintf(stream, "%s%.*s", line_start ? "" : " ", length, text);
        column += length + !line_start;
        line_start = false;
        text += length;
    }
    fputc('\n', stream);
}

/* Paragraphs are wrapped; lines that begin with a space are examples and kept. */
static void print_details(FILE *stream, const char *details, int width)
{
    while (*details) {
        const char *end = strchr(details, '\n');
        if (*details == ' ' || *details == '\n') {
            int length = end ? (int)(end - details) : (int)strlen(details);
            fprintf(stream, "%.*s\n", length, details);
        } else {
            const char *stop = strstr(details, "\n\n"), *example = strstr(details, "\n ");
            if (example && (!stop || example < stop))
                stop = example;
            char *paragraph = stop ? strndup(details, (size_t)(stop - details)) : strdup(details);
            if (paragraph)
                cli_print_wrapped(stream, paragraph, 0, width);
            free(paragraph);
            end = stop;
        }
        if (!end)
            break;
        details = end + 1;
    }
}

static void print_options(FILE *stream, const cli_option *options, const cli_option *hidden_by,
                          int width)
{
    for (; options && options->name; options++) {
        bool hidden = false;
        for (const cli_option *o = hidden_by; o && o->name; o++)
            hidden |= !strcmp(o->name, options->name);
        if (hidden)
            continue;
        char head[160], short_name[8] = "    ", buffer[96];
        const char *metavar = cli_metavar(options, buffer, sizeof buffer);
        if (options->short_name)
            snprintf(short_name, sizeof short_name, "-%c, ", options->short_name);
        int length = snprintf(head, sizeof head, "  %s--%s%s%s", short_name, options->name,
                              metavar ? " " : "", metavar ? metavar : "");
        if (length + 2 > HELP_COLUMN)
            fprintf(stream, "%s\n%*s", head, HELP_COLUMN, "");
        else
            fprintf(stream, "%-*s", HELP_COLUMN, head);
        cli_print_wrapped(stream, options->help ? options->help : "", HELP_COLUMN, width);
    }
}

void cli_print_help(const cli_command *command, FILE *stream)
{
    int width = cli_width();
    if (width > DEFAULT_WIDTH)
        width = DEFAULT_WIDTH; /* longer lines are hard to read */
    fprintf(stream, "Usage: %s%s%s %s\n\n", cli_program(command), command->name[0] ? " " : "",
            command->name, command->usage);
    cli_print_wrapped(stream, command->summary, 0, width);
    if (command->details) {
        fputc('\n', stream);
        print_details(stream, command->details, width);
    }
    fprintf(stream, "\nOptions:\n");
    print_options(stream, command->options, NULL, width);
    print_options(stream, cli_common_options(), command->options, width);
}
