/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "tools/brigade/run.h"

struct run_input {
    int terminal, pipe;
    struct event *readable, *writable, *retry;
    char data[4096];
    size_t bytes, done;
};

static void input_stop(run_input *input)
{
    if (input->pipe >= 0)
        close(input->pipe);
    input->pipe = -1;
}

static void input_write(evutil_socket_t fd, short what, void *arg)
{
    run_input *input = arg;
    ssize_t n = write(input->pipe, input->data + input->done, input->bytes - input->done);
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
        event_del(input->writable);
        input_stop(input); /* rank 0 reads no more */
        return;
    }
    if (n > 0)
        input->done += (size_t)n;
    if (input->done < input->bytes)
        event_add(input->writable, NULL);
    else
        event_add(input->readable, NULL);
}

static void input_read(evutil_socket_t fd, short what, void *arg)
{
    run_input *input = arg;
    if (tcgetpgrp(input->terminal) != getpgrp()) {
        /* in the background, what is typed is for others, and reading would stop us */
        event_add(input->retry, &(struct timeval){.tv_sec = 1});
        return;
    }
    ssize_t n = read(input->terminal, input->data, sizeof input->data);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        event_add(input->readable, NULL);
        return;
    }
    if (n <= 0) {
        input_stop(input); /* end of file: rank 0 sees it too */
        return;
    }
    input->bytes = (size_t)n;
    input->done = 0;
    event_add(input->writable, NULL);
}

static void input_retry(evutil_socket_t fd, short what, void *arg)
{
    run_input *input = arg;
    event_add(input->readable, NULL);
}

run_input *run_input_create(struct event_base *base, int terminal, int pipe)
{
    run_input *input = calloc(1, sizeof *input);
    if (!input)
        return NULL;
    input->terminal = terminal;
    input->pipe = pipe;
    input->readable = event_new(base, terminal, EV_READ, input_read, input);
    input->writable = event_new(base, pipe, EV_WRITE, input_write, input);
    input->retry = evtimer_new(base, input_retry, input);
    if (!input->readable || !input->writable || !input->retry ||
        fcntl(pipe, F_SETFL, fcntl(pipe, F_GETFL) | O_NONBLOCK) < 0 ||
        event_add(input->readable, NULL)) {
        input->pipe = -1; /* stays the caller's */
        run_input_destroy(input);
        return NULL;
    }
    return input;
}

void run_input_destroy(run_input *input)
{
    if (!input)
        return;
    if (input->readable)
        event_free(input->readable);
    if (input->writable)
        event_free(input->writable);
    if (input->retry)
        event_free(input->retry);
    input_stop(input);
    free(input);
}
