/* SPDX-License-Identifier: Apache-2.0 */
/* The host device with graphs. What is put on a capturing stream is kept and put on real streams
 * again by each launch; and what a CUDA capture would refuse is a test failure: a wait for an event
 * that was recorded outside, a question about one that was recorded inside, a stream that has not
 * joined again. */
#ifndef BRIGADE_TESTS_BUCKET_FAKE_GRAPHS_H
#define BRIGADE_TESTS_BUCKET_FAKE_GRAPHS_H

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

extern "C" {
#include "sched/device/device.h"
}

namespace fake
{

constexpr int REFUSED = 900; /* cudaErrorStreamCaptureUnsupported and its neighbours */

struct Graph {
    /* Puts one captured call on `streams`, which stand for those of the capture. */
    using Call = std::function<int(const std::map<void *, void *> &streams)>;
    void *origin;
    bool ended = false;
    std::vector<Call> calls;
    std::map<void *, std::map<void *, int>> clocks; /* what each stream has seen of each */
    std::map<void *, void *> streams;               /* of the capture, to private ones */
    std::vector<void *> events;
};

struct Recorded {
    Graph *graph;                /* NULL: outside */
    void *real;                  /* inside: the event that replays record */
    std::map<void *, int> clock; /* inside: what it stands for */
};

inline std::mutex mutex;
inline std::map<void *, Graph *> capturing; /* by stream */
inline std::map<void *, Recorded> recorded; /* by event */
inline std::atomic<int> violations{0};

inline const brg_runtime *host()
{
    return brg_host_runtime();
}

inline int refuse(const char *what)
{
    violations++;
    ADD_FAILURE() << "in a capture: " << what;
    return REFUSED;
}

inline Graph *graph_of(void *stream)
{
    auto at = capturing.find(stream);
    return at == capturing.end() ? nullptr : at->second;
}

/* Keeps the call if the stream is being captured. */
inline int put(void *stream, std::function<int(void *)> call)
{
    {
        std::lock_guard<std::mutex> lock(mutex);
        if (Graph *graph = graph_of(stream)) {
            graph->clocks[stream][stream]++;
            graph->calls.push_back([stream, call](const std::map<void *, void *> &streams) {
                return call(streams.at(stream));
            });
            return 0;
        }
    }
    return call(stream);
}

inline int event_record(void *event, void *stream)
{
    std::lock_guard<std::mutex> lock(mutex);
    Graph *graph = graph_of(stream);
    if (!graph) {
        recorded[event] = {nullptr, nullptr, {}};
        return host()->event_record(event, stream);
    }
    void *real = nullptr;
    host()->event_create(&real, 0);
    graph->events.push_back(real);
    recorded[event] = {graph, real, graph->clocks[stream]};
    graph->calls.push_back([stream, real](const std::map<void *, void *> &streams) {
        return host()->event_record(real, streams.at(stream));
    });
    return 0;
}

inline int stream_wait_event(void *stream, void *event)
{
    {
        std::lock_guard<std::mutex> lock(mutex);
        Graph *graph = graph_of(stream);
        auto at = recorded.find(event);
        Graph *from = at == recorded.end() ? nullptr : at->second.graph;
        if (from && from->ended)
            return refuse("a wait for an event of a capture that has ended");
        if (graph && from != graph)
            return refuse("a wait for an event that was recorded outside");
        if (from) {
            capturing[stream] = from; /* joins the capture */
            auto &clock = from->clocks[stream];
            for (auto &[other, count] : at->second.clock)
                clock[other] = std::max(clock[other], count);
            void *real = at->second.real;
            from->calls.push_back([stream, real](const std::map<void *, void *> &streams) {
                return host()->stream_wait_event(streams.at(stream), real);
            });
            return 0;
        }
    }
    return host()->stream_wait_event(stream, event);
}

inline bool inside(void *event)
{
    std::lock_guard<std::mutex> lock(mutex);
    auto at = recorded.find(event);
    return at != recorded.end() && at->second.graph;
}

inline int event_query(void *event)
{
    return inside(event) ? refuse("event_query") : host()->event_query(event);
}
inline int event_synchronize(void *event)
{
    return inside(event) ? refuse("event_synchronize") : host()->event_synchronize(event);
}
inline int event_elapsed(float *ms, void *start, void *end)
{
    return inside(start) || inside(end) ? refuse("event_elapsed")
                                        : host()->event_elapsed(ms, start, end);
}
inline int event_destroy(void *event)
{
    {
        std::lock_guard<std::mutex> lock(mutex);
        recorded.erase(event);
    }
    return host()->event_destroy(event);
}
inline int stream_synchronize(void *stream)
{
    {
        std::lock_guard<std::mutex> lock(mutex);
        if (graph_of(stream))
            return refuse("stream_synchronize");
    }
    return host()->stream_synchronize(stream);
}
inline int memcpy_async(void *dst, const void *src, size_t bytes, int kind, void *stream)
{
    return put(stream, [=](void *s) { return host()->memcpy_async(dst, src, bytes, kind, s); });
}
inline int memset_async(void *dst, int value, size_t bytes, void *stream)
{
    return put(stream, [=](void *s) { return host()->memset_async(dst, value, bytes, s); });
}
inline int launch_host_func(void *stream, void (*fn)(void *), void *arg)
{
    return put(stream, [=](void *s) { return host()->launch_host_func(s, fn, arg); });
}

inline int stream_is_capturing(void *stream, int *yes)
{
    std::lock_guard<std::mutex> lock(mutex);
    *yes = graph_of(stream) != nullptr;
    return 0;
}

inline int graph_begin(void *stream)
{
    std::lock_guard<std::mutex> lock(mutex);
    if (graph_of(stream))
        return refuse("graph_begin");
    auto *graph = new Graph;
    graph->origin = stream;
    capturing[stream] = graph;
    return 0;
}

inline int graph_end(void *stream, void **out)
{
    std::lock_guard<std::mutex> lock(mutex);
    Graph *graph = graph_of(stream);
    *out = nullptr;
    if (!graph || graph->origin != stream)
        return refuse("graph_end on a stream that did not begin it");
    graph->ended = true;
    for (auto at = capturing.begin(); at != capturing.end();) {
        if (at->second != graph) {
            ++at;
            continue;
        }
        void *member = at->first;
        if (graph->clocks[stream][member] != graph->clocks[member][member])
            refuse("a stream has not joined again");
        if (member != stream)
            host()->stream_create(&graph->streams[member], BRG_STREAM_NON_BLOCKING, 0);
        at = capturing.erase(at);
    }
    *out = graph;
    return 0;
}

inline int graph_launch(void *arg, void *stream)
{
    auto *graph = (Graph *)arg;
    auto streams = graph->streams;
    streams[graph->origin] = stream;
    for (auto &call : graph->calls)
        if (int error = call(streams))
            return error;
    return 0;
}

inline int graph_destroy(void *arg)
{
    auto *graph = (Graph *)arg;
    if (!graph)
        return 0;
    for (auto &[member, stream] : graph->streams)
        host()->stream_destroy(stream);
    std::lock_guard<std::mutex> lock(mutex);
    for (void *event : graph->events)
        host()->event_destroy(event);
    /* Not freed: events that were recorded in it last still say so. */
    static std::vector<std::unique_ptr<Graph>> past;
    past.emplace_back(graph);
    return 0;
}

inline int all_reduce(const void *send, void *recv, size_t count, int dtype, int op, void *comm,
                      void *stream)
{
    return put(stream, [=](void *s) {
        return brg_host_nccl()->all_reduce(send, recv, count, dtype, op, comm, s);
    });
}
inline int reduce_scatter(const void *send, void *recv, size_t count, int dtype, int op, void *comm,
                          void *stream)
{
    return put(stream, [=](void *s) {
        return brg_host_nccl()->reduce_scatter(send, recv, count, dtype, op, comm, s);
    });
}
inline int all_gather(const void *send, void *recv, size_t count, int dtype, void *comm,
                      void *stream)
{
    return put(stream, [=](void *s) {
        return brg_host_nccl()->all_gather(send, recv, count, dtype, comm, s);
    });
}
inline int broadcast(const void *send, void *recv, size_t count, int dtype, int root, void *comm,
                     void *stream)
{
    return put(stream, [=](void *s) {
        return brg_host_nccl()->broadcast(send, recv, count, dtype, root, comm, s);
    });
}

/* The device clock: another origin than the host's. */
struct Stamp {
    uint64_t *slots, *counter;
    uint32_t ring, stride, index;
    int advance;
};
inline uint64_t device_clock()
{
    return (uint64_t)std::chrono::steady_clock::now().time_since_epoch().count() + 12345678901ull;
}
inline int stamp(uint64_t *slots, uint64_t *counter, uint32_t ring, uint32_t stride, uint32_t index,
                 int advance, void *stream)
{
    static std::mutex lock;
    static std::vector<std::unique_ptr<Stamp>> all;
    std::lock_guard<std::mutex> guard(lock);
    all.push_back(std::make_unique<Stamp>(Stamp{slots, counter, ring, stride, index, advance}));
    return launch_host_func(
        stream,
        [](void *arg) {
            auto *s = (Stamp *)arg;
            s->slots[(*s->counter % s->ring) * s->stride + s->index] = device_clock();
            *s->counter += (uint64_t)s->advance;
        },
        all.back().get());
}

/* Finds nothing: what checks find is tested elsewhere. */
inline int check_values(const void *, int, int64_t, int64_t *first, double *sum_squares, double *,
                        void *)
{
    *first = -1;
    *sum_squares = 0;
    return 0;
}

/* The tables; they live on. */
inline brg_device device()
{
    static brg_runtime rt;
    static brg_nccl nccl;
    static brg_kernels kernels;
    static std::once_flag once;
    std::call_once(once, [] {
        rt = *brg_host_runtime();
        rt.event_record = event_record;
        rt.stream_wait_event = stream_wait_event;
        rt.event_query = event_query;
        rt.event_synchronize = event_synchronize;
        rt.event_elapsed = event_elapsed;
        rt.event_destroy = event_destroy;
        rt.stream_synchronize = stream_synchronize;
        rt.memcpy_async = memcpy_async;
        rt.memset_async = memset_async;
        rt.launch_host_func = launch_host_func;
        rt.stream_is_capturing = stream_is_capturing;
        rt.graph_begin = graph_begin;
        rt.graph_end = graph_end;
        rt.graph_launch = graph_launch;
        rt.graph_destroy = graph_destroy;
        nccl = *brg_host_nccl();
        nccl.all_reduce = all_reduce;
        nccl.reduce_scatter = reduce_scatter;
        nccl.all_gather = all_gather;
        nccl.broadcast = broadcast;
        kernels.abi = BRG_KERNELS_ABI;
        kernels.stamp = stamp;
        kernels.check_values = check_values;
    });
    return {&rt, &nccl, &kernels};
}

} // namespace fake

#endif
