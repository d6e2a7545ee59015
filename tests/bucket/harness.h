/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as threads: each runs the same function on a context of its own. */
#ifndef BRIGADE_TESTS_BUCKET_HARNESS_H
#define BRIGADE_TESTS_BUCKET_HARNESS_H

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "brigade/brigade.h"

extern "C" {
#include "sched/bucket/view.h"
}

#include "tests/seed.h"

#ifdef BRIGADE_TEST_KERNEL_TABLE
#include "tests/optim/host_kernel_table.h"
#endif

#define ASSERT_OK(expr)                                                                            \
    do {                                                                                           \
        brg_status status_ = (expr);                                                               \
        ASSERT_EQ(status_, BRG_OK) << brg_last_error();                                            \
    } while (0)
#define EXPECT_OK(expr)                                                                            \
    do {                                                                                           \
        brg_status status_ = (expr);                                                               \
        EXPECT_EQ(status_, BRG_OK) << brg_last_error();                                            \
    } while (0)

/* Tests of optimizers are built twice: for devices without a kernel table and with one. */
inline const brg_device *test_tables()
{
#ifdef BRIGADE_TEST_KERNEL_TABLE
    return host_kernel_device();
#else
    return nullptr;
#endif
}

/* How ranks find each other: by an id that they share, or by meeting at MASTER_ADDR:MASTER_PORT. */
enum Meeting { BY_ID, BY_RENDEZVOUS };

inline void run_ranks(int world, const std::function<void(int, brg_context *)> &body,
                      brg_context_options options = {}, const brg_device *tables = test_tables(),
                      brg_device_kind device = BRG_DEVICE_HOST, Meeting meeting = BY_ID)
{
    brg_unique_id id;
    ASSERT_OK(brg_unique_id_create(device, &id));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world; rank++)
        threads.emplace_back([&, rank] {
            brg_context_options mine = options;
            mine.device = device;
            mine.world_size = world;
            mine.rank = mine.local_rank = rank;
            mine.unique_id = meeting == BY_ID ? &id : nullptr;
            if (!mine.trace_dir)
                mine.trace_dir = "";
            brg_context *ctx = nullptr;
            EXPECT_OK(brg_context_open_on(tables, &mine, &ctx));
            if (ctx)
                body(rank, ctx);
            brg_context_close(ctx);
        });
    for (auto &thread : threads)
        thread.join();
}

/* A model: names and shapes. */
struct Model {
    std::vector<std::string> names;
    std::vector<brg_param> params;

    void add(const std::string &name, std::vector<int64_t> shape, uint32_t flags = 0,
             brg_dtype dtype = BRG_FLOAT32)
    {
        brg_param p = {};
        p.num_dims = (int)shape.size();
        for (size_t i = 0; i < shape.size(); i++)
            p.shape[i] = shape[i];
        p.flags = flags;
        p.dtype = dtype;
        names.push_back(name);
        params.push_back(p);
    }
    const brg_param *data()
    {
        for (size_t i = 0; i < params.size(); i++)
            params[i].name = names[i].c_str();
        return params.data();
    }
    int size() const
    {
        return (int)params.size();
    }
    int64_t numel(int p) const
    {
        return brg_param_numel(&params[(size_t)p]);
    }
};

inline Model small_model(brg_dtype dtype = BRG_FLOAT32)
{
    Model m;
    m.add("embed", {50, 16}, BRG_PARAM_EMBEDDING_OR_OUTPUT, dtype);
    for (int layer = 0; layer < 3; layer++) {
        std::string prefix = "block" + std::to_string(layer) + ".";
        m.add(prefix + "norm", {16}, 0, dtype);
        m.add(prefix + "qkv", {48, 16}, 0, dtype);
        m.add(prefix + "bias", {48}, 0, dtype);
        m.add(prefix + "out", {16, 16}, 0, dtype);
    }
    m.add("scale", {}, 0, dtype);
    m.add("head", {50, 16}, BRG_PARAM_EMBEDDING_OR_OUTPUT, dtype);
    return m;
}

/* Deterministic contribution of a rank to element i of parameter p in a step. */
inline float contribution(int rank, int step, int p, int64_t i)
{
    uint64_t x = test_seed() + (uint64_t)rank * 7919 + (uint64_t)step * 104729 +
                 (uint64_t)p * 1299709 + (uint64_t)i * 15485863;
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15ull;
    x ^= x >> 29;
    return (float)((double)(x >> 40) / (double)(1 << 24) - 0.5);
}

#endif
