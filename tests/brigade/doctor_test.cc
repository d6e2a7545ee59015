// SPDX-License-Identifier: Apache-2.0
/* brigade doctor as a user runs it; nothing here depends on what the machine has. */
#include <sys/stat.h>
#include <unistd.h>

#include "tests/brigade/doctor.h"

TEST(Doctor, ChecksTheMachineThatThereIs)
{
    Doctor d({});
    EXPECT_EQ(d.result.err, "");
    EXPECT_FALSE(d.observed);
    for (const char *check :
         {"NCCL", "profiler plugin", "tuner plugin", "BRIGADE_ variables", "ranks", "NCCL's files",
          "NCCL variables", "brakes", "CUDA connections", "NVLS", "NVIDIA driver", "CUDA versions",
          "GPUs", "BRIGADE_DEVICE", "/dev/shm", "stack", "clock", "cores", "topology"})
        EXPECT_GE(d.findings.count(check), 1u) << check;
    for (auto &finding : d.findings) {
        EXPECT_FALSE(finding.second.text.empty()) << finding.first;
        if (finding.second.state == "warn" || finding.second.state == "fail") {
            EXPECT_FALSE(finding.second.fix.empty()) << finding.first;
        }
    }
}

TEST(Doctor, TextHasOneLineAndOneFixPerFinding)
{
    CommandOptions options;
    options.env = {{"BRIGADE_LOG", "loud"}, {"CUDA_LAUNCH_BLOCKING", "1"}};
    auto r = brigade({"doctor"}, options);
    EXPECT_EQ(r.code, 1);
    EXPECT_NE(r.out.find("fail   BRIGADE_ variables"), std::string::npos) << r.out;
    EXPECT_NE(r.out.find("fix: correct the value"), std::string::npos) << r.out;
    EXPECT_NE(r.out.find("warn   brakes"), std::string::npos) << r.out;
    EXPECT_NE(r.out.find(" not there\n"), std::string::npos);
    for (auto &line : lines_of(r.out))
        EXPECT_LE(line.size(), 100u) << line;
}

TEST(Doctor, BrigadeVariables)
{
    auto check = [](const char *name, const char *value) {
        return Doctor(Env{{name, value}}).find("BRIGADE_ variables");
    };
    expect(Doctor({}).find("BRIGADE_ variables", "none set"), "pass");
    expect(check("BRIGADE_LOG", "debug"), "pass");
    expect(check("BRIGADE_INIT_TIMEOUT", "2.5"), "pass");
    expect(check("BRIGADE_INIT_TIMEOUT", "soon"), "fail");
    expect(check("BRIGADE_INIT_TIMEOUT", "-1"), "fail");
    expect(check("BRIGADE_MASTER_PORT", "70000"), "fail");
    expect(check("BRIGADE_HOST_TRANSPORT", "pigeon"), "fail");
    expect(check("BRIGADE_TRACE_RECORDS", "100000"), "pass");
    expect(check("BRIGADE_TRACE_RECORDS", "1e5"), "fail");
    auto records = check("BRIGADE_TRACE_RECORDS", "100");
    expect(records, "fail");
    EXPECT_NE(records.text.find("from 256 to 67108864"), std::string::npos) << records.text;
    expect(check("BRIGADE_NCCL", "/no/such/file.so"), "fail");
    auto misspelt = check("BRIGADE_DEVCE", "host");
    expect(misspelt, "warn");
    EXPECT_NE(misspelt.text.find("did you mean BRIGADE_DEVICE?"), std::string::npos);
}

TEST(Doctor, DeviceThatWouldBeChosen)
{
    auto host = Doctor(Env{{"BRIGADE_DEVICE", "host"}}).find("BRIGADE_DEVICE");
    expect(host, "pass");
    EXPECT_EQ(host.text.find("host"), 0u);
    expect(Doctor(Env{{"BRIGADE_DEVICE", "tpu"}}).find("BRIGADE_DEVICE"), "fail");
    expect(Doctor(Env{{"BRIGADE_DEVICE", "cuda"}, {"BRIGADE_CUDART", "/no/such/cudart.so"}})
               .find("BRIGADE_DEVICE"),
           "fail");
}

