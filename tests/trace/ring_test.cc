// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sched/trace/format.h"
#include "sched/trace/reader.h"
#include "tests/seed.h"
#include "tests/trace/temp_dir.h"

namespace
{

brg_ring_options options_of(uint32_t rank = 0, uint32_t world = 1, int nrec_log2 = 0,
                            uint32_t strtab_bytes = 0)
{
    brg_ring_options options{};
    options.rank = rank;
    options.world = world;
    options.nrec_log2 = nrec_log2;
    options.strtab_bytes = strtab_bytes;
    return options;
}

/* A record whose fields all follow from `i`, so that a mixture of two is noticed. */
brg_rec rec_of(const brg_ring_hdr &hdr, uint64_t i)
{
    brg_rec rec{};
    rec.t0_ns = hdr.t0_mono_ns + i;
    rec.t1_ns = rec.t0_ns + i % 1000;
    rec.bytes = i * 3;
    rec.step = (uint32_t)(i / 7);
    rec.comm = (uint32_t)(i * 5);
    rec.bucket = (uint32_t)(i * 11);
    rec.stream = (uint32_t)(i * 13);
    rec.kind = BRG_REC_COMPUTE;
    rec.flags = (uint16_t)i;
    rec.func = (uint8_t)(i % 9);
    rec.aux = i;
    return rec;
}

bool same(const brg_rec &a, const brg_rec &b)
{
    return !memcmp((const char *)&a + sizeof a.seq, (const char *)&b + sizeof b.seq,
                   sizeof a - sizeof a.seq);
}

brg_ring_hdr hdr_of(const std::string &path)
{
    brg_ring_hdr hdr;
    std::string bytes = file_read(path);
    memcpy(&hdr, bytes.data(), sizeof hdr);
    return hdr;
}

struct Trace {
    explicit Trace(const std::string &path)
    {
        status = brg_trace_open(path.c_str(), &trace);
    }
    ~Trace()
    {
        brg_trace_close(trace);
    }
    brg_trace *operator->() const
    {
        return trace;
    }
    brg_trace *trace = nullptr;
    brg_status status;
};

std::vector<brg_rec> compute_recs(const brg_trace *trace)
{
    std::vector<brg_rec> out;
    for (size_t i = 0; i < trace->nrecs; i++)
        if (trace->recs[i].kind == BRG_REC_COMPUTE)
            out.push_back(trace->recs[i]);
    return out;
}

TEST(Ring, RoundTrip)
{
    TempDir dir;
    std::string path = dir.path("rank-2.ring");
    brg_ring_options options = options_of(2, 4);
    options.gpu = 3;
    brg_ring *ring;
    ASSERT_EQ(brg_ring_create(path.c_str(), &options, &ring), BRG_OK) << brg_last_error();
    brg_ring_hdr hdr = hdr_of(path);
    for (uint64_t i = 0; i < 5000; i++) {
        brg_rec rec = rec_of(hdr, i);
        rec.seq = ~i; /* must be ignored */
        brg_ring_put(ring, &rec);
    }
    uint32_t forward = brg_ring_add_name(ring, "forward"), adam = brg_ring_add_name(ring, "AdamW");
    EXPECT_NE(forward, 0u);
    EXPECT_NE(forward, adam);
    EXPECT_EQ(brg_ring_add_name(ring, "forward"), forward);
    brg_meta_bucket meta{};
    meta.grad_bytes = 1000;
    meta.num_shards = 4;
    memset(meta.name, 'x', sizeof meta.name); /* no NUL: must be cut, not overrun */
    brg_ring_add_bucket(ring, 7, &meta);
    strcpy(meta.name, "fp32/fp32/dense/lw#3");
    brg_ring_add_bucket(ring, 3, &meta);
    meta.grad_bytes = 2000;
    brg_ring_add_bucket(ring, 3, &meta);
    brg_ring_add_info(ring, "device", "host");
    brg_ring_add_info(ring, "device", "cuda");
    brg_ring_add_info(ring, "empty", "");
    brg_ring_drop(ring, 5);
    brg_ring_drop(ring, 6);
    brg_ring_close(ring);

    struct stat info;
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0600u);

