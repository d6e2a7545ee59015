/* SPDX-License-Identifier: Apache-2.0 */
/* The text: one file, cut into a part to train on and a part held out, as tokens.
 *
 * A token is the index of a byte among the bytes that occur in the file. Which samples a step sees
 * depends on seed, step and position in the global batch, never on how many ranks share it. */
#ifndef BRIGADE_TOOLS_TRAIN_DATA_H
#define BRIGADE_TOOLS_TRAIN_DATA_H

#include <stddef.h>
#include <stdint.h>

#define DATA_FILE_NAME "pride_and_prejudice.txt"

typedef struct text_data {
    uint8_t *tokens;
    size_t count;
    size_t train_count; /* tokens [0, train_count) are trained on, the others held out */
    int seq_len;
    int vocab;
    uint8_t byte_of[256]; /* token to byte */
} text_data;

/* Finds the shipped text: BRIGADE_TRAIN_DATA, beside the executable, ../share/brigade from it, or
 * where it was installed. Returns 0, or -1 with a message that lists where it looked. */
int data_find(char *path, size_t path_bytes, char *message, size_t message_bytes);

/* Reads `path` for samples of seq_len tokens. Returns 0; or -1 with a message that names the file
 * and what is wrong: unreadable, empty, fewer than two different bytes, too short for one sample in
 * each part. */
int data_load(const char *path, int seq_len, text_data *data, char *message, size_t message_bytes);
void data_free(text_data *data);

/* Writes samples [first, first + count) of the global batch of `step` to tokens[count][seq_len +
 * 1]. */
void data_fill_batch(const text_data *data, uint64_t seed, uint64_t step, int64_t first, int count,
                     uint8_t *tokens);

/* Held-out samples: windows side by side, at most max_windows, spread over the held-out part. */
size_t data_held_out_count(const text_data *data, size_t max_windows);
/* The seq_len + 1 tokens of window `index` of `count`. */
const uint8_t *data_held_out(const text_data *data, size_t index, size_t count);

#endif
