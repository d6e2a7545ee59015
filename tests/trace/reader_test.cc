// SPDX-License-Identifier: Apache-2.0
#include "sched/trace/reader.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "sched/trace/format.h"
#include "tests/seed.h"
#include "tests/trace/temp_dir.h"

namespace
{

/* A small file with something of everything: 2^5 records, a table of 4 KiB. */
std::string small_trace(const TempDir &dir, const std::string &name = "small.ring", int recs = 40)
{
    std::string path = dir.path(name);
    brg_ring_options options{};
    options.rank = 1;
    options.world = 2;
    options.nrec_log2 = 5;
    options.strtab_bytes = 4096;
    brg_ring *ring;
    if (brg_ring_create(path.c_str(), &options, &ring) != BRG_OK)
        throw std::runtime_error(brg_last_error());
    brg_meta_bucket meta{};
    meta.grad_bytes = 1 << 20;
    meta.num_shards = 2;
    strcpy(meta.name, "fp32/fp32/dense/std#0");
    brg_ring_add_bucket(ring, 0, &meta);
    brg_ring_add_bucket(ring, 1, &meta);
    brg_ring_add_name(ring, "forward");
    brg_ring_add_info(ring, "device", "host");
    for (int i = 0; i < recs; i++) {
        brg_rec rec{};
        rec.t0_ns = brg_now_ns();
        rec.t1_ns = rec.t0_ns + 10;
        rec.kind = (uint16_t)(1 + i % 7);
        rec.func = BRG_FUNC_REDUCE_SCATTER;
        brg_ring_put(ring, &rec);
    }
    brg_ring_close(ring);
    return path;
}

/* Opens it, checks that a failure names the file, and that a success is consistent. */
brg_status try_open(const std::string &path)
{
    brg_trace *trace = nullptr;
    brg_status status = brg_trace_open(path.c_str(), &trace);
    if (status != BRG_OK) {
        EXPECT_EQ(trace, nullptr);
        EXPECT_NE(std::string(brg_last_error()).find(path), std::string::npos) << brg_last_error();
        EXPECT_TRUE(status == BRG_ERR_FORMAT || status == BRG_ERR_IO) << status;
        return status;
    }
    EXPECT_EQ(trace->nrecs + trace->torn + trace->invalid + trace->overwritten, trace->written);
    for (size_t i = 0; i < trace->nrecs; i++)
        (void)brg_trace_name(trace, trace->recs[i].aux);
    for (size_t i = 0; i < trace->nbuckets; i++)
        EXPECT_LT(strlen(trace->buckets[i].meta.name), sizeof trace->buckets[i].meta.name);
    for (size_t i = 0; i < trace->ninfos; i++)
        EXPECT_STREQ(brg_trace_info_get(trace, trace->infos[i].key) ? "found" : "missing", "found");
    brg_trace_close(trace);
    return status;
}

/* The error that a file with these bytes gives. */
std::string error_of(const TempDir &dir, const std::string &bytes)
{
    std::string path = dir.path("bad.ring");
    file_write(path, bytes);
    EXPECT_EQ(try_open(path), BRG_ERR_FORMAT);
    return brg_last_error();
}

template <class T> std::string with(std::string bytes, size_t offset, T value)
{
    memcpy(&bytes[offset], &value, sizeof value);
    return bytes;
}

#define EXPECT_SAYS(text, word) EXPECT_NE((text).find(word), std::string::npos) << (text)

TEST(Reader, RejectsWhatIsNoFile)
{
    TempDir dir;
    EXPECT_EQ(try_open(dir.path("missing.ring")), BRG_ERR_IO);
    EXPECT_EQ(try_open(dir.path()), BRG_ERR_IO);
    EXPECT_SAYS(std::string(brg_last_error()), "not a regular file");
    std::string fifo = dir.path("fifo.ring");
    ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
    EXPECT_EQ(try_open(fifo), BRG_ERR_IO); /* and does not wait */
    EXPECT_EQ(try_open("/dev/null"), BRG_ERR_IO);
    std::string locked = small_trace(dir);
    ASSERT_EQ(chmod(locked.c_str(), 0), 0);
    if (geteuid() != 0) {
        EXPECT_EQ(try_open(locked), BRG_ERR_IO);
    }
}

TEST(Reader, RejectsForeignAndDamagedHeaders)
{
    TempDir dir;
    const std::string good = file_read(small_trace(dir));
    EXPECT_SAYS(error_of(dir, ""), "empty");
    EXPECT_SAYS(error_of(dir, "B"), "cut off");
    EXPECT_SAYS(error_of(dir, "{\"traceEvents\":[]}"), "not a brigade trace");
    EXPECT_SAYS(error_of(dir, std::string(100000, 'x')), "not a brigade trace");
    EXPECT_SAYS(error_of(dir, std::string(100000, '\0')), "interrupted");
    EXPECT_SAYS(error_of(dir, good.substr(0, 100)), "cut off");
    EXPECT_SAYS(error_of(dir, good.substr(0, good.size() - 1)), "cut off");
    EXPECT_SAYS(error_of(dir, good + "x"), "after its end");
    EXPECT_SAYS(error_of(dir, with(good, offsetof(brg_ring_hdr, version), 2u)), "version 2");
    EXPECT_SAYS(error_of(dir, with(good, offsetof(brg_ring_hdr, endian), 0x04030201u)),
                "byte order");
    EXPECT_SAYS(error_of(dir, with(good, offsetof(brg_ring_hdr, endian), 7u)), "damaged");
    EXPECT_SAYS(error_of(dir, with(good, offsetof(brg_ring_hdr, hdr_bytes), 0u)), "damaged");
    EXPECT_SAYS(error_of(dir, with(good, offsetof(brg_ring_hdr, rec_bytes), 128u)), "damaged");
    EXPECT_SAYS(error_of(dir, with(good, offsetof(brg_ring_hdr, nrec_log2), 63u)), "damaged");
    EXPECT_SAYS(error_of(dir, with(good, offsetof(brg_ring_hdr, nrec_log2), 26u)), "cut off");
    EXPECT_SAYS(error_of(dir, with(good, offsetof(brg_ring_hdr, strtab_bytes), ~0u)), "damaged");
    EXPECT_SAYS(error_of(dir, with(good, offsetof(brg_ring_hdr, strtab_used), 4097u)), "damaged");
    EXPECT_SAYS(error_of(dir, with(good, offsetof(brg_ring_hdr, rank), 2u)), "damaged");
    EXPECT_SAYS(error_of(dir, with(good, offsetof(brg_ring_hdr, world), 0u)), "damaged");
    EXPECT_SAYS(error_of(dir, with(good, offsetof(brg_ring_hdr, head), ~UINT64_C(0))), "damaged");
}

TEST(Reader, RejectsDamagedDescriptions)
{
    TempDir dir;
    const std::string good = file_read(small_trace(dir));
    const size_t table = BRG_RING_HDR_BYTES;
    for (uint32_t bytes : {0u, 8u, 15u, 17u, 4096u, ~0u})
        EXPECT_SAYS(error_of(dir, with(good, table + offsetof(brg_ring_entry, bytes), bytes)),
                    "damaged");
    for (uint32_t bytes : {0u, 1u, 159u, 161u, ~0u})
        EXPECT_SAYS(
            error_of(dir, with(good, table + offsetof(brg_ring_entry, payload_bytes), bytes)),
            "damaged");
    EXPECT_SAYS(error_of(dir, with(good, table + offsetof(brg_ring_entry, type), 9u)), "damaged");
    for (uint32_t used : {1u, 15u, 100u})
        EXPECT_SAYS(error_of(dir, with(good, offsetof(brg_ring_hdr, strtab_used), used)),
                    "damaged");
    size_t name = good.find("forward");
    ASSERT_NE(name, std::string::npos);
    EXPECT_SAYS(error_of(dir, with(good, name + 7, 'd')), "damaged"); /* no NUL */
    EXPECT_SAYS(error_of(dir, with(good, name - 4, 2u)), "damaged");  /* id out of order */
    size_t info = good.find("device");
    EXPECT_SAYS(error_of(dir, with(good, info + 6, '=')), "damaged"); /* one text instead of two */
    EXPECT_SAYS(error_of(dir, with(good, info + 11, '.')), "damaged");
}

TEST(Reader, EveryTruncationIsAnError)
{
    TempDir dir;
    const std::string good = file_read(small_trace(dir));
    std::string path = dir.path("cut.ring");
    file_write(path, good);
    for (size_t size = good.size(); size-- > 0;) { /* shrinks byte by byte */
        ASSERT_EQ(truncate(path.c_str(), (off_t)size), 0);
        brg_trace *trace;
        ASSERT_EQ(brg_trace_open(path.c_str(), &trace), BRG_ERR_FORMAT) << size;
    }
}

TEST(Reader, CountsWhatItCannotUse)
{
    TempDir dir;
    const std::string good = file_read(small_trace(dir, "one.ring", 20)); /* tickets 0 to 21 */
    const size_t ring = BRG_RING_HDR_BYTES + 4096;
    auto open_bytes = [&](const std::string &bytes) {
        std::string path = dir.path("edited.ring");
        file_write(path, bytes);
        brg_trace *trace = nullptr;
        EXPECT_EQ(brg_trace_open(path.c_str(), &trace), BRG_OK) << brg_last_error();
        return trace;
    };
    brg_trace *trace = open_bytes(with(good, ring + 3 * 64, UINT64_C(0)));
    EXPECT_EQ(trace->torn, 1u);
    EXPECT_EQ(trace->nrecs, 21u);
    brg_trace_close(trace);
    trace = open_bytes(with(good, ring + 3 * 64, UINT64_C(4) | BRG_RING_BUSY));
    EXPECT_EQ(trace->torn, 1u);
    brg_trace_close(trace);
    trace = open_bytes(with(good, ring + 3 * 64, UINT64_C(36))); /* a lap ahead of the head */
    EXPECT_EQ(trace->overwritten, 1u);
    EXPECT_EQ(trace->nrecs, 21u);
    brg_trace_close(trace);
    for (uint64_t t1 : {UINT64_C(1), ~UINT64_C(0), UINT64_C(1) << 62}) {
        trace = open_bytes(with(good, ring + 3 * 64 + offsetof(brg_rec, t1_ns), t1));
        EXPECT_EQ(trace->invalid, 1u);
        EXPECT_EQ(trace->nrecs, 21u);
        EXPECT_EQ(brg_trace_lost(trace), 1u);
        brg_trace_close(trace);
    }
    trace = open_bytes(with(good, offsetof(brg_ring_hdr, head), UINT64_C(1000)));
    EXPECT_EQ(trace->nrecs, 0u); /* none carries the ticket that it should */
    EXPECT_EQ(trace->overwritten + trace->torn, 1000u);
    brg_trace_close(trace);
}

/* Damage of all sizes anywhere in a valid file: an error or a consistent trace, never a crash. */
TEST(Reader, Fuzz)
{
    TempDir dir;
    auto rng = test_rng(1);
    const std::string good = file_read(small_trace(dir));
    std::string path = dir.path("fuzz.ring");
    const size_t interesting = 4096 + 500; /* header and the used part of the table */
    const uint64_t values[] = {0,    1,          7,          63,         64,
                               4096, 0x7fffffff, 0x80000000, 0xffffffff, ~UINT64_C(0)};
    int opened = 0;
    for (int round = 0; round < 3000 * BRIGADE_TEST_STRESS; round++) {
        std::string bytes = good;
        for (int edits = 1 + (int)(rng() % 6); edits > 0; edits--) {
            size_t at = rng() % (rng() % 2 ? 400 : rng() % 2 ? interesting : bytes.size());
            if (rng() % 2)
                at = BRG_RING_HDR_BYTES * (rng() % 3) + at % 128;
            if (rng() % 3)
                bytes[at % (bytes.size() - 8)] ^= (char)(1u << rng() % 8);
            else if (rng() % 2)
                memcpy(&bytes[at % (bytes.size() - 8)], &values[rng() % 10], 4 + 4 * (rng() % 2));
            else
                bytes[at % (bytes.size() - 8)] = (char)rng();
        }
        if (rng() % 10 == 0)
            bytes.resize(rng() % (bytes.size() + 100));
        file_write(path, bytes);
        if (try_open(path) == BRG_OK)
            opened++;
        if (HasFailure())
            FAIL() << "round " << round;
    }
    EXPECT_GT(opened, 100); /* damage reached what lies behind the header checks */
}

TEST(Reader, ListsTheFilesOfARun)
{
    TempDir dir;
    char **paths;
    size_t npaths;
    EXPECT_EQ(brg_trace_list(dir.path("nowhere").c_str(), &paths, &npaths), BRG_ERR_IO);
    EXPECT_EQ(brg_trace_list(dir.path().c_str(), &paths, &npaths), BRG_ERR_NO_DATA);
    EXPECT_EQ(paths, nullptr);
    for (const char *name : {"rank-10.ring", "rank-2.ring", "rank-0.ring", "rank-.ring",
                             "rank-x.ring", "rank-1.ring.bak", "notes.txt", "rank-+1.ring"})
        file_write(dir.path(name), "x");
    ASSERT_EQ(brg_trace_list(dir.path().c_str(), &paths, &npaths), BRG_OK);
    ASSERT_EQ(npaths, 3u);
    EXPECT_EQ(paths[0], dir.path("rank-0.ring"));
    EXPECT_EQ(paths[1], dir.path("rank-2.ring"));
    EXPECT_EQ(paths[2], dir.path("rank-10.ring"));
    brg_trace_list_free(paths, npaths);
    ASSERT_EQ(brg_trace_list(dir.path("notes.txt").c_str(), &paths, &npaths), BRG_OK);
    ASSERT_EQ(npaths, 1u);
    EXPECT_EQ(paths[0], dir.path("notes.txt"));
    brg_trace_list_free(paths, npaths);
}

} // namespace
