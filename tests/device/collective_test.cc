/* SPDX-License-Identifier: Apache-2.0 */
/* Every collective, type, operator, placement and path against references, bit for bit: ranks as
 * threads and as processes. */
#include "tests/device/ranks.h"
#include "tests/device/reference.h"
#include "tests/seed.h"

namespace
{

enum Kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, REDUCE, ALL_TO_ALL };
const char *const kind_names[] = {"all_reduce", "reduce_scatter", "all_gather",
                                  "broadcast",  "reduce",         "all_to_all"};

struct Case {
    Kind kind;
    Type type;
    int op;
    bool premul, in_place;
    size_t count; /* as given to the call */
    int root;
    uint64_t seed;
};

bool reduces(Kind kind)
{
    return kind == ALL_REDUCE || kind == REDUCE_SCATTER || kind == REDUCE;
}

size_t input_count(const Case &c, int n)
{
    return c.kind == REDUCE_SCATTER || c.kind == ALL_TO_ALL ? c.count * (size_t)n : c.count;
}

size_t output_count(const Case &c, int n)
{
    return c.kind == ALL_GATHER || c.kind == ALL_TO_ALL ? c.count * (size_t)n : c.count;
}

std::vector<char> expected(const Case &c, int n, int rank)
{
    std::vector<std::vector<char>> in;
    for (int r = 0; r < n; r++)
        in.push_back(make_input(c.type, input_count(c, n), c.seed + (uint64_t)r));
    size_t chunk = c.count * c.type.bytes, size = (size_t)n, me = (size_t)rank;
    std::vector<char> out(output_count(c, n) * c.type.bytes);
    for (size_t i = 0; i < c.count && reduces(c.kind); i++)
        reduce_element(c.type, c.op, c.premul, in, c.kind == REDUCE_SCATTER ? me * c.count + i : i,
                       out, i);
    if (c.kind == BROADCAST)
        out = in[(size_t)c.root];
    for (size_t r = 0; r < size && chunk; r++) {
        if (c.kind == ALL_GATHER)
            memcpy(out.data() + r * chunk, in[r].data(), chunk);
        if (c.kind == ALL_TO_ALL)
            memcpy(out.data() + r * chunk, in[r].data() + me * chunk, chunk);
    }
    return out;
}

int issue(const Case &c, int op, const void *send, void *recv, Rank &rank)
{
    const brg_nccl *table = nccl();
    switch (c.kind) {
    case ALL_REDUCE:
        return table->all_reduce(send, recv, c.count, c.type.nccl, op, rank.comm, rank.stream);
    case REDUCE_SCATTER:
        return table->reduce_scatter(send, recv, c.count, c.type.nccl, op, rank.comm, rank.stream);
    case ALL_GATHER:
        return table->all_gather(send, recv, c.count, c.type.nccl, rank.comm, rank.stream);
    case BROADCAST:
        return table->broadcast(send, recv, c.count, c.type.nccl, c.root, rank.comm, rank.stream);
    case REDUCE:
        return table->reduce(send, recv, c.count, c.type.nccl, op, c.root, rank.comm, rank.stream);
    case ALL_TO_ALL:
        return table->all_to_all(send, recv, c.count, c.type.nccl, rank.comm, rank.stream);
    }
    return -1;
}