TEST(Doctor, NcclVersionsInFiles)
{
    TempDir dir;
    std::string file = dir.path("libtorch_cuda.so");
    auto check = [&](const std::string &version, const char *words = "") {
        write_file(file, read_file(BRIGADE_PLUGIN) + std::string("NCCL version %s\0", 16) +
                             "NCCL version " + version + "+cuda13.0");
        return Doctor({}, {"--binary", file}).find("NCCL", words);
    };
    expect(check("2.28.9", "libtorch_cuda.so is 2.28.9"), "pass");
    expect(check("2.28.3", "corrupts data"), "fail");
    expect(check("2.28.7", "hang at scale"), "warn");
    expect(check("2.18.6", "is 2.18.6"), "fail");
    expect(Doctor({}, {"-b", file}).find("static NCCL"), "warn");
    expect(Doctor({}, {"-b", BRIGADE_PLUGIN}).find("NCCL", "no NCCL linked in"), "pass");
    expect(Doctor({}, {"-b", dir.path("missing")}).find("NCCL", "cannot be read: No such file"),
           "fail");
}

TEST(Doctor, FileThatIsNoElfFile)
{
    TempDir dir;
    std::string file = dir.path("train.py");
    write_file(file, "#!/usr/bin/env python\n");
    expect(Doctor({}, {"-b", file}).find("NCCL", "train.py is not an ELF file"), "fail");
    expect(Doctor({}, {"-b", dir.path()}).find("NCCL", "is not an ELF file"), "fail");
    write_file(file, "");
    expect(Doctor({}, {"-b", file}).find("NCCL", "is not an ELF file"), "fail");
    write_file(file, read_file(BRIGADE_PLUGIN).substr(0, 100)); /* cut off: nothing to find */
    EXPECT_EQ(Doctor({}, {"-b", file}).find("NCCL", "no NCCL linked in").state, "pass");
    file = dir.path("libnccl_static.a");
    write_file(file, "!<arch>\nNCCL version 2.28.9+cuda13.0");
    expect(Doctor({}, {"-b", file}).find("NCCL", "libnccl_static.a is 2.28.9"), "pass");
}

TEST(Doctor, HostEngineInPlaceOfNccl)
{
    const char *words = "collectives run over shared memory on the CPU";
    TempDir dir;
    std::string alias = dir.path("libnccl.so.2");
    expect(Doctor({}, {"-b", BRIGADE_HOST_LIBRARY}).find("NCCL", words), "pass");
    expect(Doctor({}, {"-b", BRIGADE_SHIM_FIRST}).find("NCCL", words), "pass");
    write_file(alias, read_file(BRIGADE_HOST_LIBRARY)); /* a copy under NCCL's name */
    expect(Doctor({}, {"-b", alias}).find("NCCL", words), "pass");
}

TEST(Doctor, ShimLinkedBehindNccl)
{
    auto late = Doctor({}, {"-b", BRIGADE_SHIM_LATE}).find("link order", "before libbrigade-shim");
    expect(late, "fail");
    EXPECT_NE(late.fix.find("-lbrigade-shim before"), std::string::npos);
    EXPECT_EQ(Doctor({}, {"-b", BRIGADE_SHIM_FIRST}).find("link order").state, "missing");
}

TEST(Doctor, PluginsAreChosenByNcclsVersion)
{
    TempDir dir;
    std::string nccl = dir.path("libnccl.so.2");
    auto check = [&](const std::string &version, const std::string &plugin,
                     const char *variable = "NCCL_PROFILER_PLUGIN") {
        write_file(nccl, read_file(BRIGADE_PLUGIN) + "NCCL version " + version + "+cuda13.0");
        return Doctor(Env{{variable, plugin}}, {"-b", nccl})
            .find(std::string(variable) == "NCCL_TUNER_PLUGIN" ? "tuner plugin"
                                                               : "profiler plugin");
    };
    auto chosen = [&](const std::string &version) { return check(version, BRIGADE_PLUGIN).text; };
    EXPECT_NE(chosen("2.28.9").find("ncclProfiler_v5"), std::string::npos);
    EXPECT_NE(chosen("2.30.4").find("ncclProfiler_v5"), std::string::npos);
    EXPECT_NE(chosen("2.27.3").find("ncclProfiler_v4"), std::string::npos);
    expect(check("2.26.2", BRIGADE_PLUGIN), "fail"); /* takes v1 to v3 */
    expect(check("2.21.5", BRIGADE_PLUGIN), "warn"); /* takes none */
    expect(check("2.28.9", BRIGADE_PLUGIN, "NCCL_TUNER_PLUGIN"), "fail");
    expect(check("2.28.9", "/no/such/plugin.so"), "fail");
    expect(check("2.28.9", "none"), "pass");
    expect(check("2.28.9", "STATIC_PLUGIN"), "pass");
    expect(check("2.28.9", "stat"), "warn");
    expect(check("2.28.9", "/" + std::string(260, 'x')), "fail");
    expect(check("2.28.9", "/" + std::string(260, 'x'), "NCCL_TUNER_PLUGIN"), "fail");
}

