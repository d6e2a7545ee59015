/* SPDX-License-Identifier: Apache-2.0 */
/* Groups, sends and receives, splits, several communicators and streams. */
#include "tests/device/ranks.h"
#include "tests/seed.h"

#include <numeric>

namespace
{

void expect_no_error(Rank &rank)
{
    rank.sync();
    ASSERT_EQ(rank.async_error(), 0) << rank.text();
}

void ring(Rank &rank, size_t count)
{
    int next = (rank.rank + 1) % rank.size, before = (rank.rank + rank.size - 1) % rank.size;
    std::vector<int32_t> out(count), in(count, -1);
    for (size_t i = 0; i < count; i++)
        out[i] = (int32_t)(i * 31) + rank.rank;
    ASSERT_EQ(nccl()->group_start(), 0);
    ASSERT_EQ(nccl()->send(out.data(), count, BRG_NCCL_INT32, next, rank.comm, rank.stream), 0);
    ASSERT_EQ(nccl()->recv(in.data(), count, BRG_NCCL_INT32, before, rank.comm, rank.stream), 0);
    ASSERT_EQ(nccl()->group_end(), 0);
    expect_no_error(rank);
    for (size_t i = 0; i < count; i++)
        ASSERT_EQ(in[i], (int32_t)(i * 31) + before) << "element " << i << " of " << count;
}

TEST(SendReceive, RingsInGroups)
{
    for (const char *transport : {"auto", "copy", "staged"}) {
        setenv("BRIGADE_HOST_TRANSPORT", transport, 1);
        brg_unique_id id = new_id();
        run_processes(4, [&](int r) {
            Rank rank(id, 4, r);
            for (size_t count : {0, 1, 1000, 300000, 17})
                ring(rank, count);
        });
        unsetenv("BRIGADE_HOST_TRANSPORT");
    }
    brg_unique_id id = new_id();
    run_threads(3, [&](int r) {
        Rank rank(id, 3, r);
        for (size_t count : {5, 100000})
            ring(rank, count);
    });
}

/* Several messages between the same two ranks, both ways, receives posted before sends, and one to
 * itself. */
TEST(SendReceive, ManyInOneGroupKeepTheirOrder)
{
    for (const char *transport : {"auto", "staged"}) {
        setenv("BRIGADE_HOST_TRANSPORT", transport, 1);
        brg_unique_id id = new_id();
        run_processes(2, [&](int r) {
            Rank rank(id, 2, r);
            const size_t messages = 5, count = 20000;
            std::vector<std::vector<float>> in(messages, std::vector<float>(count)), out = in;
            std::vector<double> from(3, r), to(3, -1);
            ASSERT_EQ(nccl()->group_start(), 0);
            for (size_t m = 0; m < messages; m++) {
                std::fill(out[m].begin(), out[m].end(), (float)(100 * r) + (float)m);
                nccl()->recv(in[m].data(), count - m, BRG_NCCL_FLOAT32, 1 - r, rank.comm,
                             rank.stream);
            }
            nccl()->recv(to.data(), 3, BRG_NCCL_FLOAT64, r, rank.comm, rank.stream);
            for (size_t m = 0; m < messages; m++)
                nccl()->send(out[m].data(), count - m, BRG_NCCL_FLOAT32, 1 - r, rank.comm,
                             rank.stream);
            nccl()->send(from.data(), 3, BRG_NCCL_FLOAT64, r, rank.comm, rank.stream);
            ASSERT_EQ(nccl()->group_end(), 0) << rank.text();
            expect_no_error(rank);
            EXPECT_EQ(to, from);
            for (size_t m = 0; m < messages; m++)
                for (size_t i = 0; i < count - m; i++)
                    ASSERT_EQ(in[m][i], (float)(100 * (1 - r)) + (float)m);
        });
        unsetenv("BRIGADE_HOST_TRANSPORT");
    }
}

TEST(SendReceive, OutsideGroups)
{
    brg_unique_id id = new_id();
    run_processes(2, [&](int r) {
        Rank rank(id, 2, r);
        for (int turn = 0; turn < 20; turn++) {
            int64_t value = turn % 2 == r ? 1000 + turn : 0;
            if (turn % 2 == r)
                ASSERT_EQ(nccl()->send(&value, 1, BRG_NCCL_INT64, 1 - r, rank.comm, rank.stream),
                          0);
            else
                ASSERT_EQ(nccl()->recv(&value, 1, BRG_NCCL_INT64, 1 - r, rank.comm, rank.stream),
                          0);
            expect_no_error(rank);
            EXPECT_EQ(value, 1000 + turn);
        }
        int32_t byte = 0;
        EXPECT_EQ(nccl()->send(&byte, 1, BRG_NCCL_INT32, r, rank.comm, rank.stream),
                  BRG_NCCL_INVALID_USAGE);
        EXPECT_EQ(nccl()->send(&byte, 1, BRG_NCCL_INT32, 2, rank.comm, rank.stream),
                  BRG_NCCL_INVALID_ARGUMENT);
        nccl()->group_start();
        nccl()->send(&byte, 1, BRG_NCCL_INT32, r, rank.comm, rank.stream);
        EXPECT_EQ(nccl()->group_end(), BRG_NCCL_INVALID_USAGE);
        EXPECT_NE(strstr(nccl()->last_error(nullptr), "1 sends to itself but 0 receives"), nullptr);
    });
}

/* One thread drives all ranks, on the NULL stream and on streams. */
TEST(Group, OneThreadAllRanks)
{
    const int n = 4;
    void *comms[n];
    int devices[n] = {3, 2, 1, 0};
    ASSERT_EQ(nccl()->comm_init_all(comms, n, devices), 0) << nccl()->last_error(nullptr);
    EXPECT_TRUE(segments_left().empty());
    int value;
    for (int r = 0; r < n; r++) {
        EXPECT_EQ(nccl()->comm_count(comms[r], &value), 0);
        EXPECT_EQ(value, n);
        EXPECT_EQ(nccl()->comm_user_rank(comms[r], &value), 0);
        EXPECT_EQ(value, r);
        EXPECT_EQ(nccl()->comm_device(comms[r], &value), 0);
        EXPECT_EQ(value, devices[r]);
    }
    std::vector<std::vector<float>> data(n, std::vector<float>(5000)),
        all(n, std::vector<float>(20000));
    for (int round = 0; round < 3; round++) {
        ASSERT_EQ(nccl()->group_start(), 0);
        for (int r = 0; r < n; r++) {
            std::fill(data[(size_t)r].begin(), data[(size_t)r].end(), (float)(r + 1));
            ASSERT_EQ(nccl()->group_start(), 0); /* nests */
            float *mine = data[(size_t)r].data();
            EXPECT_EQ(nccl()->all_reduce(mine, mine, 5000, BRG_NCCL_FLOAT32, BRG_NCCL_SUM, comms[r],
                                         nullptr),
                      0);
            EXPECT_EQ(nccl()->all_gather(mine, all[(size_t)r].data(), 5000, BRG_NCCL_FLOAT32,
                                         comms[r], nullptr),
                      0);
            EXPECT_EQ(mine[0], (float)(r + 1)) << "nothing may run before the outermost end";
            ASSERT_EQ(nccl()->group_end(), 0);
        }
        ASSERT_EQ(nccl()->group_end(), 0);
        for (int r = 0; r < n; r++)
            for (float x : all[(size_t)r])
                ASSERT_EQ(x, 10.0f);
    }
    for (int r = 0; r < n; r++) {
        EXPECT_EQ(nccl()->comm_finalize(comms[r]), 0);
        EXPECT_EQ(nccl()->comm_destroy(comms[r]), 0);
    }
}

TEST(Group, InitRanksOfOneThread)
{
    brg_unique_id id = new_id();
    void *comms[3] = {};
    ASSERT_EQ(nccl()->group_start(), 0);
    for (int r = 0; r < 3; r++)
        ASSERT_EQ(nccl()->comm_init_rank(&comms[r], 3, id, r), 0);
    ASSERT_EQ(nccl()->group_end(), 0) << nccl()->last_error(nullptr);
    int rank;
    for (int r = 0; r < 3; r++) {
        ASSERT_NE(comms[r], nullptr);
        EXPECT_EQ(nccl()->comm_user_rank(comms[r], &rank), 0);
        EXPECT_EQ(rank, r);
        nccl()->comm_destroy(comms[r]);
    }
    EXPECT_EQ(nccl()->group_end(), BRG_NCCL_INVALID_USAGE);
}

/* An error inside a group makes its end fail, and nothing of the group runs. */
TEST(Group, ErrorsCancelTheGroup)
{
    brg_unique_id id = new_id();
    run_threads(2, [&](int r) {
        Rank rank(id, 2, r);
        float value = 1;
        nccl()->group_start();
        EXPECT_EQ(nccl()->all_reduce(&value, &value, 1, BRG_NCCL_FLOAT32, BRG_NCCL_SUM, rank.comm,
                                     rank.stream),
                  0);
        EXPECT_EQ(nccl()->all_reduce(&value, &value, 1, 99, BRG_NCCL_SUM, rank.comm, rank.stream),
                  BRG_NCCL_INVALID_ARGUMENT);
        EXPECT_EQ(nccl()->group_end(), BRG_NCCL_INVALID_ARGUMENT);
        expect_no_error(rank);
        EXPECT_EQ(value, 1);
        EXPECT_EQ(nccl()->all_reduce(&value, &value, 1, BRG_NCCL_FLOAT32, BRG_NCCL_SUM, rank.comm,
                                     rank.stream),
                  0);
        expect_no_error(rank);
        EXPECT_EQ(value, 2);
    });
}

/* Calls on one communicator go in the order of the calls, whatever streams they are on; sends and
 * receives of one group may be on different streams. */
TEST(Group, SeveralStreamsAndCommunicators)
{
    brg_unique_id first = new_id(), second = new_id();
    run_processes(2, [&](int r) {
        Rank a(first, 2, r), b(second, 2, r);
        std::vector<float> x(10000, 1), y(10000, 2), got(10000), self(10000);
        for (int round = 0; round < 5; round++) {
            nccl()->group_start();
            nccl()->recv(got.data(), 10000, BRG_NCCL_FLOAT32, 1 - r, a.comm, b.stream);
            nccl()->all_reduce(x.data(), x.data(), 10000, BRG_NCCL_FLOAT32, BRG_NCCL_MAX, a.comm,
                               r == 0 ? a.stream : b.stream);
            nccl()->all_reduce(y.data(), y.data(), 10000, BRG_NCCL_FLOAT32, BRG_NCCL_AVG, b.comm,
                               r == 0 ? b.stream : a.stream);
            nccl()->all_reduce(x.data(), x.data(), 10000, BRG_NCCL_FLOAT32, BRG_NCCL_MIN, a.comm,
                               r == 0 ? b.stream : a.stream);
            nccl()->send(y.data(), 10000, BRG_NCCL_FLOAT32, 1 - r, a.comm, a.stream);
            nccl()->recv(self.data(), 10000, BRG_NCCL_FLOAT32, r, a.comm, a.stream);
            nccl()->send(y.data(), 10000, BRG_NCCL_FLOAT32, r, a.comm, nullptr);
            ASSERT_EQ(nccl()->group_end(), 0) << a.text() << b.text();
            expect_no_error(a);
            expect_no_error(b);
            ASSERT_EQ(got, y);
            ASSERT_EQ(self, y);
        }
    });
}

TEST(Group, OperatorMayGoBeforeTheEnd)
{
    brg_unique_id id = new_id();
    run_threads(2, [&](int r) {
        Rank rank(id, 2, r);
        float scale = 0.5f, value = (float)(r + 1);
        int op;
        ASSERT_EQ(nccl()->redop_create_premul_sum(&op, &scale, BRG_NCCL_FLOAT32,
                                                  BRG_NCCL_SCALAR_HOST_IMMEDIATE, rank.comm),
                  0);
        nccl()->group_start();
        nccl()->all_reduce(&value, &value, 1, BRG_NCCL_FLOAT32, op, rank.comm, rank.stream);
        EXPECT_EQ(nccl()->redop_destroy(op, rank.comm), 0);
        ASSERT_EQ(nccl()->group_end(), 0);
        expect_no_error(rank);
        EXPECT_EQ(value, 1.5f);
        EXPECT_EQ(nccl()->redop_destroy(op, rank.comm), BRG_NCCL_INVALID_ARGUMENT);
        EXPECT_EQ(
            nccl()->all_reduce(&value, &value, 1, BRG_NCCL_FLOAT32, op, rank.comm, rank.stream),
            BRG_NCCL_INVALID_ARGUMENT);
    });
}

TEST(Split, ColorsKeysAndNone)
{
    for (bool threads : {false, true}) {
        brg_unique_id id = new_id();
        auto body = [&](int r) {
            Rank rank(id, 5, r);
            float sum = (float)(1 << r);
            ASSERT_EQ(nccl()->all_reduce(&sum, &sum, 1, BRG_NCCL_FLOAT32, BRG_NCCL_SUM, rank.comm,
                                         rank.stream),
                      0);
            void *child = &child;
            int color = r == 2 ? -1 : r % 2; /* 1,3 and 0,4; keys reverse the order */
            ASSERT_EQ(nccl()->comm_split(rank.comm, color, -r, &child), 0) << rank.text();
            if (color < 0) {
                EXPECT_EQ(child, nullptr);
            } else {
                int count, place, low = r % 2 ? 1 : 0;
                nccl()->comm_count(child, &count);
                nccl()->comm_user_rank(child, &place);
                EXPECT_EQ(count, 2);
                EXPECT_EQ(place, r == low ? 1 : 0);
                float mine = (float)r, both[2];
                EXPECT_EQ(nccl()->all_gather(&mine, both, 1, BRG_NCCL_FLOAT32, child, rank.stream),
                          0);
                rank.sync();
                EXPECT_EQ(both[0], (float)(r % 2 ? 3 : 4));
                EXPECT_EQ(both[1], (float)low);
                EXPECT_EQ(nccl()->comm_destroy(child), 0);
            }
            expect_no_error(rank);
            EXPECT_EQ(sum, 31.0f);
        };
        if (threads)
            run_threads(5, body);
        else
            run_processes(5, body);
        EXPECT_TRUE(segments_left().empty());
    }
}

TEST(Communicator, SixtyFourRanks)
{
    brg_unique_id id = new_id();
    run_threads(64, [&](int r) {
        Rank rank(id, 64, r);
        std::vector<int32_t> out(64 * 3, r), in(64 * 3);
        ASSERT_EQ(
            nccl()->all_to_all(out.data(), in.data(), 3, BRG_NCCL_INT32, rank.comm, rank.stream),
            0);
        expect_no_error(rank);
        for (int i = 0; i < 64 * 3; i++)
            ASSERT_EQ(in[(size_t)i], i / 3);
    });
}

/* Destroying with work still queued: the work is done. */
TEST(Communicator, DestroyKeepsQueuedWork)
{
    brg_unique_id id = new_id();
    run_processes(2, [&](int r) {
        Rank rank(id, 2, r);
        std::vector<float> data(20000, 1);
        for (int i = 0; i < 10; i++)
            ASSERT_EQ(nccl()->all_reduce(data.data(), data.data(), data.size(), BRG_NCCL_FLOAT32,
                                         BRG_NCCL_SUM, rank.comm, rank.stream),
                      0);
        ASSERT_EQ(nccl()->comm_destroy(rank.comm), 0);
        rank.comm = nullptr;
        rank.sync();
        for (float x : data)
            ASSERT_EQ(x, 1024.0f);
    });
}

TEST(Communicator, BadArgumentsAreNamed)
{
    Rank rank(new_id(), 1, 0);
    float x = 0;
    const brg_nccl *t = nccl();
    void *c = rank.comm, *s = rank.stream;
    EXPECT_EQ(t->all_reduce(nullptr, &x, 1, BRG_NCCL_FLOAT32, 0, c, s), BRG_NCCL_INVALID_ARGUMENT);
    EXPECT_EQ(t->all_reduce(&x, nullptr, 1, BRG_NCCL_FLOAT32, 0, c, s), BRG_NCCL_INVALID_ARGUMENT);
    EXPECT_EQ(t->all_reduce(&x, &x, 1, BRG_NCCL_FLOAT32, 77, c, s), BRG_NCCL_INVALID_ARGUMENT);
    EXPECT_EQ(t->all_reduce(&x, &x, 1, BRG_NCCL_FLOAT32, -1, c, s), BRG_NCCL_INVALID_ARGUMENT);
    EXPECT_EQ(t->all_reduce(&x, &x, SIZE_MAX, BRG_NCCL_FLOAT32, 0, c, s),
              BRG_NCCL_INVALID_ARGUMENT);
    EXPECT_EQ(t->all_reduce(&x, &x, 1, BRG_NCCL_FLOAT32, 0, nullptr, s), BRG_NCCL_INVALID_ARGUMENT);
    EXPECT_EQ(t->broadcast(&x, &x, 1, BRG_NCCL_FLOAT32, 1, c, s), BRG_NCCL_INVALID_ARGUMENT);
    EXPECT_NE(strstr(t->last_error(nullptr), "broadcast: there is no rank 1 among 1 ranks"),
              nullptr);
    EXPECT_EQ(t->all_to_all(&x, &x, 1, BRG_NCCL_FLOAT32, c, s), BRG_NCCL_INVALID_ARGUMENT);
    alignas(8) char odd[9];
    EXPECT_EQ(t->all_reduce(odd + 1, odd + 1, 1, BRG_NCCL_FLOAT32, 0, c, s),
              BRG_NCCL_INVALID_ARGUMENT);
    EXPECT_NE(strstr(t->last_error(nullptr), "not aligned to 4 bytes"), nullptr);
    EXPECT_EQ(t->all_reduce(nullptr, nullptr, 0, BRG_NCCL_FLOAT32, 0, c, s), 0);
    rank.sync();
    EXPECT_EQ(rank.async_error(), 0);
}

} // namespace
