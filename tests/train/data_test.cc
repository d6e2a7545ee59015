// SPDX-License-Identifier: Apache-2.0
// The trainer's text: splits, batches that do not depend on the ranks, and what bad files give.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

extern "C" {
#include "tools/train/data.h"
}

namespace
{

struct TempFile {
    std::string path;
    explicit TempFile(const std::string &content)
    {
        char name[] = "/tmp/brigade-data-XXXXXX";
        int fd = mkstemp(name);
        path = name;
        EXPECT_EQ(write(fd, content.data(), content.size()), (ssize_t)content.size());
        close(fd);
    }
    ~TempFile()
    {
        unlink(path.c_str());
    }
};

struct Loaded {
    text_data data{};
    char message[512] = "";
    int result;
    Loaded(const std::string &path, int seq_len)
        : result(data_load(path.c_str(), seq_len, &data, message, sizeof message))
    {
    }
    ~Loaded()
    {
        data_free(&data);
    }
};

// A text in which every aligned pair of bytes says where it is.
std::string positions(size_t count)
{
    std::string text;
    for (size_t i = 0; i < count; i++)
        text += (char)(i % 2 ? 128 + i / 2 % 128 : i / 256 % 128);
    return text;
}

TEST(Data, ShippedTextIsLargeEnoughAndAscii)
{
    Loaded shipped(BRIGADE_TEST_TEXT, 128);
    ASSERT_EQ(shipped.result, 0) << shipped.message;
    EXPECT_GE(shipped.data.count, 500000u);
    EXPECT_GT(shipped.data.vocab, 50);
    EXPECT_LT(shipped.data.vocab, 128);
    std::ifstream in(BRIGADE_TEST_TEXT, std::ios::binary);
    std::string text((std::istreambuf_iterator<char>(in)), {});
    ASSERT_EQ(text.size(), shipped.data.count);
    for (size_t i = 0; i < text.size(); i++)
        ASSERT_EQ((uint8_t)text[i], shipped.data.byte_of[shipped.data.tokens[i]]);
}

TEST(Data, TrainingAndHeldOutPartsAreDisjoint)
{
    TempFile file(positions(20000));
    Loaded text(file.path, 32);
    ASSERT_EQ(text.result, 0) << text.message;
    const text_data &data = text.data;
    EXPECT_EQ(data.train_count, 19000u);
    const size_t windows = data_held_out_count(&data, 1000);
    EXPECT_EQ(windows, (20000u - 19000u - 1) / 32);
    std::set<const uint8_t *> held_out;
    for (size_t i = 0; i < windows; i++) {
        const uint8_t *window = data_held_out(&data, i, windows);
        EXPECT_TRUE(held_out.insert(window).second);
        EXPECT_GE(window, data.tokens + data.train_count);
        EXPECT_LE(window + 33, data.tokens + data.count);
    }
    // Fewer windows are spread over the same part.
    EXPECT_EQ(data_held_out_count(&data, 4), 4u);
    for (size_t i = 0; i < 4; i++)
        EXPECT_TRUE(held_out.count(data_held_out(&data, i, 4)));

    // Every sample is a stretch of the training part: its content tells where it lies.
    std::string train((const char *)data.tokens, data.train_count);
    std::string all((const char *)data.tokens, data.count);
    std::vector<uint8_t> sample(33);
    for (uint64_t step = 0; step < 300; step++) {
        data_fill_batch(&data, 5, step, 0, 1, sample.data());
        std::string piece((const char *)sample.data(), sample.size());
        size_t at = all.find(piece);
        ASSERT_NE(at, std::string::npos);
        ASSERT_NE(train.find(piece), std::string::npos) << "position " << at;
    }
}

TEST(Data, BatchesDoNotDependOnTheNumberOfRanks)
{
    TempFile file(positions(20000));
    Loaded text(file.path, 16);
    ASSERT_EQ(text.result, 0) << text.message;
    const int batch = 12, sample = 17;
    std::vector<uint8_t> whole(batch * sample);
    std::set<std::string> seen;
    for (uint64_t step = 0; step < 20; step++) {
        data_fill_batch(&text.data, 3, step, 0, batch, whole.data());
        for (int i = 0; i < batch; i++)
            seen.insert(std::string((const char *)&whole[(size_t)(i * sample)], sample));
        for (int ranks : {1, 2, 3, 4, 6, 12}) {
            const int each = batch / ranks;
            std::vector<uint8_t> pieces(batch * sample);
            for (int rank = ranks - 1; rank >= 0; rank--)
                data_fill_batch(&text.data, 3, step, rank * each, each,
                                &pieces[(size_t)(rank * each * sample)]);
            EXPECT_EQ(pieces, whole) << ranks << " ranks";
        }
    }
    EXPECT_GT(seen.size(), 200u) << "samples repeat";
    std::vector<uint8_t> other(batch * sample);
    data_fill_batch(&text.data, 4, 19, 0, batch, other.data());
    EXPECT_NE(other, whole) << "the seed has no effect";
}

TEST(Data, BadFilesAreNamed)
{
    TempFile empty(""), tiny("not a lot of text"), same(std::string(5000, 'x'));
    const struct {
        std::string path;
        const char *expected;
    } cases[] = {
        {"/nonexistent/text", "No such file"},
        {"/tmp", "not a regular file"},
        {empty.path, "is empty"},
        {tiny.path, "need at least 660"},
        {same.path, "only one kind of byte (0x78)"},
    };
    for (auto &c : cases) {
        Loaded text(c.path, 32);
        EXPECT_EQ(text.result, -1) << c.path;
        EXPECT_NE(strstr(text.message, c.expected), nullptr) << text.message;
        EXPECT_NE(strstr(text.message, c.path.c_str()), nullptr) << text.message;
        EXPECT_EQ(text.data.tokens, nullptr);
    }
}

TEST(Data, SmallestTextThatIsEnough)
{
    const size_t enough = 33 * 20;
    TempFile fits(positions(enough)), short_by_one(positions(enough - 1));
    Loaded good(fits.path, 32), bad(short_by_one.path, 32);
    EXPECT_EQ(good.result, 0) << good.message;
    EXPECT_EQ(data_held_out_count(&good.data, 100), 1u);
    EXPECT_EQ(bad.result, -1);
}

TEST(Data, EnvironmentNamesTheFile)
{
    char path[4096], message[256];
    setenv("BRIGADE_TRAIN_DATA", "/some/text", 1);
    EXPECT_EQ(data_find(path, sizeof path, message, sizeof message), 0);
    EXPECT_STREQ(path, "/some/text");
    EXPECT_EQ(data_find(path, 4, message, sizeof message), -1);
    unsetenv("BRIGADE_TRAIN_DATA");
}

} // namespace