TEST(Doctor, SettingsInFiles)
{
    TempDir dir;
    std::string file = dir.path("conf");
    write_file(file, "# comment\nNCCL_ALGO=Ring\n\nNCCL_PROTO=LL\nnonsense\n");
    Doctor d(Env{{"NCCL_CONF_FILE", file}, {"NCCL_ALGO", "Tree"}, {"NCCL_PROTO", "LL"}});
    auto conflict = d.find("NCCL's files", "NCCL_ALGO is Tree in the environment and Ring in");
    expect(conflict, "warn");
    expect(d.find("NCCL's files", "line 5"), "warn");
    EXPECT_EQ(d.find("NCCL's files", "NCCL_PROTO").state, "missing");
    EXPECT_NE(conflict.text.find("conf, line 2"), std::string::npos) << conflict.text;
    write_file(file, "NCCL_ALGO=Ring\n");
    expect(Doctor(Env{{"NCCL_CONF_FILE", file}}).find("NCCL's files", "none against another"),
           "pass");
}

TEST(Doctor, SpacesInFilesBelongToTheNames)
{
    TempDir dir;
    std::string file = dir.path("conf");
    write_file(file, "NCCL_IB_DISABLE = 1\nNCCL_ALGO=Ring # why\n");
    Doctor d(Env{{"NCCL_CONF_FILE", file}});
    expect(d.find("NCCL's files", "line 1: NCCL takes the spaces"), "warn");
    expect(d.find("NCCL's files", "line 2: NCCL takes the comment"), "warn");
    EXPECT_EQ(d.find("brakes", "NCCL_IB_DISABLE").state, "missing");
}

TEST(Doctor, BrakesInFiles)
{
    TempDir dir;
    std::string file = dir.path("conf");
    write_file(file, "# left from a search\nNCCL_P2P_DISABLE=1\nNCCL_SHM_DISABLE=1\n");
    Doctor d(Env{{"NCCL_CONF_FILE", file}, {"NCCL_SHM_DISABLE", "0"}});
    expect(d.find("brakes", "NCCL_P2P_DISABLE=1 in " + file + ", line 2: "), "warn");
    EXPECT_EQ(d.find("brakes", "NCCL_SHM_DISABLE").state, "missing"); /* the environment counts */
    write_file(dir.path(".nccl.conf"), "NCCL_IB_DISABLE=1\n");
    auto r = Command({"/usr/bin/env", "HOME=" + dir.path(), BRIGADE_COMMAND, "doctor", "--json"});
    EXPECT_NE(r.wait().out.find(".nccl.conf, line 1: "), std::string::npos);
}

TEST(Doctor, FileOfSettingsThatIsMissing)
{
    expect(Doctor(Env{{"NCCL_CONF_FILE", "/no/such.conf"}})
               .find("NCCL's files", "NCCL_CONF_FILE=/no/such.conf cannot be read: No such file"),
           "fail");
}

TEST(Doctor, VariablesThatCostSpeed)
{
    Doctor d(Env{{"CUDA_LAUNCH_BLOCKING", "1"},
                 {"CUDA_DEVICE_MAX_CONNECTIONS", "1"},
                 {"NCCL_NVLS_ENABLE", "0"}});
    expect(d.find("brakes", "CUDA_LAUNCH_BLOCKING=1"), "warn");
    expect(d.find("CUDA connections", "one queue"), "warn");
    expect(d.find("NVLS", "NCCL_NVLS_ENABLE=0"), "pass");
    expect(Doctor(Env{{"CUDA_DEVICE_MAX_CONNECTIONS", "8"}}).find("CUDA connections"), "pass");
    expect(Doctor(Env{{"CUDA_DEVICE_MAX_CONNECTIONS", "many"}}).find("CUDA connections"), "fail");
}

