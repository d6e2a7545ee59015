// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <cstring>
#include <filesystem>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/bucket/harness.h"
#include "tests/bucket/port.h"

extern "C" {
#include "sched/bucket/bootstrap.h"
}

namespace
{

struct Outcome {
    brg_status status;
    std::string text;
    brg_unique_id id;
};

/* Runs the given (rank, world) pairs as threads. */
std::vector<Outcome> bootstrap(int port, const std::vector<std::pair<int, int>> &who,
                               double timeout)
{
    std::vector<Outcome> out(who.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < who.size(); i++)
        threads.emplace_back([&, i] {
            memset(&out[i].id, who[i].first == 0 ? 0x5a : 0, sizeof out[i].id);
            out[i].status = brg_bootstrap_run("127.0.0.1", port, who[i].first, who[i].second,
                                              timeout, &out[i].id, nullptr);
            out[i].text = out[i].status == BRG_OK ? "" : brg_last_error();
        });
    for (auto &t : threads)
        t.join();
    return out;
}

TEST(Bootstrap, EverybodyGetsTheId)
{
    std::vector<std::pair<int, int>> who;
    for (int r = 0; r < 9; r++)
        who.push_back({8 - r, 9});
    for (const Outcome &o : bootstrap(Port().release(), who, 20)) {
        EXPECT_EQ(o.status, BRG_OK) << o.text;
        for (char byte : o.id.bytes)
            ASSERT_EQ(byte, 0x5a);
    }
}

TEST(Bootstrap, MissingRanksAreNamedToEveryone)
{
    for (const Outcome &o : bootstrap(Port().release(), {{0, 5}, {3, 5}}, 0.5)) {
        EXPECT_EQ(o.status, BRG_ERR_TIMEOUT);
        EXPECT_NE(o.text.find("missing: 1 2 4"), std::string::npos) << o.text;
    }
}

TEST(Bootstrap, RankZeroThatNeverComes)
{
    Outcome o = bootstrap(Port().release(), {{1, 2}}, 0.1)[0];
    EXPECT_EQ(o.status, BRG_ERR_TIMEOUT);
    EXPECT_NE(o.text.find("rank 0 does not answer at 127.0.0.1"), std::string::npos) << o.text;
}

TEST(Bootstrap, WorldSizesThatDiffer)
{
    for (const Outcome &o : bootstrap(Port().release(), {{0, 2}, {1, 3}}, 10)) {
        EXPECT_EQ(o.status, BRG_ERR_MISMATCH);
        EXPECT_NE(o.text.find("rank 1 was started for 3 ranks, rank 0 for 2"), std::string::npos)
            << o.text;
    }
}

TEST(Bootstrap, TheSameRankTwice)
{
    auto all = bootstrap(Port().release(), {{0, 3}, {1, 3}, {1, 3}}, 10);
    EXPECT_EQ(all[0].status, BRG_ERR_MISMATCH);
    EXPECT_NE(all[0].text.find("two processes call themselves rank 1"), std::string::npos)
        << all[0].text;
}

TEST(Bootstrap, PortInUseSaysWhatToDo)
{
    Port taken;
    ASSERT_EQ(listen(taken.fd, 1), 0);
    Outcome o = bootstrap(taken.number, {{0, 2}}, 1)[0];
    EXPECT_EQ(o.status, BRG_ERR_IO);
    EXPECT_NE(o.text.find("BRIGADE_MASTER_PORT"), std::string::npos) << o.text;
}

TEST(Bootstrap, ForeignServerIsRecognised)
{
    Port other;
    ASSERT_EQ(listen(other.fd, 1), 0);
    std::thread server([&] {
        int fd = accept(other.fd, nullptr, nullptr);
        char text[1024];
        memset(text, 'x', sizeof text);
        EXPECT_GT(send(fd, text, sizeof text, MSG_NOSIGNAL), 0);
        EXPECT_GE(recv(fd, text, sizeof text, 0), 0);
        close(fd);
    });
    Outcome o = bootstrap(other.number, {{1, 2}}, 5)[0];
    server.join();
    EXPECT_EQ(o.status, BRG_ERR_IO);
    EXPECT_NE(o.text.find("not a Brigade rank 0"), std::string::npos) << o.text;
}

TEST(Bootstrap, ForeignClientDoesNotDisturb)
{
    Port port;
    int number = port.release();
    std::thread noise([&] {
        for (int i = 0; i < 3; i++) {
            int fd = socket(AF_INET, SOCK_STREAM, 0);
            sockaddr_in address = {};
            address.sin_family = AF_INET;
            address.sin_port = htons((uint16_t)number);
            address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            if (connect(fd, (sockaddr *)&address, sizeof address) == 0) {
                EXPECT_GE(send(fd, "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL), -1);
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            close(fd);
        }
    });
    std::vector<Outcome> out(2);
    std::thread late([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(150));
        out[1] = bootstrap(number, {{1, 2}}, 10)[0];
    });
    out[0] = bootstrap(number, {{0, 2}}, 10)[0];
    late.join();
    noise.join();
    EXPECT_EQ(out[0].status, BRG_OK) << out[0].text;
    EXPECT_EQ(out[1].status, BRG_OK) << out[1].text;
}

/* Contexts */

struct Environment {
    std::vector<std::string> names;
    void set(const char *name, const std::string &value)
    {
        names.push_back(name);
        setenv(name, value.c_str(), 1);
    }
    ~Environment()
    {
        for (auto &name : names)
            unsetenv(name.c_str());
    }
};

TEST(Context, ReadsRanksFromTheEnvironment)
{
    Environment env;
    brg_context *ctx = nullptr;
    brg_context_options options = {};
    options.device = BRG_DEVICE_HOST;
    ASSERT_OK(brg_context_open(&options, &ctx));
    EXPECT_EQ(brg_context_rank(ctx), 0);
    EXPECT_EQ(brg_context_world_size(ctx), 1);
    EXPECT_STREQ(brg_context_device(ctx), "host");
    brg_context_close(ctx);
    struct {
        const char *name, *value;
    } bad[] = {
        {"RANK", "x"}, {"WORLD_SIZE", "0"}, {"RANK", "-1"}, {"RANK", "7"}, {"WORLD_SIZE", "1e3"}};
    for (auto &b : bad) {
        Environment inner;
        inner.set(b.name, b.value);
        EXPECT_EQ(brg_context_open(&options, &ctx), BRG_ERR_INVALID_ARGUMENT)
            << b.name << "=" << b.value;
        EXPECT_EQ(ctx, nullptr);
        EXPECT_NE(std::string(brg_last_error()), "");
    }
}

TEST(Context, WorldSizeWithoutRankIsNamed)
{
    Environment env;
    env.set("WORLD_SIZE", "4");
    brg_context *ctx = nullptr;
    EXPECT_EQ(brg_context_open(nullptr, &ctx), BRG_ERR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(brg_last_error()).find("RANK is not set"), std::string::npos)
        << brg_last_error();
}

TEST(Context, LogLevels)
{
    brg_context *ctx = nullptr;
    brg_context_options options = {};
    options.device = BRG_DEVICE_HOST;
    for (const char *level : {"", "error", "info", "nonsense"}) {
        Environment env;
        env.set("BRIGADE_LOG", level);
        testing::internal::CaptureStderr();
        brg_status status = brg_context_open(&options, &ctx);
        std::string text = testing::internal::GetCapturedStderr();
        ASSERT_EQ(status, BRG_OK) << brg_last_error();
        brg_context_close(ctx);
        EXPECT_EQ(text.find("rank 0 of 1 on device host") != std::string::npos,
                  std::string(level) == "info")
            << level << ": " << text;
        EXPECT_EQ(text.find("BRIGADE_LOG is \"nonsense\"") != std::string::npos,
                  std::string(level) == "nonsense")
            << level << ": " << text;
    }
}

TEST(Context, MasterPortOutOfRangeIsNamed)
{
    Environment env;
    env.set("WORLD_SIZE", "2");
    env.set("RANK", "1");
    env.set("MASTER_PORT", "99999");
    brg_context *ctx = nullptr;
    EXPECT_EQ(brg_context_open(nullptr, &ctx), BRG_ERR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(brg_last_error()).find("MASTER_PORT"), std::string::npos)
        << brg_last_error();
}

TEST(Context, OptionsOutOfRange)
{
    brg_context *ctx = nullptr;
    brg_context_options options = {};
    options.world_size = 1;
    options.trace_records_log2 = 99;
    EXPECT_EQ(brg_context_open(&options, &ctx), BRG_ERR_INVALID_ARGUMENT);
    options.trace_records_log2 = 0;
    options.collective_timeout_s = -1;
    EXPECT_EQ(brg_context_open(&options, &ctx), BRG_ERR_INVALID_ARGUMENT);
    options.collective_timeout_s = 0;
    options.trace_dir = "/proc/nowhere/trace";
    EXPECT_EQ(brg_context_open(&options, &ctx), BRG_ERR_IO);
    EXPECT_NE(std::string(brg_last_error()).find("/proc/nowhere/trace"), std::string::npos);
    EXPECT_EQ(brg_context_open(nullptr, nullptr), BRG_ERR_INVALID_ARGUMENT);
    brg_context_close(nullptr);
}

TEST(Context, RecordsOfTheTraceFromTheEnvironment)
{
    namespace fs = std::filesystem;
    fs::path dir = fs::temp_directory_path() / ("brigade-records-" + std::to_string(getpid()));
    Environment env;
    brg_context *ctx = nullptr;
    brg_context_options options = {};
    std::string name = dir.string();
    options.world_size = 1;
    options.trace_dir = name.c_str();
    auto opens = [&](const char *records) {
        fs::remove_all(dir);
        env.set("BRIGADE_TRACE_RECORDS", records);
        brg_status status = brg_context_open(&options, &ctx);
        brg_context_close(ctx);
        return status;
    };
    auto records = [&] {
        return (fs::file_size(dir / "rank-0.ring") - 4096 - (1 << 20)) / sizeof(brg_rec);
    };
    for (const char *bad : {"many", "255", "67108865", "1e3"}) {
        EXPECT_EQ(opens(bad), BRG_ERR_INVALID_ARGUMENT) << bad;
        EXPECT_NE(std::string(brg_last_error()).find("BRIGADE_TRACE_RECORDS is \""),
                  std::string::npos)
            << brg_last_error();
    }
    ASSERT_EQ(opens("256"), BRG_OK) << brg_last_error();
    EXPECT_EQ(records(), 256u);
    ASSERT_EQ(opens("257"), BRG_OK);
    EXPECT_EQ(records(), 512u);
    ASSERT_EQ(opens(""), BRG_OK);
    EXPECT_EQ(records(), 65536u);
    options.trace_records_log2 = 10; /* goes before the environment */
    ASSERT_EQ(opens("many"), BRG_OK);
    EXPECT_EQ(records(), 1024u);
    fs::remove_all(dir);
}

TEST(Context, PlainCollectivesAndBarrier)
{
    run_ranks(4, [](int rank, brg_context *ctx) {
        double value = rank + 1.0, sum = 0;
        ASSERT_OK(brg_all_reduce(ctx, &value, &sum, 1, BRG_FLOAT64, BRG_SUM, nullptr));
        EXPECT_EQ(sum, 10.0);
        int64_t word = rank == 2 ? 42 : 0;
        ASSERT_OK(brg_broadcast(ctx, &word, 1, BRG_INT64, 2, nullptr));
        EXPECT_EQ(word, 42);
        ASSERT_OK(brg_barrier(ctx));
        EXPECT_EQ(brg_broadcast(ctx, &word, 1, BRG_INT64, 4, nullptr), BRG_ERR_INVALID_ARGUMENT);
        EXPECT_EQ(brg_all_reduce(ctx, nullptr, &sum, 1, BRG_FLOAT64, BRG_SUM, nullptr),
                  BRG_ERR_INVALID_ARGUMENT);
    });
}

TEST(Context, StuckCollectiveTimesOutAndNamesIt)
{
    brg_context_options options = {};
    options.collective_timeout_s = 0.5;
    run_ranks(
        2,
        [](int rank, brg_context *ctx) {
            if (rank == 1) { /* never joins; notices that rank 0 gave up */
                std::this_thread::sleep_for(std::chrono::milliseconds(1500));
                EXPECT_NE(brg_context_status(ctx), BRG_OK);
                return;
            }
            double value = 1;
            brg_stream stream;
            ASSERT_OK(brg_stream_create(ctx, &stream));
            ASSERT_OK(brg_all_reduce(ctx, &value, &value, 1, BRG_FLOAT64, BRG_SUM, stream));
            EXPECT_EQ(brg_stream_synchronize(ctx, stream), BRG_ERR_TIMEOUT);
            EXPECT_NE(std::string(brg_last_error()).find("a collective of the trainer's own"),
                      std::string::npos)
                << brg_last_error();
            EXPECT_NE(std::string(brg_last_error()).find("rank 1"), std::string::npos)
                << brg_last_error();
            brg_stream_destroy(ctx, stream);
        },
        options);
}

TEST(Context, SpansMustPair)
{
    run_ranks(1, [](int, brg_context *ctx) {
        EXPECT_OK(brg_span_begin(ctx, BRG_COMPUTE_FORWARD, "x", nullptr)); /* no trace: no-op */
        EXPECT_OK(brg_span_end(ctx, nullptr));
        EXPECT_EQ(brg_span_begin(ctx, (brg_span_kind)77, "x", nullptr), BRG_ERR_INVALID_ARGUMENT);
    });
}

} // namespace
