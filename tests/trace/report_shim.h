/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of brigade report on traces of the shim share. */
#ifndef BRIGADE_TESTS_TRACE_REPORT_SHIM_H
#define BRIGADE_TESTS_TRACE_REPORT_SHIM_H

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/brigade/command.h"
#include "tests/brigade/json.h"
#include "tests/trace/shim_trace.h"

inline std::string ring_path(const TempDir &dir, uint32_t rank)
{
    return dir.path("rank-" + std::to_string(rank) + ".ring");
}

/* `ranks` ranks that run the same. */
inline void fleet(const TempDir &dir, uint32_t ranks, std::function<void(ShimTrace &)> train,
                  std::function<void(ShimTrace &)> change = {})
{
    for (uint32_t rank = 0; rank < ranks; rank++) {
        ShimTrace t(1, rank, ranks);
        train(t);
        if (change)
            change(t);
        t.write(ring_path(dir, rank));
    }
}

inline void expect_fits(const std::string &out)
{
    for (const std::string &line : lines_of(out))
        EXPECT_LE(line.size(), 100u) << line;
}

#endif
