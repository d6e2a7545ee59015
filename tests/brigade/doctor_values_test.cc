// SPDX-License-Identifier: Apache-2.0
/* brigade doctor on the values of variables: of launchers, of NCCL, paths in Brigade's. */
#include <string.h>
#include <sys/stat.h>

#include "tests/brigade/doctor.h"

TEST(DoctorOfValues, RanksThatRunGives)
{
    Args doctor = brigade_args({"doctor", "--json"}), args = {"run", "-n", "2", "--"};
    args.insert(args.end(), doctor.begin(), doctor.end());
    auto r = brigade(args);
    EXPECT_NE(r.out.find("RANK 0 of WORLD_SIZE 2"), std::string::npos) << r.out;
    EXPECT_NE(r.out.find("RANK 1 of WORLD_SIZE 2"), std::string::npos) << r.out;
}

namespace
{
Finding nccl_variable(const char *name, const std::string &value, const char *version = "2.28.9")
{
    TempDir dir;
    std::string nccl = dir.path("libnccl.so.2");
    write_file(nccl, read_file(BRIGADE_PLUGIN) + "NCCL version " + version + "+cuda13.0");
    return Doctor(Env{{name, value}}, {"-b", nccl}).find("NCCL variables");
}
} // namespace

TEST(DoctorOfValues, AlgorithmsAndProtocolsThatNcclDoesNotKnow)
{
    expect(Doctor({}).find("NCCL variables", "0 of "), "pass");
    for (const char *good :
         {"Ring", "ring,TREE", "^tree", "NVLS,NVLSTree,PAT,CollNetDirect,CollNetChain",
          "ring;allreduce:tree,collnetdirect;broadcast:ring", "allreduce:^tree",
          "AllGather:PAT;ReduceScatter:^PAT;Reduce:ring"})
        expect(nccl_variable("NCCL_ALGO", good), "pass");
    for (const char *bad :
         {"Rnig", "ring,star", "^tree,x", "CollNet", "allreduce:", "alltoall:ring", "ring;tree",
          "allgather:nvls,reducescatter:nvls", "ring tree", "Simple"})
        expect(nccl_variable("NCCL_ALGO", bad), "fail");
    for (const char *good :
         {"LL", "ll128,simple", "^LL128;allreduce:LL128", "LL,Simple;reduce:^LL"})
        expect(nccl_variable("NCCL_PROTO", good), "pass");
    expect(nccl_variable("NCCL_PROTO", "LL256"), "fail");
    auto found = nccl_variable("NCCL_PROTO", "LL,simpel");
    EXPECT_NE(found.text.find("'simpel' is none of LL, LL128, Simple"), std::string::npos)
        << found.text;
}

TEST(DoctorOfValues, WhatOlderNcclsIgnore)
{
    auto word = nccl_variable("NCCL_ALGO", "Rnig", "2.23.4");
    expect(word, "warn");
    EXPECT_NE(word.text.find("ignores it"), std::string::npos) << word.text;
    expect(nccl_variable("NCCL_ALGO", "allreduce:ring", "2.23.4"), "warn");
    expect(nccl_variable("NCCL_ALGO", "^ring", "2.23.4"), "pass");
}

TEST(DoctorOfValues, LevelOfNcclsLog)
{
    expect(nccl_variable("NCCL_DEBUG", "info"), "pass");
    expect(nccl_variable("NCCL_DEBUG", "DEBUG"), "warn");
}

TEST(DoctorOfValues, InterfacesThatAreNotThere)
{
    auto check = [](const char *value) { return nccl_variable("NCCL_SOCKET_IFNAME", value); };
    for (const char *good : {"lo", "=lo", "l", "^nosuch", "^=l", "lo:4000"})
        expect(check(good), "pass");
    for (const char *bad : {"nosuch", "=l", "nosuch0,nosuch1"}) {
        expect(check(bad), "fail");
        EXPECT_NE(check(bad).text.find("with an address are lo"), std::string::npos);
    }
    auto one = check("lo,nosuch");
    expect(one, "warn");
    EXPECT_NE(one.text.find("fits 'nosuch'"), std::string::npos) << one.text;
}

TEST(DoctorOfValues, OfNcclsFilesByFileAndLine)
{
    TempDir dir;
    std::string file = dir.path("conf");
    write_file(file, "# ours\nNCCL_PROTO=LL\nNCCL_ALGO=Rnig\n");
    auto found = Doctor(Env{{"NCCL_CONF_FILE", file}}).find("NCCL variables");
    expect(found, "fail");
    EXPECT_EQ(found.text.find("NCCL_ALGO=Rnig in " + file + ", line 3: "), 0u) << found.text;
    expect(Doctor(Env{{"NCCL_CONF_FILE", file}, {"NCCL_ALGO", "Ring"}}).find("NCCL variables"),
           "pass");
}

