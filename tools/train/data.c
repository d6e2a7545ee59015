/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/train/data.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/train/random.h"

#define HELD_OUT_PARTS 20 /* one of so many is held out */
#define MAX_FILE_BYTES ((off_t)1 << 32)
#define SAMPLE_STREAM                                                                              \
    0x73616d706c65u /* keeps samples apart from initial values of the same seed                    \
                     */

/* Directory of the running program, without a final slash; "" if unknown. */
static void program_directory(char *path, size_t bytes)
{
    ssize_t length = readlink("/proc/self/exe", path, bytes - 1);
    path[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(path, '/');
    if (slash)
        *slash = '\0';
}

int data_find(char *path, size_t path_bytes, char *message, size_t message_bytes)
{
    const char *chosen = getenv("BRIGADE_TRAIN_DATA");
    if (chosen && *chosen) {
        if ((size_t)snprintf(path, path_bytes, "%s", chosen) < path_bytes)
            return 0;
        snprintf(message, message_bytes, "BRIGADE_TRAIN_DATA is longer than %zu bytes",
                 path_bytes - 1);
        return -1;
    }
    char program[PATH_MAX];
    program_directory(program, sizeof program);
    static const char *const formats[] = {"%s/" DATA_FILE_NAME,
                                          "%s/../share/brigade/" DATA_FILE_NAME};
    for (int i = 0; i < 3; i++) {
        int length = i < 2 ? snprintf(path, path_bytes, formats[i], program)
                           : snprintf(path, path_bytes, "%s", BRIGADE_DATA_DIR "/" DATA_FILE_NAME);
        if (length > 0 && (size_t)length < path_bytes && access(path, R_OK) == 0)
            return 0;
    }
    snprintf(message, message_bytes,
             "the shipped text " DATA_FILE_NAME " is neither in %s, %s/../share/brigade nor "
             "in " BRIGADE_DATA_DIR "; name a text with --data FILE",
             program, program);
    return -1;
}

/* Reads the whole file into *bytes. */
static int read_file(const char *path, uint8_t **bytes, size_t *count, char *message,
                     size_t message_bytes)
{
    struct stat info;
    uint8_t *memory = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info)) {
        snprintf(message, message_bytes, "cannot read %s: %s", path, strerror(errno));
        goto fail;
    }
    if (!S_ISREG(info.st_mode) || info.st_size > MAX_FILE_BYTES) {
        snprintf(message, message_bytes, "%s is not a regular file of at most 4 GiB", path);
        goto fail;
    }
    const size_t size = (size_t)info.st_size;
    memory = malloc(size ? size : 1);
    if (!memory) {
        snprintf(message, message_bytes, "no memory for the %zu bytes of %s", size, path);
        goto fail;
    }
    size_t done = 0;
    while (done < size) {
        ssize_t got = read(fd, memory + done, size - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            snprintf(message, message_bytes, "cannot read %s: %s", path, strerror(errno));
            goto fail;
        }
        if (got == 0)
            break; /* cut while being read: what is there counts */
        done += (size_t)got;
    }
    close(fd);
    *bytes = memory;
    *count = done;
    return 0;
fail:
    free(memory);
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Replaces bytes by their index among those that occur. */
static void tokenize(text_data *data)
{
    int token_of[256];
    size_t seen[256] = {0};
    for (size_t i = 0; i < data->count; i++)
        seen[data->tokens[i]]++;
    data->vocab = 0;
    for (int byte = 0; byte < 256; byte++) {
        token_of[byte] = data->vocab;
        if (seen[byte])
            data->byte_of[data->vocab++] = (uint8_t)byte;
    }
    for (size_t i = 0; i < data->count; i++)
        data->tokens[i] = (uint8_t)token_of[data->tokens[i]];
}

int data_load(const char *path, int seq_len, text_data *data, char *message, size_t message_bytes)
{
    memset(data, 0, sizeof *data);
    data->seq_len = seq_len;
    if (read_file(path, &data->tokens, &data->count, message, message_bytes))
        return -1;
    const size_t sample = (size_t)seq_len + 1;
    const size_t held_out = data->count / HELD_OUT_PARTS;
    data->train_count = data->count - held_out;
    if (data->count == 0) {
        snprintf(message, message_bytes, "%s is empty", path);
    } else if (held_out < sample || data->train_count < sample) {
        snprintf(
            message, message_bytes,
            "%s has %zu bytes; samples of %d tokens need at least %zu, as a twentieth is held out",
            path, data->count, seq_len, sample * HELD_OUT_PARTS);
    } else {
        tokenize(data);
        if (data->vocab >= 2)
            return 0;
        snprintf(message, message_bytes, "%s holds only one kind of byte (0x%02x)", path,
                 data->byte_of[0]);
    }
    data_free(data);
    return -1;
}

void data_free(text_data *data)
{
    free(data->tokens);
    data->tokens = NULL;
}

void data_fill_batch(const text_data *data, uint64_t seed, uint64_t step, int64_t first, int count,
                     uint8_t *tokens)
{
    const size_t sample = (size_t)data->seq_len + 1;
    const uint64_t starts = data->train_count - sample + 1;
    for (int i = 0; i < count; i++) {
        uint64_t bits = random_at(seed ^ SAMPLE_STREAM, step, (uint64_t)(first + i));
        memcpy(tokens + (size_t)i * sample, data->tokens + bits % starts, sample);
    }
}

size_t data_held_out_count(const text_data *data, size_t max_windows)
{
    size_t windows = (data->count - data->train_count - 1) / (size_t)data->seq_len;
    return windows < max_windows ? windows : max_windows;
}

const uint8_t *data_held_out(const text_data *data, size_t index, size_t count)
{
    const size_t windows = (data->count - data->train_count - 1) / (size_t)data->seq_len;
    const size_t window = index * windows / count;
    return data->tokens + data->train_count + window * (size_t)data->seq_len;
}
