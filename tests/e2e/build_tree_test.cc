/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of one's own, built against a build directory as the README says. */
#include <gtest/gtest.h>

#include <fstream>

#include "tests/brigade/command.h"

namespace
{

const char DATA_PARALLEL[] = R"(
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(void)
{
    int rank = atoi(getenv("RANK")), ranks = atoi(getenv("WORLD_SIZE"));
    ncclUniqueId id;
    ncclComm_t comm;
    cudaStream_t stream;
    float *data, sum;
    FILE *file;
    if (!rank) {
        ncclGetUniqueId(&id);
        file = fopen("id.part", "wb");
        fwrite(&id, sizeof id, 1, file);
        fclose(file);
        rename("id.part", "id");
    }
    while (!(file = fopen("id", "rb")))
        usleep(1000);
    if (fread(&id, sizeof id, 1, file) != 1 || ncclCommInitRank(&comm, ranks, id, rank))
        return 1;
    if (cudaStreamCreate(&stream) || cudaMalloc((void **)&data, sizeof *data))
        return 1;
    for (int step = 0; step < 5; step++) {
        *data = (float)(rank + 1);
        if (ncclAllReduce(data, data, 1, ncclFloat, ncclSum, comm, stream))
            return 1;
        cudaStreamSynchronize(stream);
    }
    sum = *data;
    ncclCommDestroy(comm);
    printf("sum %g\n", sum);
    return 0;
}
)";

class BuildTree : public testing::Test
{
  protected:
    TempDir dir;
    CommandResult shell(const std::string &script)
    {
        CommandOptions options;
        options.env["PKG_CONFIG_PATH"] = BRIGADE_BUILD_ROOT "/meson-uninstalled";
        return Command({"/bin/sh", "-ec", "cd '" + dir.path() + "'\n" + script}, options)
            .wait(60000);
    }
    void compile(const std::string &source, const std::string &package, const std::string &libdir)
    {
        CommandResult built = shell(std::string(BRIGADE_CC) + " -Wall -Wextra -Werror '" + source +
                                    "' -o program $(pkg-config --cflags --libs " + package +
                                    ") -Wl,-rpath,'" BRIGADE_BUILD_ROOT "/" + libdir + "' -lm");
        ASSERT_EQ(built.code, 0) << built.err;
    }
};

TEST_F(BuildTree, ProgramThatUsesTheLibrary)
{
    compile(BRIGADE_PROGRAM, "brigade", "sched");
    CommandResult ran = shell("./program");
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_NE(ran.out.find(": learned\n"), std::string::npos) << ran.out;
}

/* What the command records of it goes through the shim, which it has to find in the build. */
TEST_F(BuildTree, ProgramThatKnowsNcclOnly)
{
    std::ofstream(dir.path("program.c")) << DATA_PARALLEL;
    compile("program.c", "brigade-host", "shim/host");
    CommandResult ran =
        shell("'" BRIGADE_COMMAND "' run -q --no-prefix -n 3 -o trace -- ./program");
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(count_of(ran.out, "sum 6\n"), 3) << ran.out << ran.err;
    CommandResult report = shell("'" BRIGADE_COMMAND "' report trace --skip 0");
    EXPECT_EQ(report.code, 0) << report.err;
    EXPECT_NE(report.out.find("3 of 3 ranks, 4 of 4 steps"), std::string::npos) << report.out;
}

} // namespace