    Trace trace(path);
    ASSERT_EQ(trace.status, BRG_OK) << brg_last_error();
    EXPECT_EQ(trace->rank, 2u);
    EXPECT_EQ(trace->world, 4u);
    EXPECT_EQ(trace->gpu, 3u);
    EXPECT_EQ(trace->pid, (uint32_t)getpid());
    EXPECT_TRUE(trace->closed);
    EXPECT_EQ(trace->written, 5002u);
    EXPECT_EQ(trace->nrecs, 5002u);
    EXPECT_EQ(trace->drops, 11u);
    EXPECT_EQ(brg_trace_lost(trace.trace), 11u);
    std::vector<brg_rec> recs = compute_recs(trace.trace);
    ASSERT_EQ(recs.size(), 5000u);
    for (uint64_t i = 0; i < 5000; i++)
        ASSERT_TRUE(same(recs[i], rec_of(hdr, i))) << i;
    const brg_rec &first = trace->recs[0], &last = trace->recs[trace->nrecs - 1];
    EXPECT_EQ(first.kind, BRG_REC_CLOCK);
    EXPECT_EQ(last.kind, BRG_REC_CLOCK);
    EXPECT_LE(first.t0_ns, last.t0_ns);
    EXPECT_GT(first.t1_ns, 1600000000u * UINT64_C(1000000000)); /* a wall clock */
    EXPECT_STREQ(brg_trace_name(trace.trace, forward), "forward");
    EXPECT_STREQ(brg_trace_name(trace.trace, adam), "AdamW");
    EXPECT_STREQ(brg_trace_name(trace.trace, 0), "?");
    EXPECT_STREQ(brg_trace_name(trace.trace, UINT64_MAX), "?");
    EXPECT_STREQ(brg_trace_info_get(trace.trace, "device"), "cuda");
    EXPECT_STREQ(brg_trace_info_get(trace.trace, "empty"), "");
    EXPECT_EQ(brg_trace_info_get(trace.trace, "other"), nullptr);
    ASSERT_EQ(trace->nbuckets, 2u);
    EXPECT_EQ(brg_trace_bucket_get(trace.trace, 3)->grad_bytes, 2000u);
    EXPECT_STREQ(brg_trace_bucket_get(trace.trace, 3)->name, "fp32/fp32/dense/lw#3");
    EXPECT_EQ(std::string(brg_trace_bucket_get(trace.trace, 7)->name), std::string(63, 'x'));
    EXPECT_EQ(brg_trace_bucket_get(trace.trace, 4), nullptr);
}

TEST(Ring, NullRingIsNoRing)
{
    brg_rec rec{};
    brg_meta_bucket meta{};
    brg_ring_put(nullptr, &rec);
    brg_ring_drop(nullptr, 1);
    brg_ring_add_bucket(nullptr, 0, &meta);
    EXPECT_EQ(brg_ring_add_name(nullptr, "x"), 0u);
    brg_ring_add_info(nullptr, "a", "b");
    brg_ring_close(nullptr);
}

TEST(Ring, WrapKeepsTheNewest)
{
    TempDir dir;
    for (uint64_t extra : {0, 1, 15, 16, 17, 1000}) {
        std::string path = dir.path("wrap" + std::to_string(extra));
        brg_ring_options options = options_of(0, 1, 4);
        brg_ring *ring;
        ASSERT_EQ(brg_ring_create(path.c_str(), &options, &ring), BRG_OK);
        brg_ring_hdr hdr = hdr_of(path);
        for (uint64_t i = 0; i < 15 + extra; i++) { /* the clock record is the 16th */
            brg_rec rec = rec_of(hdr, i);
            brg_ring_put(ring, &rec);
        }
        Trace live(path);
        ASSERT_EQ(live.status, BRG_OK) << brg_last_error();
        EXPECT_FALSE(live->closed);
        EXPECT_EQ(live->overwritten, extra);
        EXPECT_EQ(live->torn, 0u);
        ASSERT_EQ(live->nrecs, 16u);
        for (uint64_t i = 0; i < 16; i++)
            if (extra || i) {
                EXPECT_TRUE(same(live->recs[i], rec_of(hdr, extra - 1 + i)));
            }
        brg_ring_close(ring);
    }
}

