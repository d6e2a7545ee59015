/* SPDX-License-Identifier: Apache-2.0 */
/* The option parser and the printing helpers. */
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/seed.h"

extern "C" {
#include "tools/brigade/cli.h"
}

namespace
{
bool flag, flag_given, size_given;
int64_t count, bytes, any;
double ratio;
const char *name;
int mode;
const char *const modes[] = {"flat", "elementwise", "layerwise", nullptr};

cli_option option(const char *long_name, char short_name, cli_type type, void *dest, double min = 0,
                  double max = 0, bool *given = nullptr)
{
    cli_option o = {};
    o.name = long_name;
    o.short_name = short_name;
    o.type = type;
    o.dest = dest;
    o.help = "Help of this option.";
    o.choices = type == CLI_CHOICE ? modes : nullptr;
    o.min = min;
    o.max = max;
    o.given = given;
    return o;
}

const cli_option table[] = {
    option("flag", 'f', CLI_FLAG, &flag, 0, 0, &flag_given),
    option("count", 'n', CLI_INT, &count, -5, 100),
    option("any", 0, CLI_INT, &any),
    option("bucket-size", 'b', CLI_SIZE, &bytes, 1, 9.3e18, &size_given),
    option("bucket-count", 0, CLI_SIZE, &bytes),
    option("ratio", 'r', CLI_DOUBLE, &ratio, 0, 1),
    option("name", 0, CLI_STRING, &name),
    option("mode", 'm', CLI_CHOICE, &mode),
    {},
};

struct Parsed {
    int code, first;
    std::string out, err;
    std::vector<std::string> args; /* permuted */
};

Parsed parse(std::vector<std::string> args, bool stop = false)
{
    flag = flag_given = size_given = false;
    count = 42;
    bytes = any = 7;
    ratio = 0.5;
    name = "unset";
    mode = 2;
    cli_command command = {};
    command.name = "test";
    command.summary = "Tests.";
    command.usage = "[options]";
    command.options = table;
    command.stop_at_positional = stop;
    static std::vector<std::string> kept; /* strings point into argv */
    kept = args;
    kept.insert(kept.begin(), "test");
    std::vector<char *> argv;
    for (auto &arg : kept)
        argv.push_back(arg.data());
    argv.push_back(nullptr);
    Parsed p;
    p.first = -1;
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    p.code = cli_parse(&command, (int)kept.size(), argv.data(), &p.first);
    p.out = testing::internal::GetCapturedStdout();
    p.err = testing::internal::GetCapturedStderr();
    for (size_t i = 0; i < kept.size(); i++)
        p.args.push_back(argv[i]);
    return p;
}

void expect_refused(std::vector<std::string> args, const std::string &message)
{
    Parsed p = parse(args);
    EXPECT_EQ(p.code, CLI_USAGE);
    EXPECT_EQ(p.err, "brigade test: " + message + "\n");
    EXPECT_EQ(p.out, "");
    EXPECT_EQ(p.first, -1);
}
} // namespace

TEST(CliParse, DefaultsStayWithoutOptions)
{
    Parsed p = parse({});
    EXPECT_EQ(p.code, -1);
    EXPECT_EQ(p.first, 1);
    EXPECT_EQ(count, 42);
    EXPECT_STREQ(name, "unset");
    EXPECT_EQ(mode, 2);
    EXPECT_FALSE(flag || flag_given || size_given);
}

TEST(CliParse, EveryTypeInEveryForm)
{
    Parsed p =
        parse({"-f", "--count=-5", "--bucket-size", "40M", "-r0.25", "--name=", "-m", "flat"});
    EXPECT_EQ(p.code, -1) << p.err;
    EXPECT_TRUE(flag && flag_given && size_given);
    EXPECT_EQ(count, -5);
    EXPECT_EQ(bytes, 40 << 20);
    EXPECT_EQ(ratio, 0.25);
    EXPECT_STREQ(name, "");
    EXPECT_EQ(mode, 0);
    EXPECT_EQ(parse({"-fn3"}).code, -1); /* combined short options */
    EXPECT_TRUE(flag);
    EXPECT_EQ(count, 3);
    EXPECT_EQ(parse({"--coun", "4", "--cou=5"}).code, -1); /* cut short; the last one counts */
    EXPECT_EQ(count, 5);
}

TEST(CliParse, Positionals)
{
    Parsed p = parse({"one", "-n", "1", "two", "--", "--count"});
    EXPECT_EQ(p.code, -1);
    EXPECT_EQ(count, 1);
    ASSERT_EQ(p.first, 4);
    EXPECT_EQ(std::vector<std::string>(p.args.begin() + 4, p.args.end()),
              (std::vector<std::string>{"one", "two", "--count"}));
    p = parse({"-n", "1", "program", "-n", "2"}, true);
    EXPECT_EQ(p.code, -1);
    EXPECT_EQ(count, 1);
    EXPECT_EQ(p.first, 3);
    p = parse({"-n", "1", "--", "-x"}, true);
    EXPECT_EQ(p.code, -1);
    EXPECT_EQ(p.first, 4);
}

