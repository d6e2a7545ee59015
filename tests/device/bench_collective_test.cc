/* SPDX-License-Identifier: Apache-2.0 */
/* brigade bench collective as a user runs it. */
#include <gtest/gtest.h>
#include <jansson.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdio>
#include <string>

namespace
{

struct Output {
    int code;
    std::string text;
};

Output run(const std::string &arguments)
{
    Output output = {-1, ""};
    std::string line = std::string(BRIGADE_COMMAND) + " bench collective " + arguments + " 2>&1";
    FILE *pipe = popen(line.c_str(), "r");
    if (!pipe)
        return output;
    char buffer[4096];
    size_t n;
    while ((n = fread(buffer, 1, sizeof buffer, pipe)) > 0)
        output.text.append(buffer, n);
    int status = pclose(pipe);
    output.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return output;
}

TEST(BenchCollective, MeasuresAndChecksEverything)
{
    for (const char *ranks : {"-r 3", "-r 2 --threads -d bf16 -o avg",
                              "-r 2 -d i8 -o prod --out-of-place", "-r 1 -d fp16"}) {
        Output output = run(std::string("-b 3000 -e 48000 -f 16 -n 2 -w 1 --json ") + ranks);
        ASSERT_EQ(output.code, 0) << output.text;
        json_error_t error;
        json_t *root = json_loads(output.text.c_str(), 0, &error);
        ASSERT_NE(root, nullptr) << error.text << "\n" << output.text;
        json_t *results = json_object_get(root, "results");
        ASSERT_EQ(json_array_size(results), 14u) << "7 collectives, 2 sizes";
        double n = (double)json_integer_value(json_object_get(root, "ranks"));
        size_t i;
        json_t *row;
        json_array_foreach(results, i, row)
        {
            std::string op = json_string_value(json_object_get(row, "op"));
            double bytes = (double)json_integer_value(json_object_get(row, "bytes"));
            double time = json_real_value(json_object_get(row, "time_us"));
            double factor = op == "all-reduce" ? 2 * (n - 1) / n
                            : op == "reduce-scatter" || op == "all-gather" || op == "all-to-all"
                                ? (n - 1) / n
                                : 1;
            EXPECT_EQ(json_integer_value(json_object_get(row, "wrong")), 0) << op;
            EXPECT_GT(time, 0);
            EXPECT_LE(bytes, i % 2 ? 48000 : 3000);
            EXPECT_GT(bytes, i % 2 ? 47980 : 2980);
            EXPECT_NEAR(json_real_value(json_object_get(row, "busbw_gbs")),
                        bytes / time * 1e-3 * factor, 1e-3 + 1e-3 * bytes / time * 1e-3);
        }
        json_decref(root);
    }
}

TEST(BenchCollective, ATableForPeople)
{
    Output output = run("-b 64K -e 64K -n 1 -w 0 --op all-gather");
    EXPECT_EQ(output.code, 0);
    EXPECT_NE(output.text.find("all-gather            65536"), std::string::npos) << output.text;
    EXPECT_NE(output.text.find("direct"), std::string::npos) << output.text;
}

TEST(BenchCollective, SizesWithoutElements)
{
    Output output = run("-b 7 -r 2");
    EXPECT_EQ(output.code, 2);
    EXPECT_EQ(output.text, "brigade bench collective: -b 7 rounds to 0 elements of fp32 for 2 "
                           "ranks; the smallest size is 8 bytes\n");
    EXPECT_EQ(run("-b 3 --op all-reduce").code, 2);
    EXPECT_EQ(run("-b 1 -d i8 -r 4 --op all-gather").code, 2);
    EXPECT_EQ(run("-b 7 -e 7 -n 1 --op all-reduce").code, 0) << "one element, as all ranks have it";
    output = run("-b 8 -e 8 -n 1 -r 2 --json");
    EXPECT_EQ(output.code, 0) << output.text;
    EXPECT_EQ(output.text.find("\"count\":0,"), std::string::npos) << output.text;
    EXPECT_EQ(run("-e 64 -n 1 --op broadcast").code, 0) << "the default of -b is larger";
    for (std::string bytes : {"1024", "1536"}) { /* below and above the default of -b */
        output = run("-e " + bytes + " -d fp64 -r 256 --op all-gather");
        EXPECT_EQ(output.code, 2);
        EXPECT_NE(output.text.find("-e " + bytes +
                                   " rounds to 0 elements of fp64 for 256 ranks; the smallest "
                                   "size is 2048 bytes"),
                  std::string::npos)
            << output.text;
    }
}

TEST(BenchCollective, BadOptionsAreUsageErrors)
{
    for (const char *bad : {"-r 0", "-f 1", "-b 2M -e 1M", "--op gather", "-d int4", "-n x",
                            "--processes --threads", "-c 2", "surplus"}) {
        Output output = run(bad);
        EXPECT_EQ(output.code, 2) << bad << ": " << output.text;
        EXPECT_NE(output.text.find("brigade bench collective"), std::string::npos) << output.text;
    }
    EXPECT_EQ(run("-b 900G -r 4").code, 3);
}

} // namespace