TEST(Ring, RefusesToOverwriteAndBadOptions)
{
    TempDir dir;
    std::string path = dir.path("rank-0.ring");
    brg_ring *ring = nullptr;
    brg_ring_options options = options_of();
    ASSERT_EQ(brg_ring_create(path.c_str(), &options, &ring), BRG_OK);
    brg_ring_close(ring);
    std::string before = file_read(path);
    EXPECT_EQ(brg_ring_create(path.c_str(), &options, &ring), BRG_ERR_IO);
    EXPECT_EQ(ring, nullptr);
    EXPECT_NE(std::string(brg_last_error()).find(path), std::string::npos);
    EXPECT_NE(std::string(brg_last_error()).find("exists"), std::string::npos);
    EXPECT_EQ(file_read(path), before);

    std::string missing = dir.path("no/such/dir.ring");
    EXPECT_EQ(brg_ring_create(missing.c_str(), &options, &ring), BRG_ERR_IO);
    EXPECT_NE(std::string(brg_last_error()).find(missing), std::string::npos);

    for (brg_ring_options bad :
         {options_of(0, 1, 3), options_of(0, 1, 27), options_of(0, 1, -1), options_of(1, 1),
          options_of(0, 0), options_of(0, 1, 0, 1u << 31)}) {
        std::string other = dir.path("bad.ring");
        EXPECT_EQ(brg_ring_create(other.c_str(), &bad, &ring), BRG_ERR_INVALID_ARGUMENT);
        EXPECT_NE(access(other.c_str(), F_OK), 0) << "a file was left";
    }
}

TEST(Ring, FullDescriptionTableIsCounted)
{
    TempDir dir;
    std::string path = dir.path("rank-0.ring");
    brg_ring *ring;
    brg_ring_options options = options_of(0, 1, 4, 4096);
    ASSERT_EQ(brg_ring_create(path.c_str(), &options, &ring), BRG_OK);
    std::vector<std::string> kept;
    uint32_t refused = 0;
    for (int i = 0; i < 400; i++) {
        std::string name = "name " + std::to_string(i);
        uint32_t id = brg_ring_add_name(ring, name.c_str());
        if (id) {
            kept.push_back(name);
            EXPECT_EQ(id, kept.size());
        } else {
            refused++;
        }
    }
    EXPECT_GT(kept.size(), 100u);
    EXPECT_GT(refused, 100u);
    for (size_t i = 0; i < kept.size(); i++) /* known names are still found */
        EXPECT_EQ(brg_ring_add_name(ring, kept[i].c_str()), i + 1);
    brg_meta_bucket meta{};
    brg_ring_add_bucket(ring, 1, &meta);
    brg_ring_add_info(ring, std::string(5000, 'k').c_str(), "v");
    brg_ring_close(ring);
    Trace trace(path);
    ASSERT_EQ(trace.status, BRG_OK) << brg_last_error();
    EXPECT_EQ(trace->description_drops, refused + 2);
    EXPECT_EQ(trace->nbuckets, 0u);
    for (size_t i = 0; i < kept.size(); i++)
        EXPECT_EQ(brg_trace_name(trace.trace, i + 1), kept[i]);
}

TEST(Ring, SurvivesSigkill)
{
    TempDir dir;
    std::string path = dir.path("rank-0.ring");
    int pipe_fds[2];
    ASSERT_EQ(pipe(pipe_fds), 0);
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        brg_ring *ring;
        brg_ring_options options = options_of(0, 1, 12);
        if (brg_ring_create(path.c_str(), &options, &ring) != BRG_OK)
            _exit(1);
        brg_ring_add_name(ring, "forward");
        brg_ring_hdr hdr{};
        hdr.t0_mono_ns = brg_now_ns();
        for (uint64_t i = 0;; i++) {
            brg_rec rec = rec_of(hdr, i);
            rec.aux = hdr.t0_mono_ns;
            rec.bytes = i;
            brg_ring_put(ring, &rec);
            if (i == 10000 && write(pipe_fds[1], "x", 1) != 1)
                _exit(1);
        }
    }
    char byte;
    ASSERT_EQ(read(pipe_fds[0], &byte, 1), 1);
    kill(child, SIGKILL); /* somewhere in the middle of a put */
    int code;
    ASSERT_EQ(waitpid(child, &code, 0), child);
    ASSERT_TRUE(WIFSIGNALED(code));
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    Trace trace(path);
    ASSERT_EQ(trace.status, BRG_OK) << brg_last_error();
    EXPECT_FALSE(trace->closed);
    EXPECT_EQ(trace->pid, (uint32_t)child);
    EXPECT_STREQ(brg_trace_name(trace.trace, 1), "forward");
    EXPECT_LE(trace->torn, 1u); /* the one that it was at */
    EXPECT_EQ(trace->nrecs + trace->torn, 4096u);
    EXPECT_EQ(trace->overwritten, trace->written - 4096);
    for (size_t i = 0; i < trace->nrecs; i++) {
        brg_ring_hdr hdr{};
        hdr.t0_mono_ns = trace->recs[i].aux;
        brg_rec expected = rec_of(hdr, trace->recs[i].bytes);
        expected.aux = hdr.t0_mono_ns;
        expected.bytes = trace->recs[i].bytes;
        ASSERT_TRUE(same(trace->recs[i], expected)) << i;
        if (i) {
            ASSERT_EQ(trace->recs[i].bytes, trace->recs[i - 1].bytes + 1);
        }
    }
}