TEST(CliParse, WholeNumbers)
{
    for (const char *bad : {"", " 1", "1 ", "x", "1x", "0x10", "1.5", "--", "+", "-", "1e3",
                            "9223372036854775808", "99999999999999999999"}) {
        Parsed p = parse({std::string("--any=") + bad});
        EXPECT_EQ(p.code, CLI_USAGE) << bad;
        EXPECT_EQ(p.err, std::string("brigade test: --any: '") + bad + "' is not a whole number\n");
        EXPECT_EQ(any, 7);
    }
    EXPECT_EQ(parse({"--any=9223372036854775807"}).code, -1);
    EXPECT_EQ(any, INT64_MAX);
    EXPECT_EQ(parse({"--any", "-9223372036854775808"}).code, -1);
    EXPECT_EQ(any, INT64_MIN);
    EXPECT_EQ(parse({"--count=100"}).code, -1);
    expect_refused({"--count=101"}, "--count: '101' is not a whole number of -5 to 100");
    expect_refused({"-n", "-6"}, "--count: '-6' is not a whole number of -5 to 100");
    EXPECT_EQ(count, 42);
}

TEST(CliParse, Sizes)
{
    struct {
        const char *text;
        int64_t value;
    } good[] = {{"1", 1},
                {"1k", 1024},
                {"3K", 3072},
                {"2M", 2 << 20},
                {"2MiB", 2 << 20},
                {"5G", (int64_t)5 << 30},
                {"1T", (int64_t)1 << 40},
                {"8388607T", (int64_t)8388607 << 40},
                {"9223372036854775807", INT64_MAX}};
    for (auto &g : good) {
        EXPECT_EQ(parse({"-b", g.text}).code, -1) << g.text;
        EXPECT_EQ(bytes, g.value) << g.text;
    }
    for (const char *bad : {"", "M", "-1", "+1", "1.5G", "1MB", "1KK", "1K ", "1X", "1 K",
                            "8388608T", "9223372036854775808", "18014398509481984K"}) {
        Parsed p = parse({std::string("--bucket-size=") + bad});
        EXPECT_EQ(p.code, CLI_USAGE) << bad;
        EXPECT_EQ(bytes, 7) << bad;
    }
    expect_refused({"-b0"}, "--bucket-size: '0' is not a size of at least 1");
    EXPECT_EQ(parse({"--bucket-count=0"}).code, -1); /* no limits, but never negative */
    EXPECT_EQ(bytes, 0);
    EXPECT_EQ(parse({"--bucket-count=-1"}).code, CLI_USAGE);
}

TEST(CliParse, RandomSizesMeanWhatTheySay)
{
    auto rng = test_rng(1);
    const char suffix[] = "KMGT";
    for (int i = 0; i < 1000; i++) {
        uint64_t digits = rng() >> (1 + rng() % 63);
        int power = (int)(rng() % 5);
        std::string text = std::to_string(digits);
        if (power)
            text += suffix[power - 1];
        long double exact = (long double)digits * powl(1024, power);
        bool fits = exact <= (long double)INT64_MAX;
        Parsed p = parse({"--bucket-count", text});
        ASSERT_EQ(p.code, fits ? -1 : CLI_USAGE) << text;
        if (fits) {
            ASSERT_EQ((long double)bytes, exact) << text;
        }
    }
}

TEST(CliParse, Doubles)
{
    EXPECT_EQ(parse({"-r", "1e-3"}).code, -1);
    EXPECT_EQ(ratio, 1e-3);
    EXPECT_EQ(parse({"-r", "1"}).code, -1);
    EXPECT_EQ(parse({"-r", "-0"}).code, -1);
    for (const char *bad : {"", "nan", "inf", "0x1p-2", "0.5x", " 0.5", "1e", "1e999", "."}) {
        Parsed p = parse({std::string("--ratio=") + bad});
        EXPECT_EQ(p.code, CLI_USAGE) << bad;
        EXPECT_EQ(ratio, 0.5) << bad;
    }
    expect_refused({"-r", "1.5"}, "--ratio: '1.5' is not a number of 0 to 1");
    expect_refused({"--ratio=-0.1"}, "--ratio: '-0.1' is not a number of 0 to 1");
}

TEST(CliParse, Choices)
{
    EXPECT_EQ(parse({"-m", "elementwise"}).code, -1);
    EXPECT_EQ(mode, 1);
    expect_refused({"-m", "elmentwise"}, "--mode: 'elmentwise' is not one of flat, elementwise, "
                                         "layerwise; did you mean 'elementwise'?");
    expect_refused({"--mode=quux"}, "--mode: 'quux' is not one of flat, elementwise, layerwise");
}

