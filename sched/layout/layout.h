/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of a layout, and the steps that lead to one. */
#ifndef BRIGADE_LAYOUT_LAYOUT_H
#define BRIGADE_LAYOUT_LAYOUT_H

#include <stdbool.h>

#include "brigade/layout.h"
#include "sched/layout/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct brg_param_place {
    int buffer; /* -1: nowhere yet */
    int index;  /* in the buffer's params */
} brg_param_place;

struct brg_layout {
    brg_layout_options options; /* defaults filled in */
    int num_params;
    brg_param *params; /* names point into `names` */
    char *names;
    int num_buffers;
    brg_layout_buffer *buffers; /* their arrays are owned */
    brg_param_place *places;    /* per parameter */
};

/* Checks a caller's options and fills in defaults, except for what needs the parameters:
 * bucket_size is left at its default when num_buckets is given. */
brg_status brg_layout_options_resolve(const brg_layout_options *given, brg_layout_options *options);

/* Turns num_buckets, if given, into a bucket size; `total` is the elements of all parameters. */
void brg_layout_options_divide(brg_layout_options *options, int64_t total);

/* Checks descriptions and copies them; `total` is the sum of their elements. */
brg_status brg_layout_copy_params(brg_layout *layout, const brg_param *params, int num_params,
                                  int64_t *total);

/* Newton-Schulz work of one parameter: max * min^2 of the whole matrix; its elements if it is none.
 * The parameter has passed brg_layout_copy_params(). */
brg_ns_cost brg_param_ns_cost(const brg_param *param);

/* Whether the layer-wise optimizer manages a parameter. */
bool brg_param_is_layerwise(const brg_param *param);

/* The key of a parameter's buffer under `options`. */
brg_buffer_key brg_param_buffer_key(const brg_param *param, const brg_layout_options *options);
bool brg_buffer_key_equal(const brg_buffer_key *a, const brg_buffer_key *b);

/* Creates the buffers in order of first appearance, empty, and sets places[].buffer. num_params of
 * a buffer counts what belongs to it; its params are NULL. */
brg_status brg_layout_group(brg_layout *layout);

/* A buffer without contents: key, name, shards. */
void brg_layout_buffer_init(brg_layout_buffer *buffer, brg_buffer_key key,
                            const brg_layout_options *options);

/* The last step, once buckets and params (in order of start) of all buffers are in: fills in numel,
 * numel_unpadded, ns_ratio and places[].index, then checks the invariants. */
brg_status brg_layout_complete(brg_layout *layout);

/* The words used in JSON and on the command line; NULL outside the enumeration. */
const char *brg_algorithm_str(brg_algorithm algorithm);
const char *brg_packing_str(brg_packing packing);

#ifdef __cplusplus
}
#endif
#endif
