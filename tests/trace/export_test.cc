// SPDX-License-Identifier: Apache-2.0
/* The files that brigade report writes for other programs, read back. */
#include <gtest/gtest.h>
#include <jansson.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/brigade/command.h"
#include "tests/trace/protobuf.h"
#include "tests/trace/trace_builder.h"

namespace
{
const uint64_t kUnit = 1000; /* a step of two_bucket_step() is 1 ms */
const char *const kNasty = "</script><b>\"&'\x80\n";

/* Two ranks of four steps, with names that mean harm and collectives issued as one. */
void traces_write(const TempDir &dir)
{
    for (uint32_t rank = 0; rank < 2; rank++) {
        TraceBuilder t(2);
        t.bucket(0, kNasty, 8000, 2);
        t.bucket(1, "fp32/fp32/dense/lw#0", 12000, 2);
        t.bucket(2, "grouped", 100, 2);
        t.bucket(3, "grouped too", 100, 2);
        t.name(kNasty);
        for (uint32_t s = 0; s < 4; s++) {
            uint64_t b = 1000 * s * kUnit;
            two_bucket_step(t, s, b, kUnit);
            t.compute(s, b + 10 * kUnit, b + 20 * kUnit); /* inside of the forward */
            t.recs_.back().aux = 1;
            for (uint32_t bucket : {2, 3})
                t.collective(s, BRG_FUNC_ALL_REDUCE, bucket, b + 855 * kUnit, b + 860 * kUnit,
                             b + 868 * kUnit, 100, true);
        }
        t.write(dir.path("rank-" + std::to_string(rank) + ".ring"), rank);
    }
}

class Export : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        traces_write(dir);
    }
    std::string made(const std::string &option, std::vector<std::string> more = {})
    {
        std::vector<std::string> args = {"report", dir.path(), option, file()};
        args.insert(args.end(), more.begin(), more.end());
        auto r = brigade(args);
        EXPECT_EQ(r.code, 0) << r.err;
        EXPECT_EQ(r.err, "");
        EXPECT_NE(r.out.find("exposed"), std::string::npos) << "the normal report";
        return read_file(file());
    }
    std::string file()
    {
        return dir.path("out");
    }
    TempDir dir;
};

/* Numbers of Perfetto's .proto files, written down a second time. */
enum { kPacket = 1, kTimestamp = 8, kSequence = 10, kEvent = 11, kSequenceFlags = 13, kTrack = 60 };
enum { kAnnotation = 4, kType = 9, kTrackUuid = 11, kName = 23, kCounter = 30 };
enum { kFlow = 47, kLastFlow = 48 };

struct Slice {
    std::string name;
    uint64_t track, begin, end;
    size_t depth;
    std::set<uint64_t> flows, last_flows;
};

struct Perfetto {
    std::map<uint64_t, std::string> tracks;
    std::map<uint64_t, uint64_t> parents;
    std::vector<std::string> processes;
    std::vector<Slice> slices; /* in the order of their ends */
    std::map<uint64_t, std::vector<std::pair<uint64_t, uint64_t>>> counters;

