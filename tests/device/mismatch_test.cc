// SPDX-License-Identifier: Apache-2.0
// What ranks see when others call something else.
#include "tests/device/failure.h"

namespace
{

struct Call {
    const char *text;
    std::function<int(Rank &, float *)> make;
};

const Call calls[] = {
    {"all-gather of 4 fp32",
     [](Rank &r, float *m) {
         return nccl()->all_gather(m, m + 4096, 4, BRG_NCCL_FLOAT32, r.comm, r.stream);
     }},
    {"all-gather of 5 fp32",
     [](Rank &r, float *m) {
         return nccl()->all_gather(m, m + 4096, 5, BRG_NCCL_FLOAT32, r.comm, r.stream);
     }},
    {"all-gather of 4 i32",
     [](Rank &r, float *m) {
         return nccl()->all_gather(m, m + 4096, 4, BRG_NCCL_INT32, r.comm, r.stream);
     }},
    {"reduce-scatter (sum) of 4 fp32",
     [](Rank &r, float *m) {
         return nccl()->reduce_scatter(m, m + 4096, 4, BRG_NCCL_FLOAT32, BRG_NCCL_SUM, r.comm,
                                       r.stream);
     }},
    {"reduce-scatter (max) of 4 fp32",
     [](Rank &r, float *m) {
         return nccl()->reduce_scatter(m, m + 4096, 4, BRG_NCCL_FLOAT32, BRG_NCCL_MAX, r.comm,
                                       r.stream);
     }},
    {"broadcast of 4 fp32 from rank 0",
     [](Rank &r, float *m) {
         return nccl()->broadcast(m, m, 4, BRG_NCCL_FLOAT32, 0, r.comm, r.stream);
     }},
    {"broadcast of 4 fp32 from rank 1",
     [](Rank &r, float *m) {
         return nccl()->broadcast(m, m, 4, BRG_NCCL_FLOAT32, 1, r.comm, r.stream);
     }},
    {"all-reduce (avg) of 20000 bf16", /* large against small */
     [](Rank &r, float *m) {
         return nccl()->all_reduce(m, m, 20000, BRG_NCCL_BFLOAT16, BRG_NCCL_AVG, r.comm, r.stream);
     }},
};

TEST(Mismatch, NamesBothRanksAndBothCalls)
{
    const int pairs[][2] = {{0, 1}, {0, 2}, {0, 3}, {3, 4}, {5, 6}, {7, 0}};
    for (auto &pair : pairs) {
        const Call &usual = calls[pair[0]], &odd = calls[pair[1]];
        brg_unique_id id = new_id();
        run_processes(3, [&](int r) {
            Rank rank(id, 3, r);
            Memory memory(256 << 10);
            expect_sum(rank);
            ASSERT_EQ((r == 2 ? odd : usual).make(rank, (float *)memory.data), 0);
            rank.sync();
            EXPECT_EQ(rank.async_error(), BRG_NCCL_INVALID_USAGE);
            EXPECT_EQ(brg_host_comm_status(rank.comm), BRG_ERR_MISMATCH);
            std::string text = std::string("collective #2: rank 0 calls ") + usual.text +
                               ", rank 2 calls " + odd.text;
            EXPECT_EQ(rank.text(), text);
            expect_broken(rank);
        });
    }
    EXPECT_TRUE(segments_left().empty());
}

TEST(Mismatch, OfOrder)
{
    brg_unique_id id = new_id();
    run_processes(2, [&](int r) {
        Rank rank(id, 2, r);
        Memory memory(256 << 10);
        for (int i : {r, 1 - r})
            nccl()->group_start(), calls[i * 3].make(rank, (float *)memory.data),
                nccl()->group_end();
        rank.sync();
        EXPECT_NE(rank.async_error(), 0);
        expect_text(rank, {"collective #1", "rank 0 calls all-gather of 4 fp32",
                           "rank 1 calls reduce-scatter (sum) of 4 fp32"});
    });
}

TEST(Mismatch, IsSeenEvenWhenARankIsMissing)
{
    brg_unique_id id = new_id();
    Board board;
    run_processes(3, [&](int r) {
        Rank rank(id, 3, r);
        Memory memory(256 << 10);
        if (r == 2) {
            board.wait_for(0, 2);
            EXPECT_NE(wait_for_async_error(rank, 5), 0);
            return;
        }
        ASSERT_EQ(calls[r].make(rank, (float *)memory.data), 0);
        rank.sync();
        EXPECT_EQ(rank.async_error(), BRG_NCCL_INVALID_USAGE);
        expect_text(rank,
                    {"rank 0 calls all-gather of 4 fp32", "rank 1 calls all-gather of 5 fp32"});
        board.flags[0]++;
    });
}

TEST(Mismatch, OfSendAndReceive)
{
    brg_unique_id id = new_id();
    run_processes(2, [&](int r) {
        Rank rank(id, 2, r);
        float data[8] = {};
        if (r == 0)
            ASSERT_EQ(nccl()->send(data, 4, BRG_NCCL_FLOAT32, 1, rank.comm, rank.stream), 0);
        else
            ASSERT_EQ(nccl()->recv(data, 8, BRG_NCCL_FLOAT32, 0, rank.comm, rank.stream), 0);
        rank.sync();
        EXPECT_NE(rank.async_error(), 0);
        expect_text(rank, {"rank 0 sends 4 fp32", "rank 1 receives 8 fp32"});
    });
}

} // namespace
