/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/brigade/bench_session.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "sched/bucket/context.h"
#include "sched/optim/convert.h"
#include "sched/status.h"

enum { RANDOM_ELEMS = 1 << 22 };

const char *const bench_device_words[] = {"auto", "host", "cuda", NULL};

brg_status bench_rt(const bench_session *session, int error, const char *what)
{
    return error == BRG_RT_OK ? BRG_OK : brg_rt_status(session->device, error, what);
}

static brg_status open_parts(bench_session *s, int kind, bool ranks, const char *trace_dir)
{
    brg_status status;
    brg_context_options options = {.size = sizeof options,
                                   .device = (brg_device_kind)kind,
                                   .world_size = ranks ? 0 : 1,
                                   .trace_dir = trace_dir ? trace_dir : ""};
    BRG_TRY(brg_context_open(&options, &s->ctx), out);
    s->device = brg_context_device_tables(s->ctx);
    s->rank = brg_context_rank(s->ctx);
    s->world = brg_context_world_size(s->ctx);
    const brg_runtime *rt = s->device->rt;
    /* The context leaves the thread's current device alone; all that follows is on the rank's. */
    BRG_TRY(bench_rt(s, rt->set_device(s->ctx->device_index), "set_device"), out);
    if (!rt->device_name ||
        rt->device_name(s->device_name, sizeof s->device_name, s->ctx->device_index))
        snprintf(s->device_name, sizeof s->device_name, "%s", rt->name);
    BRG_TRY(brg_stream_create(s->ctx, &s->stream), out);
    BRG_TRY(bench_rt(s, rt->event_create(&s->begin, 0), "event_create"), out);
    BRG_TRY(bench_rt(s, rt->event_create(&s->end, 0), "event_create"), out);
out:
    return status;
}

int bench_open(bench_session *session, const cli_command *command, int kind, bool ranks,
               const char *trace_dir)
{
    *session = (bench_session){.command = command};
    brg_status status = open_parts(session, kind, ranks, trace_dir);
    if (status == BRG_OK)
        return CLI_OK;
    return cli_fail(command, CLI_INPUT, "%s: %s", brg_status_str(status), brg_last_error());
}

void bench_close(bench_session *s)
{
    if (!s->ctx)
        return;
    const brg_runtime *rt = s->device->rt;
    if (s->stream)
        rt->stream_synchronize(s->stream);
    for (int i = 0; i < 2; i++)
        rt->free_device(s->random[i]);
    if (s->begin)
        rt->event_destroy(s->begin);
    if (s->end)
        rt->event_destroy(s->end);
    brg_stream_destroy(s->ctx, s->stream);
    brg_context_close(s->ctx);
    *s = (bench_session){.command = s->command};
}

int bench_fail(bench_session *s, brg_status status)
{
    const char *text = brg_last_error();
    if (s->world > 1)
        cli_fail(s->command, CLI_FINDING, "rank %d: %s: %s", s->rank, brg_status_str(status), text);
    else
        cli_fail(s->command, CLI_FINDING, "%s: %s", brg_status_str(status), text);
    brg_context_abort(s->ctx);
    return CLI_FINDING;
}

brg_status bench_alloc(bench_session *session, size_t bytes, void **memory)
{
    char what[64];
    *memory = NULL;
    snprintf(what, sizeof what, "device memory of %zu bytes", bytes);
    return bench_rt(session, session->device->rt->malloc_device(memory, bytes ? bytes : 1), what);
}

void bench_free(bench_session *session, void *memory)
{
    if (session->ctx)
        session->device->rt->free_device(memory);
}

void bench_random(float *values, size_t numel, uint64_t seed)
{
    const float to_unit_variance = 1.7320508f / 65536.0f; /* four uniforms: 4/12 of 65536^2 */
    uint64_t state = seed * 0x9E3779B97F4A7C15u + 0x1234567890ABCDEFu;
    for (size_t i = 0; i < numel; i++) {
        uint64_t z = state += 0x9E3779B97F4A7C15u; /* splitmix64 */
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        z ^= z >> 31;
        int32_t sum = (int32_t)(z & 0xFFFF) + (int32_t)(z >> 16 & 0xFFFF) +
                      (int32_t)(z >> 32 & 0xFFFF) + (int32_t)(z >> 48);
        values[i] = (float)(sum - 2 * 65535) * to_unit_variance;
    }
}