TEST(CliParse, WrongOptions)
{
    const std::string see = " (see 'brigade test --help')";
    expect_refused({"--buket-size", "1"},
                   "unknown option '--buket-size'; did you mean '--bucket-size'?" + see);
    expect_refused({"--cuont=3"}, "unknown option '--cuont'; did you mean '--count'?" + see);
    expect_refused({"--zzzzzzzz"}, "unknown option '--zzzzzzzz'" + see);
    expect_refused({"-x"}, "unknown option '-x'" + see);
    expect_refused({"-fx"}, "unknown option '-x'" + see);
    expect_refused({"--bucket", "1"},
                   "option '--bucket' is ambiguous: --bucket-size, --bucket-count" + see);
    expect_refused({"--count"}, "option '--count' needs a value (N)" + see);
    expect_refused({"-n"}, "option '--count' needs a value (N)" + see);
    expect_refused({"-m"}, "option '--mode' needs a value (flat|elementwise|layerwise)" + see);
    expect_refused({"--flag=1"}, "option '--flag' takes no value" + see);
    expect_refused({"--" + std::string(5000, 'y')},
                   "unknown option '--" + std::string(127, 'y') + "'" + see);
}

TEST(CliParse, HelpNamesEveryOption)
{
    for (const char *how : {"-h", "--help"}) {
        Parsed p = parse({"-n", "3", how, "--bogus"});
        EXPECT_EQ(p.code, 0);
        EXPECT_EQ(p.err, "");
        for (const char *text :
             {"Usage: brigade test [options]", "-f, --flag", "-n, --count N", "--any N",
              "-m, --mode flat|elementwise|layerwise", "--color", "-h, --help"})
            EXPECT_NE(p.out.find(text), std::string::npos) << text << p.out;
    }
}

TEST(CliParse, ColorFollowsOptionThenEnvironment)
{
    setenv("TERM", "xterm", 1);
    FILE *file = tmpfile();
    EXPECT_EQ(parse({"--color", "always"}).code, -1);
    EXPECT_TRUE(cli_use_color(file));
    EXPECT_EQ(parse({"--color=never"}).code, -1);
    EXPECT_FALSE(cli_use_color(file));
    EXPECT_EQ(parse({"--color=auto"}).code, -1);
    EXPECT_FALSE(cli_use_color(file)); /* no terminal */
    EXPECT_EQ(parse({"--color=maybe"}).code, CLI_USAGE);
    fclose(file);
}

TEST(CliNearest, FindsTypingErrorsOnly)
{
    const char *const words[] = {"plan", "report", "run", "bench", "completion", nullptr};
    EXPECT_STREQ(cli_nearest("repotr", words), "report");
    EXPECT_STREQ(cli_nearest("rn", words), "run");
    EXPECT_STREQ(cli_nearest("comple", words), "completion");
    EXPECT_STREQ(cli_nearest("bnech", words), "bench");
    EXPECT_EQ(cli_nearest("elephant", words), nullptr);
    EXPECT_EQ(cli_nearest("", words), nullptr);
    EXPECT_EQ(cli_nearest("xyz", (const char *const[]){nullptr}), nullptr);
}

TEST(CliText, BytesAndTimes)
{
    char buffer[32];
    struct {
        double value;
        const char *text;
    } sizes[] = {{0, "0 B"},
                 {1023, "1023 B"},
                 {1024, "1.0 KiB"},
                 {40.0 * (1 << 20), "40.0 MiB"},
                 {1024 * 1024 - 1, "1.0 MiB"},
                 {1e18, "888.2 PiB"},
                 {-2048, "-2.0 KiB"},
                 {std::numeric_limits<double>::quiet_NaN(), "-"}};
    for (auto &s : sizes)
        EXPECT_STREQ(cli_bytes(buffer, s.value), s.text);
    struct {
        double value;
        const char *text;
    } times[] = {{0, "0 ns"},
                 {999, "999 ns"},
                 {1000, "1.000 us"},
                 {1234567, "1.235 ms"},
                 {999999.9, "1.000 ms"},
                 {12.5e9, "12.500 s"},
                 {-5e3, "-5.000 us"},
                 {std::numeric_limits<double>::infinity(), "-"}};
    for (auto &t : times)
        EXPECT_STREQ(cli_time_ns(buffer, t.value), t.text);
}

TEST(CliText, WrappingKeepsWordsAndWidth)
{
    testing::internal::CaptureStdout();
    cli_print_wrapped(stdout, "aaa bbb ccc  ddd\neee extraordinarilylongword f", 4, 12);
    fflush(stdout);
    EXPECT_EQ(testing::internal::GetCapturedStdout(),
              "aaa bbb\n    ccc ddd\n    eee\n    extraordinarilylongword\n    f\n");
}