TEST(Doctor, RanksThatCannotBe)
{
    auto check = [](const Env &env, const char *words = "") {
        return Doctor(env).find("ranks", words);
    };
    expect(check({}, "a single rank"), "pass");
    expect(check({{"RANK", "3"},
                  {"WORLD_SIZE", "4"},
                  {"LOCAL_RANK", "1"},
                  {"MASTER_PORT", "29500"},
                  {"MASTER_ADDR", "127.0.0.1"},
                  {"LOCAL_WORLD_SIZE", "2"}},
                 "RANK 3 of WORLD_SIZE 4"),
           "pass");
    expect(check({{"RANK", "-1"}}, "RANK=-1: expected a number from 0"), "fail");
    expect(check({{"RANK", "one"}}, "RANK=one"), "fail");
    expect(check({{"RANK", "99999999999999999999"}}, "RANK=9999"), "fail");
    expect(check({{"WORLD_SIZE", "0"}}, "WORLD_SIZE=0: expected"), "fail");
    expect(check({{"RANK", "4"}, {"WORLD_SIZE", "4"}}, "RANK=4: WORLD_SIZE=4"), "fail");
    expect(check({{"WORLD_SIZE", "4"}}, "RANK is not set"), "fail");
    expect(check({{"RANK", "1"}}, "WORLD_SIZE is not set"), "fail");
    expect(check({{"RANK", "0"}}, "a single rank"), "pass");
    expect(check({{"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}, "LOCAL_RANK=2"), "fail");
    expect(check({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "4"}},
                 "LOCAL_WORLD_SIZE=4, but"),
           "fail");
    for (const char *port : {"0", "65536", "29500x"})
        expect(check({{"MASTER_PORT", port}}, "MASTER_PORT="), "fail");
    expect(check({{"MASTER_ADDR", "127.0.0.1:29500"}}, "MASTER_ADDR="), "fail");
}

TEST(Doctor, SmallStack)
{
    auto r =
        Command({"/bin/sh", "-c", std::string("ulimit -s 1024; ") + BRIGADE_COMMAND + " doctor"})
            .wait();
    EXPECT_NE(r.out.find("warn   stack"), std::string::npos) << r.out;
}

/* ---- Of a command ---- */

namespace
{
bool can_observe()
{
    return brigade({"doctor", "--", "/bin/true"}).err.find("ptrace") == std::string::npos;
}
} // namespace

TEST(DoctorOfCommand, SeesItsEnvironmentAndLeavesItsOutputAlone)
{
    if (!can_observe())
        GTEST_SKIP() << "the system does not let processes be observed";
    Doctor d(Env{{"BRIGADE_LOG", "info"}},
             {"--", "/usr/bin/env", "BRIGADE_LOG=loud", "/bin/sh", "-c", "echo said; exit 5"});
    EXPECT_TRUE(d.observed);
    expect(d.find("BRIGADE_ variables", "BRIGADE_LOG=loud"), "fail");
    expect(d.find("NCCL", "has loaded no NCCL"), "absent");
    EXPECT_NE(d.result.err.find("said\n"), std::string::npos);
    EXPECT_NE(d.result.err.find("ended with status 5"), std::string::npos);
}

TEST(DoctorOfCommand, SeesTheLibrariesOfWhatItStarts)
{
    if (!can_observe())
        GTEST_SKIP() << "the system does not let processes be observed";
    TempDir dir;
    std::string nccl = dir.path("libnccl.so.2");
    write_file(nccl, read_file(BRIGADE_PLUGIN) + "NCCL version 2.28.3+cuda13.0");
    Doctor d({}, {"--", "/bin/sh", "-c",
                  "LD_PRELOAD=" + nccl + " BRIGADE_LOG=loud /bin/sh -c '/bin/true; /bin/true'; :"});
    expect(d.find("NCCL", "libnccl.so.2 is 2.28.3"), "fail");
    expect(d.find("BRIGADE_ variables", "BRIGADE_LOG=loud"), "fail");
}

TEST(DoctorOfCommand, LinkedWithTheHostEngineAndTheShim)
{
    if (!can_observe())
        GTEST_SKIP() << "the system does not let processes be observed";
    Doctor late({}, {"--", BRIGADE_SHIM_LATE}), first({}, {"--", BRIGADE_SHIM_FIRST});
    expect(late.find("link order", "doctor-shim-late names libbrigade-host.so.1"), "fail");
    EXPECT_EQ(first.find("link order").state, "missing");
    expect(first.find("NCCL", "run over shared memory on the CPU"), "pass");
}

TEST(DoctorOfCommand, ThatCannotBeRun)
{
    if (!can_observe())
        GTEST_SKIP() << "the system does not let processes be observed";
    auto r = brigade({"doctor", "--", "/no/such/program"});
    EXPECT_EQ(r.code, 3);
    EXPECT_EQ(r.out, "");
    EXPECT_NE(r.err.find("cannot run '/no/such/program'"), std::string::npos) << r.err;
    EXPECT_EQ(brigade({"doctor", "--nonsense"}).code, 2);
}