static brg_status make_random(bench_session *s, brg_dtype dtype, void **block)
{
    brg_status status = BRG_ERR_NO_MEMORY;
    size_t bytes = RANDOM_ELEMS * brg_dtype_bytes(dtype);
    float *values = malloc(RANDOM_ELEMS * sizeof *values);
    void *rounded = malloc(bytes);
    if (!values || !rounded) {
        brg_fail(status, "no memory for random values");
        goto out;
    }
    bench_random(values, RANDOM_ELEMS, 1);
    for (size_t i = 0; i < RANDOM_ELEMS; i++)
        values[i] *= 0.02f;
    brg_store_f32(rounded, dtype, 0, values, RANDOM_ELEMS);
    BRG_TRY(bench_alloc(s, bytes, block), out);
    BRG_TRY(bench_rt(s,
                     s->device->rt->memcpy_async(*block, rounded, bytes, BRG_COPY_HOST_TO_DEVICE,
                                                 s->stream),
                     "memcpy_async"),
            out);
    BRG_TRY(brg_stream_synchronize(s->ctx, s->stream), out);
out:
    free(values);
    free(rounded);
    return status;
}

brg_status bench_fill(bench_session *s, void *memory, brg_dtype dtype, size_t numel)
{
    size_t elem = brg_dtype_bytes(dtype);
    void **block = &s->random[elem == 2];
    brg_status status = BRG_OK;
    if (!*block)
        BRG_TRY(make_random(s, dtype, block), out);
    for (size_t done = 0; done < numel; done += RANDOM_ELEMS) {
        size_t count = numel - done < RANDOM_ELEMS ? numel - done : RANDOM_ELEMS;
        BRG_TRY(
            bench_rt(s,
                     s->device->rt->memcpy_async((char *)memory + done * elem, *block, count * elem,
                                                 BRG_COPY_DEVICE_TO_DEVICE, s->stream),
                     "memcpy_async"),
            out);
    }
out:
    return status;
}

brg_status bench_time_begin(bench_session *s)
{
    brg_status status;
    BRG_TRY(bench_rt(s, s->device->rt->device_synchronize(), "device_synchronize"), out);
    BRG_TRY(bench_rt(s, s->device->rt->event_record(s->begin, s->stream), "event_record"), out);
out:
    return status;
}

brg_status bench_time_end(bench_session *s, double *us)
{
    brg_status status;
    float ms = 0;
    BRG_TRY(bench_rt(s, s->device->rt->event_record(s->end, s->stream), "event_record"), out);
    BRG_TRY(brg_stream_synchronize(s->ctx, s->stream), out);
    BRG_TRY(bench_rt(s, s->device->rt->event_elapsed(&ms, s->begin, s->end), "event_elapsed"), out);
    *us = (double)ms * 1e3;
out:
    return status;
}

brg_status bench_max_over_ranks(bench_session *s, double *values, int count)
{
    brg_status status = BRG_OK;
    size_t bytes = (size_t)count * sizeof *values;
    const brg_runtime *rt = s->device->rt;
    void *memory = NULL;
    if (s->world == 1)
        return BRG_OK;
    BRG_TRY(bench_alloc(s, bytes, &memory), out);
    BRG_TRY(bench_rt(s, rt->memcpy_async(memory, values, bytes, BRG_COPY_HOST_TO_DEVICE, s->stream),
                     "memcpy_async"),
            out);
    BRG_TRY(brg_all_reduce(s->ctx, memory, memory, (size_t)count, BRG_FLOAT64, BRG_MAX, s->stream),
            out);
    BRG_TRY(bench_rt(s, rt->memcpy_async(values, memory, bytes, BRG_COPY_DEVICE_TO_HOST, s->stream),
                     "memcpy_async"),
            out);
    BRG_TRY(brg_stream_synchronize(s->ctx, s->stream), out);
out:
    bench_free(s, memory);
    return status;
}

int bench_print_json(const cli_command *command, void *root)
{
    char *text = root ? json_dumps(root, JSON_REAL_PRECISION(8)) : NULL;
    json_decref(root);
    if (!text)
        return cli_fail(command, CLI_INPUT, "no memory for the document");
    puts(text);
    free(text);
    return CLI_OK;
}
