// SPDX-License-Identifier: Apache-2.0
/* The time line over a fake runtime whose clock the test turns. */
#include <cmath>
#include <filesystem>
#include <map>
#include <unistd.h>
#include <vector>

#include "tests/bucket/harness.h"

extern "C" {
#include "sched/bucket/timeline.h"
#include "sched/trace/reader.h"
}

namespace
{

/* Events happen when they are recorded, or later, when the test says so. */
struct FakeEvent {
    bool done = false;
    double ns = 0;
};
double fake_ns;
bool fake_asynchronous;
std::vector<FakeEvent *> fake_pending;
std::map<void *, std::unique_ptr<FakeEvent>> fake_events;

int event_create(void **event, unsigned)
{
    auto *e = new FakeEvent;
    fake_events[e] = std::unique_ptr<FakeEvent>(e);
    *event = e;
    return 0;
}
int event_destroy(void *event)
{
    fake_events.erase(event);
    return 0;
}
int event_record(void *event, void *)
{
    auto *e = (FakeEvent *)event;
    e->ns = fake_ns;
    e->done = !fake_asynchronous;
    if (fake_asynchronous)
        fake_pending.push_back(e);
    return 0;
}
int event_query(void *event)
{
    return ((FakeEvent *)event)->done ? BRG_RT_OK : BRG_RT_NOT_READY;
}
int event_elapsed(float *ms, void *start, void *end)
{
    *ms = (float)((((FakeEvent *)end)->ns - ((FakeEvent *)start)->ns) * 1e-6);
    return 0;
}
void finish_pending()
{
    for (FakeEvent *e : fake_pending)
        e->done = true;
    fake_pending.clear();
}

struct Fixture {
    brg_runtime rt = {};
    brg_device device = {};
    brg_ring *ring = nullptr;
    brg_timeline *timeline = nullptr;
    std::string dir;
    double base;

    explicit Fixture(int nrec_log2 = 16)
    {
        rt.name = "fake";
        rt.event_create = event_create;
        rt.event_destroy = event_destroy;
        rt.event_record = event_record;
        rt.event_query = event_query;
        rt.event_synchronize = event_query;
        rt.event_elapsed = event_elapsed;
        device.rt = &rt;
        fake_ns = 0;
        fake_asynchronous = false;
        char name[] = "/tmp/brigade-timeline-XXXXXX";
        dir = mkdtemp(name);
        brg_ring_options options = {};
        options.world = 1;
        options.nrec_log2 = nrec_log2;
        EXPECT_OK(brg_ring_create((dir + "/rank-0.ring").c_str(), &options, &ring));
        EXPECT_OK(brg_timeline_create(&device, ring, nullptr, &timeline));
    }
    ~Fixture()
    {
        brg_timeline_destroy(timeline);
        brg_ring_close(ring);
        EXPECT_TRUE(fake_events.empty());
        std::filesystem::remove_all(dir);
    }
};

TEST(TimelineTest, LongRunsKeepMicroseconds)
{
    /* Elapsed times are float milliseconds: an hour away from the origin a step of 1 ms is lost. */
    for (bool asynchronous : {false, true}) {
        Fixture f;
        fake_asynchronous = asynchronous;
        int last = BRG_NO_STAMP;
        const int steps = 20000;
        const double step_ns = 1.1e9;
        for (int step = 0; step < steps; step++) {
            int now = brg_timeline_stamp(f.timeline, nullptr);
            brg_rec record = {};
            record.kind = BRG_REC_STEP;
            record.step = (uint32_t)step;
            record.bucket = BRG_NO_BUCKET;
            int later = 0;
            fake_ns += 1e6; /* a span of 1 ms */
            later = brg_timeline_stamp(f.timeline, nullptr);
            brg_timeline_emit(f.timeline, &record, brg_timeline_ref(f.timeline, now), later);
            brg_timeline_harvest(f.timeline, last);
            brg_timeline_unref(f.timeline, last);
            last = now;
            finish_pending();
            fake_ns += step_ns - 1e6;
        }
        brg_timeline_harvest(f.timeline, last);
        brg_timeline_unref(f.timeline, last);
        brg_trace *trace = nullptr;
        ASSERT_OK(brg_trace_open((f.dir + "/rank-0.ring").c_str(), &trace));
        size_t seen = 0;
        double first = 0;
        for (size_t i = 0; i < trace->nrecs; i++) {
            const brg_rec &r = trace->recs[i];
            if (r.kind != BRG_REC_STEP)
                continue;
            if (!seen++)
                first = (double)r.t0_ns;
            ASSERT_NEAR((double)(r.t1_ns - r.t0_ns), 1e6, 300.0) << "step " << r.step;
            ASSERT_NEAR((double)r.t0_ns - first, r.step * step_ns, 2e-8 * step_ns * (r.step + 1))
                << "step " << r.step;
        }
        EXPECT_EQ(seen, (size_t)steps);
        brg_trace_close(trace);
    }
}

TEST(TimelineTest, FullPoolsCountDrops)
{
    Fixture f;
    fake_asynchronous = true; /* nothing ever happens */
    const int emitted = 10000;
    for (int i = 0; i < emitted; i++) {
        brg_rec record = {};
        record.kind = BRG_REC_WAIT;
        int a = brg_timeline_stamp(f.timeline, nullptr),
            b = brg_timeline_stamp(f.timeline, nullptr);
        brg_timeline_emit(f.timeline, &record, a, b);
    }
    brg_timeline_harvest(f.timeline, BRG_NO_STAMP);
    finish_pending();
    brg_timeline_harvest(f.timeline, BRG_NO_STAMP);
    brg_trace *trace = nullptr;
    ASSERT_OK(brg_trace_open((f.dir + "/rank-0.ring").c_str(), &trace));
    size_t waits = 0;
    for (size_t i = 0; i < trace->nrecs; i++)
        waits += trace->recs[i].kind == BRG_REC_WAIT;
    EXPECT_GT(waits, 1000u);
    EXPECT_EQ(waits + trace->drops, (size_t)emitted);
    brg_trace_close(trace);
}

} // namespace
