/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of brigade report on traces of the shim share. */
#ifndef BRIGADE_TESTS_TRACE_REPORT_SHIM_H
#define BRIGADE_TESTS_TRACE_REPORT_SHIM_H

#include <gtest/gtest.h>
#include <jansson.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/brigade/command.h"
#include "tests/trace/shim_trace.h"

#define EXPECT_HAS(text, word) EXPECT_NE((text).find(word), std::string::npos) << (text)

struct Json {
    explicit Json(const std::string &text)
    {
        json_error_t error;
        root = json_loads(text.c_str(), JSON_REJECT_DUPLICATES, &error);
        EXPECT_NE(root, nullptr) << error.text << "\n" << text;
    }
    ~Json()
    {
        json_decref(root);
    }
    Json(const Json &) = delete;
    json_t *operator[](const char *key) const
    {
        return json_object_get(root, key);
    }
    json_t *root;
};

inline int64_t integer(json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    EXPECT_TRUE(json_is_integer(value)) << key;
    return json_integer_value(value);
}

inline std::string string(json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    EXPECT_TRUE(json_is_string(value)) << key;
    return json_is_string(value) ? json_string_value(value) : "";
}

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
