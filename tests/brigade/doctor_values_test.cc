// SPDX-License-Identifier: Apache-2.0
/* brigade doctor on the values of variables: of launchers, of NCCL. */
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