void run_case(const Case &c, Rank &rank, bool device_memory)
{
    int n = rank.size;
    size_t in_bytes = input_count(c, n) * c.type.bytes,
           out_bytes = output_count(c, n) * c.type.bytes;
    size_t chunk = c.count * c.type.bytes, me = (size_t)rank.rank, pad = 64;
    std::vector<char> input = make_input(c.type, input_count(c, n), c.seed + me);
    Memory device(device_memory ? in_bytes + out_bytes + 3 * pad : 1);
    std::vector<char> heap(device_memory ? 1 : in_bytes + out_bytes + 3 * pad);
    char *base = device_memory ? device.data : heap.data();
    memset(base, 0x5a, in_bytes + out_bytes + 3 * pad);
    char *recv = base + pad, *send = recv + out_bytes + pad;
    if (c.in_place) {
        if (c.kind == ALL_GATHER)
            send = recv + me * chunk;
        else if (c.kind == REDUCE_SCATTER)
            recv = send + me * chunk;
        else
            send = recv;
    }
    if (in_bytes)
        memcpy(send, input.data(), in_bytes);
    int op = c.op;
    std::vector<char> scalar = make_scalar(c.type, rank.rank);
    if (c.premul) {
        int residence = c.count % 2 ? BRG_NCCL_SCALAR_DEVICE : BRG_NCCL_SCALAR_HOST_IMMEDIATE;
        ASSERT_EQ(
            nccl()->redop_create_premul_sum(&op, scalar.data(), c.type.nccl, residence, rank.comm),
            0);
        ASSERT_GE(op, BRG_NCCL_NUM_OPS);
    }
    std::string name = std::string(kind_names[c.kind]) + " " + c.type.name + " op " +
                       std::to_string(c.op) + (c.premul ? " premul" : "") +
                       (c.in_place ? " in place" : "") + " count " + std::to_string(c.count) +
                       " rank " + std::to_string(rank.rank) + "/" + std::to_string(n);
    ASSERT_EQ(issue(c, op, send, recv, rank), 0) << name << ": " << rank.text();
    if (c.premul) {
        ASSERT_EQ(nccl()->redop_destroy(op, rank.comm), 0);
    }
    rank.sync();
    ASSERT_EQ(rank.async_error(), 0) << name << ": " << rank.text();
    if (c.kind == REDUCE && rank.rank != c.root)
        return;
    std::vector<char> want = expected(c, n, rank.rank);
    ASSERT_EQ(want.size(), out_bytes);
    if (out_bytes && memcmp(recv, want.data(), out_bytes) != 0) {
        size_t at = 0;
        while (recv[at] == want[at])
            at++;
        FAIL() << name << ": differs at element " << at / c.type.bytes << " ("
               << brg_host_algorithm(rank.comm) << ")";
    }
    if (!c.in_place) {
        EXPECT_EQ(recv[-1], 0x5a) << name << ": wrote before the buffer";
        EXPECT_EQ(recv[out_bytes], 0x5a) << name << ": wrote behind the buffer";
        EXPECT_TRUE(!in_bytes || !memcmp(send, input.data(), in_bytes))
            << name << ": input changed";
    }
}

/* All kinds, types, operators and placements for one size; each rank draws the same list. */
void run_size(Rank &rank, size_t count, uint64_t seed, bool device_memory)
{
    std::mt19937_64 rng(seed);
    for (Kind kind : {ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, REDUCE, ALL_TO_ALL})
        for (const Type &type : all_types())
            for (int op = 0; op < (reduces(kind) ? BRG_NCCL_NUM_OPS + 1 : 1); op++)
                for (bool in_place : {false, true}) {
                    Case c = {kind,
                              type,
                              op == BRG_NCCL_NUM_OPS ? BRG_NCCL_SUM : op,
                              op == BRG_NCCL_NUM_OPS,
                              in_place,
                              count,
                              (int)(rng() % (uint64_t)rank.size),
                              rng()};
                    if (kind == ALL_TO_ALL && in_place)
                        continue;
                    run_case(c, rank, device_memory);
                    if (testing::Test::HasFatalFailure())
                        return;
                }
}

void everything(int n, int r, const brg_unique_id &id, const std::vector<size_t> &sizes,
                bool device_memory, const char *algorithm)
{
    Rank rank(id, n, r);
    for (size_t count : sizes) {
        run_size(rank, count, test_seed() ^ count, device_memory);
        if (testing::Test::HasFailure())
            return;
    }
    if (algorithm) {
        EXPECT_STREQ(brg_host_algorithm(rank.comm), algorithm);
    }
}

/* The last size is large enough to leave the inline path for every type. */
const std::vector<size_t> sizes = {0, 1, 7, 600, 8209};

TEST(CollectivesThreads, EverythingOnThree)
{
    brg_unique_id id = new_id();
    run_threads(3, [&](int r) { everything(3, r, id, sizes, true, "direct"); });
    EXPECT_TRUE(segments_left().empty());
}

TEST(CollectivesThreads, StagedOnThree)
{
    brg_unique_id id = new_id();
    setenv("BRIGADE_HOST_TRANSPORT", "staged", 1);
    run_threads(3, [&](int r) { everything(3, r, id, {8209}, false, "staged"); });
    unsetenv("BRIGADE_HOST_TRANSPORT");
}

TEST(CollectivesThreads, OneRank)
{
    brg_unique_id id = new_id();
    run_threads(1, [&](int r) { everything(1, r, id, sizes, true, nullptr); });
}

void over_processes(int n, const char *transport, const std::vector<size_t> &list,
                    bool device_memory, const char *algorithm)
{
    test_seed();
    brg_unique_id id = new_id();
    setenv("BRIGADE_HOST_TRANSPORT", transport, 1);
    run_processes(n, [&](int r) { everything(n, r, id, list, device_memory, algorithm); });
    unsetenv("BRIGADE_HOST_TRANSPORT");
    EXPECT_TRUE(segments_left().empty());
}

TEST(CollectivesProcesses, DeviceMemory)
{
    over_processes(4, "auto", sizes, true, "direct");
}

