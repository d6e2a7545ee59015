/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks write into pipes (streams); whole lines, with the rank in front, go on to our stdout or
 * stderr (sinks). Our descriptors may be shared with other programs, so they stay in blocking mode
 * and are written when poll says so, at most PIPE_BUF bytes at a time. A slow reader holds back the
 * streams, as it would hold back a program that writes to it directly. */
#include <errno.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "tools/brigade/run.h"

enum {
    READ_BYTES = 64 * 1024,
    MAX_LINE_BYTES = 16 * 1024 * 1024, /* a longer line is broken here */
    SINK_HIGH_BYTES = 1024 * 1024,
    SINK_LOW_BYTES = 256 * 1024,
};

struct run_sink {
    int fd;
    bool pollable; /* files and /dev/null are not: they never block either */
    int error;
    struct evbuffer *pending;
    struct event *writable;
    run_stream *streams; /* those that write to it */
};

struct run_stream {
    int fd;
    run_sink *sink;
    run_stream *next;
    struct event *readable;
    bool paused;
    char *data; /* not yet passed on; holds no complete line between reads */
    size_t bytes, capacity, scanned;
    char prefix[16];
    void (*closed)(void *);
    void *arg;
};

static void stream_finish(run_stream *stream);

static bool can_poll(int fd)
{
    struct epoll_event event = {.events = EPOLLOUT};
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    bool ok = epoll >= 0 && !epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    if (epoll >= 0)
        close(epoll);
    return ok;
}

/* After an error nothing more is written. When the reader has gone, the ranks are to see what they
 * would see without us: a broken pipe. On other errors they may go on. */
static void sink_failed(run_sink *sink, int error)
{
    sink->error = error;
    evbuffer_drain(sink->pending, evbuffer_get_length(sink->pending));
    if (error != EPIPE)
        return;
    while (sink->streams)
        stream_finish(sink->streams);
}

static void sink_resume(run_sink *sink)
{
    if (evbuffer_get_length(sink->pending) > SINK_LOW_BYTES)
        return;
    for (run_stream *s = sink->streams; s; s = s->next)
        if (s->paused && !event_add(s->readable, NULL))
            s->paused = false;
}

static void sink_write(evutil_socket_t fd, short what, void *arg)
{
    run_sink *sink = arg;
    while (evbuffer_get_length(sink->pending) && !sink->error) {
        int n = evbuffer_write_atmost(sink->pending, sink->fd, sink->pollable ? PIPE_BUF : -1);
        if (n <= 0 && (errno == EAGAIN || errno == EINTR) && sink->pollable)
            break;
        if (n <= 0 && errno != EINTR)
            sink_failed(sink, errno ? errno : EIO);
        if (sink->pollable)
            break; /* poll again */
    }
    sink_resume(sink);
    if (evbuffer_get_length(sink->pending) && !sink->error)
        event_add(sink->writable, NULL);
}

run_sink *run_sink_create(struct event_base *base, int fd)
{
    run_sink *sink = calloc(1, sizeof *sink);
    if (!sink)
        return NULL;
    sink->fd = fd;
    sink->pollable = can_poll(fd);
    sink->pending = evbuffer_new();
    /* what cannot be polled is written from the loop, too: writing ends streams that are in use */
    sink->writable = sink->pollable ? event_new(base, fd, EV_WRITE, sink_write, sink)
                                    : event_new(base, -1, 0, sink_write, sink);
    if (!sink->pending || !sink->writable) {
        run_sink_destroy(sink);
        return NULL;
    }
    return sink;
}

void run_sink_destroy(run_sink *sink)
{
    if (!sink)
        return;
    if (sink->writable)
        event_free(sink->writable);
    if (sink->pending)
        evbuffer_free(sink->pending);
    free(sink);
}

static void sink_start(run_sink *sink)
{
    if (sink->pollable)
        event_add(sink->writable, NULL);
    else
        event_active(sink->writable, EV_WRITE, 0);
}

void run_sink_put(run_sink *sink, const char *text, size_t bytes)
{
    if (sink->error || !bytes)
        return;
    if (evbuffer_add(sink->pending, text, bytes))
        sink_failed(sink, ENOMEM);
    else
        sink_start(sink);
}