    explicit Perfetto(const std::string &data)
    {
        std::map<uint64_t, std::vector<Slice>> open;
        std::map<uint64_t, uint64_t> times;
        std::set<uint64_t> sequences;
        for (auto &field : ProtoMessage(data).fields) {
            EXPECT_EQ(field.number, (uint32_t)kPacket);
            ProtoMessage packet(field.bytes);
            uint64_t sequence = packet.number(kSequence);
            EXPECT_GT(sequence, 0u);
            if (sequences.insert(sequence).second) {
                EXPECT_EQ(packet.number(kSequenceFlags), 1u) << "first of its sequence";
            }
            if (packet.has(kTrack))
                track(packet.message(kTrack));
            if (packet.has(kEvent))
                event(packet.message(kEvent), packet.number(kTimestamp), open, times);
        }
        for (auto &stack : open)
            EXPECT_TRUE(stack.second.empty()) << "never ended on " << tracks[stack.first];
    }
    void track(const ProtoMessage &track)
    {
        uint64_t uuid = track.number(1);
        EXPECT_TRUE(tracks.emplace(uuid, track.text(2)).second) << "twice";
        if (track.has(3)) {
            processes.push_back(track.message(3).text(6));
            EXPECT_GT(track.message(3).number(1), 0u);
        } else {
            parents[uuid] = track.number(5);
            EXPECT_TRUE(tracks.count(parents[uuid]));
        }
    }
    void event(const ProtoMessage &event, uint64_t time,
               std::map<uint64_t, std::vector<Slice>> &open, std::map<uint64_t, uint64_t> &times)
    {
        uint64_t uuid = event.number(kTrackUuid);
        ASSERT_TRUE(tracks.count(uuid));
        EXPECT_GE(time, times[uuid]) << "out of order on " << tracks[uuid];
        times[uuid] = time;
        auto &stack = open[uuid];
        if (event.number(kType) == 1) {
            Slice slice{event.text(kName), uuid, time, 0, stack.size(), {}, {}};
            for (auto &field : event.fields) {
                if (field.number == kFlow || field.number == kLastFlow) {
                    EXPECT_EQ(field.wire, 1);
                }
                if (field.number == kFlow)
                    slice.flows.insert(field.value);
                if (field.number == kLastFlow)
                    slice.last_flows.insert(field.value);
            }
            stack.push_back(slice);
        } else if (event.number(kType) == 2) {
            ASSERT_FALSE(stack.empty());
            stack.back().end = time;
            slices.push_back(stack.back());
            stack.pop_back();
        } else {
            ASSERT_EQ(event.number(kType), 4u);
            counters[uuid].push_back({time, event.number(kCounter)});
        }
    }
    std::vector<Slice> named(const std::string &name, const std::string &track)
    {
        std::vector<Slice> found;
        for (auto &slice : slices)
            if (slice.name == name && tracks[slice.track].compare(0, track.size(), track) == 0 &&
                slice.track >> 32 == 1)
                found.push_back(slice);
        return found;
    }
};

json_t *at(json_t *object, const char *key)
{
    return json_object_get(object, key);
}
std::string text(json_t *object, const char *key)
{
    return json_is_string(at(object, key)) ? json_string_value(at(object, key)) : "";
}
} // namespace

TEST_F(Export, PerfettoSlicesNestAndHaveTheirTimes)
{
    Perfetto p(made("--perfetto"));
    EXPECT_EQ(p.processes, (std::vector<std::string>{"rank 0", "rank 1"}));
    auto steps = p.named("step 2", "steps");
    ASSERT_EQ(steps.size(), 1u);
    EXPECT_EQ(steps[0].begin, 2000 * kUnit);
    EXPECT_EQ(steps[0].end, 3000 * kUnit);
    auto forward = p.named("forward", "compute, stream 1");
    ASSERT_EQ(forward.size(), 4u);
    EXPECT_EQ(forward[3].end - forward[3].begin, 300 * kUnit);
    size_t inside = 0;
    for (auto &slice : p.slices)
        if (slice.name.find("</script>") == 0) {
            EXPECT_EQ(slice.depth, 1u);
            EXPECT_EQ(slice.end - slice.begin, 10 * kUnit);
            for (char c : slice.name)
                EXPECT_TRUE(c >= ' ' && c < 0x7f);
            inside++;
        }
    EXPECT_EQ(inside, 8u);
    EXPECT_EQ(p.named("ReduceScatter #1", "communication, stream 2").size(), 4u);
    EXPECT_EQ(p.named("ReduceScatter #1", "bucket 1 fp32/fp32/dense/lw#0").size(), 4u);
    EXPECT_EQ(p.named("AllReduce x2", "communication").size(), 4u) << "one launch";
    EXPECT_EQ(p.named("AllReduce #3", "bucket 3 grouped too").size(), 4u);
    EXPECT_EQ(p.named("Muon", "optimizer").size(), 4u);
    EXPECT_EQ(p.named("wait for AllGather #1", "waits").size(), 3u);
}