namespace
{
/* Of a doctor that is started in `dir`. */
CommandResult doctor_in(const TempDir &dir, const std::string &setting)
{
    return Command(
               {"/bin/sh", "-c",
                "cd '" + dir.path() + "' && " + setting + " exec " + BRIGADE_COMMAND + " doctor"})
        .wait();
}

bool says(const CommandResult &r, const std::string &state, const std::string &words)
{
    std::string text;
    for (auto &line : lines_of(r.out)) { /* long lines are broken */
        bool more = !line.compare(0, 26, std::string(26, ' '));
        text += more ? " " + line.substr(26) : "\n" + line;
    }
    return text.find("\n" + state + std::string(7 - state.size(), ' ') + "BRIGADE_ variables " +
                     words) != std::string::npos;
}
} // namespace

TEST(DoctorOfValues, RelativePathsDependOnTheRanksDirectory)
{
    TempDir dir;
    write_file(dir.path("lib.so"), read_file(BRIGADE_PLUGIN));
    write_file(dir.path("text"), "text");
    ASSERT_EQ(mkdir(dir.path("trace").c_str(), 0755), 0);
    for (const char *setting :
         {"BRIGADE_NCCL=./lib.so", "BRIGADE_CUDART=./lib.so",
          "BRIGADE_CUBLAS=../$(basename $PWD)/lib.so", "BRIGADE_CUDA_KERNELS=./lib.so",
          "BRIGADE_CUPTI=./lib.so", "BRIGADE_TRAIN_DATA=text", "BRIGADE_TRACE=trace",
          "BRIGADE_TUNE_CACHE=choices"}) {
        auto r = doctor_in(dir, setting);
        std::string name(setting, strcspn(setting, "="));
        EXPECT_TRUE(says(r, "warn", name + "=")) << r.out;
        EXPECT_NE(r.out.find("is relative"), std::string::npos) << r.out;
    }
    auto r = doctor_in(dir, "BRIGADE_NCCL_LIB=lib.so"); /* the shim refuses it */
    EXPECT_TRUE(says(r, "fail", "BRIGADE_NCCL_LIB=lib.so: expected an absolute path")) << r.out;
    r = doctor_in(
        dir, "BRIGADE_TRACE=$PWD/trace BRIGADE_CUPTI=$PWD/lib.so BRIGADE_TRAIN_DATA=$PWD/text");
    EXPECT_TRUE(says(r, "pass", "3 set")) << r.out;
}

TEST(DoctorOfValues, FilesThatAreMissingOrOfAnotherKind)
{
    TempDir dir;
    std::string text = dir.path("text");
    write_file(text, "text");
    auto check = [&](const std::string &name, const std::string &value) {
        return Doctor(Env{{name, value}}).find("BRIGADE_ variables", name);
    };
    for (const char *name : {"BRIGADE_NCCL", "BRIGADE_NCCL_LIB", "BRIGADE_CUDART", "BRIGADE_CUBLAS",
                             "BRIGADE_CUDA_KERNELS", "BRIGADE_CUPTI"}) {
        expect(check(name, dir.path("missing.so")), "fail");
        EXPECT_NE(check(name, text).text.find("is no library"), std::string::npos);
        expect(check(name, dir.path()), "fail");
    }
    expect(check("BRIGADE_CUDART", "libno-such-thing.so"), "fail");
    expect(check("BRIGADE_TRAIN_DATA", dir.path("missing")), "fail");
    expect(check("BRIGADE_TRAIN_DATA", dir.path()), "fail");
    expect(check("BRIGADE_TUNE_CACHE", dir.path()), "fail");
    expect(check("BRIGADE_TRACE", text), "fail");
    auto trace = check("BRIGADE_TRACE", dir.path("missing"));
    expect(trace, "warn");
    EXPECT_NE(trace.text.find("the shim does not"), std::string::npos) << trace.text;
    expect(check("BRIGADE_TRACE", dir.path("missing/too")), "fail");
    EXPECT_EQ(check("BRIGADE_TUNE_CACHE", dir.path("missing")).state, "missing");
    expect(check("BRIGADE_TUNE_CACHE", dir.path("missing/choices")), "fail");
}