bool run_sink_idle(const run_sink *sink)
{
    return sink->error || !evbuffer_get_length(sink->pending);
}

int run_sink_error(const run_sink *sink)
{
    return sink->error;
}

static void emit(run_stream *stream, const char *text, size_t bytes, bool end_line)
{
    if (bytes != 1 || *text != '\r') /* progress bars begin with a return */
        run_sink_put(stream->sink, stream->prefix, strlen(stream->prefix));
    run_sink_put(stream->sink, text, bytes);
    if (end_line)
        run_sink_put(stream->sink, "\n", 1);
}

/* Passes complete lines on. A line ends with \n, \r\n, or \r, as progress bars do; whether \n
 * follows an \r that comes last is known only later. */
static void pass_lines(run_stream *stream)
{
    size_t start = 0, i = stream->scanned;
    for (; i < stream->bytes; i++) {
        char c = stream->data[i];
        if (c != '\n' && c != '\r')
            continue;
        if (c == '\r') {
            if (i + 1 == stream->bytes)
                break;
            if (stream->data[i + 1] == '\n')
                i++;
        }
        emit(stream, stream->data + start, i + 1 - start, false);
        start = i + 1;
    }
    if (i - start >= MAX_LINE_BYTES) {
        emit(stream, stream->data + start, i - start, true);
        start = i;
    }
    memmove(stream->data, stream->data + start, stream->bytes - start);
    stream->bytes -= start;
    stream->scanned = i - start;
    if (!stream->bytes && stream->capacity > 4 * READ_BYTES) { /* after a very long line */
        free(stream->data);
        stream->data = NULL;
        stream->capacity = 0;
    }
}

static bool make_room(run_stream *stream)
{
    if (stream->capacity - stream->bytes >= READ_BYTES)
        return true;
    size_t capacity = stream->capacity * 2 + READ_BYTES;
    char *data = realloc(stream->data, capacity);
    if (!data)
        return false;
    stream->data = data;
    stream->capacity = capacity;
    return true;
}

static void stream_read(evutil_socket_t fd, short what, void *arg)
{
    run_stream *stream = arg;
    if (!make_room(stream)) {
        run_sink_put(stream->sink, stream->data, stream->bytes); /* as it is, rather than not */
        stream->bytes = stream->scanned = 0;
        if (!stream->capacity)
            return;
    }
    ssize_t n = read(stream->fd, stream->data + stream->bytes, stream->capacity - stream->bytes);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        stream_finish(stream);
        return;
    }
    stream->bytes += (size_t)n;
    pass_lines(stream);
    if (evbuffer_get_length(stream->sink->pending) > SINK_HIGH_BYTES) {
        event_del(stream->readable);
        stream->paused = true;
    }
}

run_stream *run_stream_create(struct event_base *base, int fd, run_sink *sink, int rank,
                              void (*closed)(void *arg), void *arg)
{
    run_stream *stream = calloc(1, sizeof *stream);
    if (!stream || fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0) {
        free(stream);
        return NULL;
    }
    stream->readable = event_new(base, fd, EV_READ | EV_PERSIST, stream_read, stream);
    if (!stream->readable || event_add(stream->readable, NULL)) {
        if (stream->readable)
            event_free(stream->readable);
        free(stream);
        return NULL;
    }
    stream->fd = fd;
    stream->sink = sink;
    stream->closed = closed;
    stream->arg = arg;
    snprintf(stream->prefix, sizeof stream->prefix, "[%d] ", rank);
    stream->next = sink->streams;
    sink->streams = stream;
    return stream;
}

void run_stream_destroy(run_stream *stream)
{
    if (!stream)
        return;
    for (run_stream **link = &stream->sink->streams; *link; link = &(*link)->next)
        if (*link == stream) {
            *link = stream->next;
            break;
        }
    if (stream->bytes)
        emit(stream, stream->data, stream->bytes, true);
    event_free(stream->readable);
    close(stream->fd);
    free(stream->data);
    free(stream);
}

static void stream_finish(run_stream *stream)
{
    void (*closed)(void *) = stream->closed;
    void *arg = stream->arg;
    run_stream_destroy(stream);
    closed(arg);
}