/* Runs `fn` in a child, whose limits and mounts are its own; returns its exit code, 100 + signal.
 */
template <class Fn> int in_child(Fn fn)
{
    pid_t child = fork();
    if (child == 0)
        _exit(fn());
    int code = 0;
    waitpid(child, &code, 0);
    return WIFEXITED(code) ? WEXITSTATUS(code) : 100 + WTERMSIG(code);
}

/* A fault per page, 64 records, would be most of what a record costs. */
TEST(Ring, FirstRecordsFaultNoPages)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP() << "a sanitizer's own memory faults";
#endif
    TempDir dir;
    void *page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(page, MAP_FAILED);
    bool known = !madvise(page, 4096, 23 /* MADV_POPULATE_WRITE */);
    munmap(page, 4096);
    if (!known)
        GTEST_SKIP() << "this kernel cannot make pages writable ahead";
    brg_ring_options options = options_of();
    brg_ring *ring;
    ASSERT_EQ(brg_ring_create(dir.path("rank-0.ring").c_str(), &options, &ring), BRG_OK)
        << brg_last_error();
    const long records = 1 << BRG_RING_NREC_LOG2_DEFAULT, pages = records / 64;
    brg_rec rec{};
    struct rusage before, after;
    brg_ring_put(ring, &rec); /* the code's own page */
    getrusage(RUSAGE_THREAD, &before);
    for (long i = 0; i < records; i++)
        brg_ring_put(ring, &rec);
    getrusage(RUSAGE_THREAD, &after);
    /* The kernel may have written the file out meanwhile; what is dirtied after that faults. */
    EXPECT_LT(after.ru_minflt - before.ru_minflt, pages / 2);
    brg_ring_close(ring);
}

TEST(Ring, FileSizeLimitFailsAtCreation)
{
    TempDir dir;
    std::string path = dir.path("rank-0.ring");
    int code = in_child([&] {
        struct rlimit limit = {1 << 20, 1 << 20};
        setrlimit(RLIMIT_FSIZE, &limit);
        brg_ring *ring;
        brg_ring_options options = options_of();
        if (brg_ring_create(path.c_str(), &options, &ring) != BRG_ERR_IO || ring)
            return 1;
        if (!strstr(brg_last_error(), path.c_str()) || !strstr(brg_last_error(), "limit"))
            return 2;
        return access(path.c_str(), F_OK) ? 0 : 3;
    });
    EXPECT_EQ(code, 0);
}

TEST(Ring, FullDiskFailsAtCreation)
{
    TempDir dir;
    std::string path = dir.path("rank-0.ring");
    if (mount("none", dir.path().c_str(), "tmpfs", 0, "size=1m"))
        GTEST_SKIP() << "a small file system cannot be mounted here: " << strerror(errno);
    brg_ring *ring;
    brg_ring_options options = options_of();
    brg_status status = brg_ring_create(path.c_str(), &options, &ring);
    std::string message = brg_last_error();
    bool left = !access(path.c_str(), F_OK);
    umount(dir.path().c_str());
    EXPECT_EQ(status, BRG_ERR_IO);
    EXPECT_NE(message.find(path), std::string::npos) << message;
    EXPECT_FALSE(left);
}

} // namespace