TEST(CollectivesProcesses, MappedDeviceMemory)
{
    over_processes(3, "mapped", {8209}, true, "direct");
}

TEST(CollectivesProcesses, MappedCannotReachOtherMemory)
{
    over_processes(3, "mapped", {8209}, false, "staged");
}

TEST(CollectivesProcesses, CopiedOtherMemory)
{
    over_processes(3, "copy", {8209}, false, "direct");
}

TEST(CollectivesProcesses, Staged)
{
    over_processes(3, "staged", {13, 8209}, true, "staged");
}

TEST(CollectivesProcesses, EightRanks)
{
    over_processes(8, "auto", {5, 1031}, true, nullptr);
}

/* Several staging slots and reduction pieces, more than one round. */
void large(int n, int r, const brg_unique_id &id)
{
    Rank rank(id, n, r);
    Type f32 = {BRG_NCCL_FLOAT32, "fp32", 4}, bf16 = {BRG_NCCL_BFLOAT16, "bf16", 2};
    for (Kind kind : {ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, REDUCE, ALL_TO_ALL})
        for (const Type &type : {f32, bf16})
            run_case({kind, type, BRG_NCCL_SUM, false, kind != ALL_TO_ALL, 200003, 1, 99}, rank,
                     true);
}

TEST(CollectivesProcesses, LargeDirectAndStaged)
{
    for (const char *transport : {"auto", "staged"}) {
        brg_unique_id id = new_id();
        setenv("BRIGADE_HOST_TRANSPORT", transport, 1);
        run_processes(2, [&](int r) { large(2, r, id); });
        unsetenv("BRIGADE_HOST_TRANSPORT");
    }
}

/* Sums against float64, with the error bound of n roundings. */
TEST(CollectivesProcesses, SumsAreCloseToFloat64)
{
    brg_unique_id id = new_id();
    test_seed();
    run_processes(5, [&](int r) {
        Rank rank(id, 5, r);
        Type type = {BRG_NCCL_FLOAT32, "fp32", 4};
        size_t count = 5000;
        std::vector<char> mine = make_input(type, count, test_seed() + (uint64_t)r);
        std::vector<float> out(count);
        ASSERT_EQ(nccl()->all_reduce(mine.data(), out.data(), count, BRG_NCCL_FLOAT32, BRG_NCCL_SUM,
                                     rank.comm, rank.stream),
                  0);
        rank.sync();
        std::vector<double> sum(count), size(count);
        for (uint64_t p = 0; p < 5; p++) {
            std::vector<char> in = make_input(type, count, test_seed() + p);
            for (size_t i = 0; i < count; i++) {
                sum[i] += load<float>(in, i);
                size[i] += std::fabs(load<float>(in, i));
            }
        }
        for (size_t i = 0; i < count; i++)
            ASSERT_LE(std::fabs(out[i] - sum[i]), 5 * 0x1p-24 * size[i]) << i;
    });
}

/* Special values survive; a NaN in a sum stays one; max and min skip it, as fmax and fmin do. */
TEST(CollectivesThreads, SpecialValuesOf16BitTypes)
{
    brg_unique_id id = new_id();
    run_threads(2, [&](int r) {
        Rank rank(id, 2, r);
        for (int type : {BRG_NCCL_FLOAT16, BRG_NCCL_BFLOAT16}) {
            std::vector<uint16_t> in(65536), out(65536);
            auto decode = type == BRG_NCCL_FLOAT16 ? decode_fp16 : decode_bf16;
            auto encode = type == BRG_NCCL_FLOAT16 ? encode_fp16 : encode_bf16;
            auto other = [](size_t i) { return (uint16_t)(i * 40503u + 7u); };
            for (size_t i = 0; i < 65536; i++)
                in[i] = r == 0 ? (uint16_t)i : other(i);
            ASSERT_EQ(nccl()->all_reduce(in.data(), out.data(), 65536, type, BRG_NCCL_SUM,
                                         rank.comm, rank.stream),
                      0);
            rank.sync();
            for (size_t i = 0; i < 65536; i++) {
                float sum = (float)decode((uint16_t)i) + (float)decode(other(i));
                if (std::isnan(sum))
                    ASSERT_TRUE(std::isnan(decode(out[i]))) << i;
                else
                    ASSERT_EQ(out[i], encode(sum)) << "type " << type << " pattern " << i;
            }
        }
        float value = r == 0 ? NAN : 3.0f, most = 0;
        ASSERT_EQ(nccl()->all_reduce(&value, &most, 1, BRG_NCCL_FLOAT32, BRG_NCCL_MAX, rank.comm,
                                     rank.stream),
                  0);
        rank.sync();
        EXPECT_EQ(most, 3.0f);
    });
}

} // namespace