TEST_F(Export, PerfettoFlowsLeadFromBucketToOptimizer)
{
    Perfetto p(made("--perfetto"));
    auto gradients = p.named("gradients #1", "bucket 1"),
         launches = p.named("ReduceScatter #1", "communication"),
         optimizers = p.named("Muon", "optimizer");
    ASSERT_EQ(gradients.size(), 4u);
    for (size_t s = 0; s < 4; s++) {
        ASSERT_EQ(gradients[s].flows.size(), 1u);
        uint64_t flow = *gradients[s].flows.begin();
        EXPECT_EQ(launches[s].flows, std::set<uint64_t>{flow});
        EXPECT_TRUE(optimizers[s].last_flows.count(flow));
        EXPECT_EQ(optimizers[s].last_flows.size(), 4u) << "both buckets and the two grouped";
        EXPECT_EQ(p.named("AllReduce x2", "communication")[s].flows.size(), 2u);
    }
    std::set<uint64_t> ends;
    for (auto &slice : p.slices)
        for (uint64_t flow : slice.last_flows)
            EXPECT_TRUE(ends.insert(flow).second) << "ends twice, or is of two ranks";
    EXPECT_EQ(ends.size(), 2u * 4 * 4);
}

TEST_F(Export, PerfettoCountsBytesInFlight)
{
    Perfetto p(made("--perfetto"));
    ASSERT_EQ(p.counters.size(), 2u);
    for (auto &[track, values] : p.counters) {
        EXPECT_EQ(p.tracks[track], "bytes in flight");
        EXPECT_TRUE(std::is_sorted(values.begin(), values.end()));
        EXPECT_EQ(values.back().second, 0u);
        EXPECT_EQ(values[0].second, 8000u);
        EXPECT_EQ(values[1], std::make_pair(values[0].first + 100 * kUnit, (uint64_t)0));
        uint64_t most = 0;
        for (auto &value : values)
            most = std::max(most, value.second);
        EXPECT_EQ(most, 12000u);
    }
}

TEST_F(Export, OneRankOnly)
{
    Perfetto p(made("--perfetto", {"--rank", "1"}));
    EXPECT_EQ(p.processes, std::vector<std::string>{"rank 1"});
    auto chrome = made("--chrome", {"--rank", "1", "--force"});
    EXPECT_NE(chrome.find("\"distributedInfo\": {\"rank\": 1,"), std::string::npos);
    EXPECT_EQ(chrome.find("\"pid\":0"), std::string::npos);
}

TEST_F(Export, ChromeJson)
{
    std::string data = made("--chrome");
    json_t *root = json_loads(data.c_str(), JSON_REJECT_DUPLICATES, nullptr);
    ASSERT_NE(root, nullptr);
    std::map<std::string, size_t> phases, names;
    std::map<json_int_t, std::string> flows;
    json_t *event;
    size_t i;
    json_array_foreach(at(root, "traceEvents"), i, event)
    {
        std::string phase = text(event, "ph"), name = text(event, "name");
        phases[phase]++;
        if (phase == "X") {
            names[name]++;
            EXPECT_GE(json_number_value(at(event, "ts")), 0);
            EXPECT_LT(json_number_value(at(event, "ts")), 1e6) << "from the trace's begin";
            EXPECT_GE(json_number_value(at(event, "dur")), 0);
            EXPECT_EQ(text(event, "cat") == "kernel",
                      json_is_integer(at(at(event, "args"), "stream")))
                << "nothing else counts as GPU work";
        }
        if (phase == "s" || phase == "t" || phase == "f")
            flows[json_integer_value(at(event, "id"))] += phase;
        if (name == "ProfilerStep#2" && json_integer_value(at(event, "pid")) == 0) {
            EXPECT_EQ(json_number_value(at(event, "ts")), 2000);
            EXPECT_EQ(json_number_value(at(event, "dur")), 1000);
        }
    }
    json_decref(root);
    EXPECT_EQ(names["ProfilerStep#3"], 2u);
    EXPECT_EQ(names["ncclDevKernel_ReduceScatter"], 16u);
    EXPECT_EQ(names["ncclDevKernel_AllReduce"], 8u);
    EXPECT_EQ(names["backward"], 8u);
    EXPECT_GT(phases["M"], 10u);
    EXPECT_GT(phases["C"], 10u);
    EXPECT_EQ(flows.size(), 2u * 4 * 4);
    size_t whole = 0;
    for (auto &flow : flows)
        whole += flow.second == "stf";
    EXPECT_EQ(whole, 2u * 4 * 2) << "buckets 0 and 1; the grouped ones have no gradients";
}

TEST_F(Export, PageIsWholeAndEscaped)
{
    std::string page = made("--html");
    EXPECT_EQ(page.compare(0, 15, "<!doctype html>"), 0);
    EXPECT_EQ(page.substr(page.size() - 8), "</html>\n");
    EXPECT_EQ(count_of(page, "<script"), 2);
    EXPECT_EQ(count_of(page, "</script>"), 2) << "names cannot end the script";
    EXPECT_EQ(page.find("@DATA@"), std::string::npos);
    for (const char *foreign : {"http:", "https:", "src=", "url(", "@import", "<link"})
        EXPECT_EQ(page.find(foreign), std::string::npos) << foreign;
    EXPECT_LT(page.size(), 100000u);
    size_t begin = page.find("id=\"data\">") + 10, end = page.find("</script>", begin);
    std::string data = page.substr(begin, end - begin);
    for (unsigned char c : data)
        EXPECT_TRUE(c >= ' ' && c < 0x7f && c != '<' && c != '>' && c != '&');
    json_t *root = json_loads(data.c_str(), JSON_REJECT_DUPLICATES, nullptr);
    ASSERT_NE(root, nullptr) << data;
    EXPECT_EQ(json_integer_value(at(at(root, "report"), "schema")), 1);
    json_t *timeline = at(root, "timeline"), *ranks = at(timeline, "ranks");
    EXPECT_EQ(json_array_size(ranks), 2u);
    size_t names = json_array_size(at(timeline, "names"));
    json_int_t length = json_integer_value(at(timeline, "length_ns"));
    EXPECT_EQ(length % 1000000, 0);
    size_t i, k, n, slices = 0;
    json_t *rank, *lane, *slice;
    json_array_foreach(ranks, i, rank) json_array_foreach(at(rank, "lanes"), k, lane)
        json_array_foreach(at(lane, "slices"), n, slice)
    {
        EXPECT_GE(json_integer_value(json_array_get(slice, 0)), 0);
        EXPECT_LT(json_integer_value(json_array_get(slice, 0)), length);
        EXPECT_LT((size_t)json_integer_value(json_array_get(slice, 2)), names);
        slices++;
    }
    EXPECT_GT(slices, 50u);
    json_decref(root);
}

TEST_F(Export, FilesAreReplacedWhenForcedOnly)
{
    std::string html = dir.path("a.html"), chrome = dir.path("a.json");
    auto r = brigade({"report", dir.path(), "--html", html, "--chrome", chrome, "--json"});
    EXPECT_EQ(r.code, 0) << r.err;
    json_t *document = json_loads(r.out.c_str(), 0, nullptr);
    EXPECT_NE(document, nullptr) << "nothing but the document";
    json_decref(document);
    write_file(html, "mine");
    r = brigade({"report", dir.path(), "--html", html});
    EXPECT_EQ(r.code, 3);
    EXPECT_EQ(r.out, "");
    EXPECT_NE(r.err.find("--force"), std::string::npos);
    EXPECT_EQ(read_file(html), "mine");
    EXPECT_EQ(brigade({"report", dir.path(), "--html", html, "-f"}).code, 0);
    EXPECT_GT(read_file(html).size(), 1000u);
    EXPECT_EQ(brigade({"report", dir.path(), "--force"}).code, 2);
    r = brigade({"report", dir.path(), "--html", dir.path("no/such/dir.html")});
    EXPECT_EQ(r.code, 3);
    EXPECT_NE(r.err.find("cannot create"), std::string::npos);
}

TEST_F(Export, FullDiskIsAnError)
{
    if (access("/dev/full", W_OK))
        GTEST_SKIP() << "no /dev/full";
    ASSERT_EQ(symlink("/dev/full", file().c_str()), 0);
    for (const char *option : {"--perfetto", "--chrome", "--html"}) {
        auto r = brigade({"report", dir.path(), option, file(), "--force"});
        EXPECT_EQ(r.code, 3) << option;
        EXPECT_NE(r.err.find("cannot write"), std::string::npos) << r.err;
        EXPECT_EQ(access(file().c_str(), F_OK), 0) << "what is no file of ours is left alone";
    }
}
