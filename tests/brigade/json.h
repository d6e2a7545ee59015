/* SPDX-License-Identifier: Apache-2.0 */
/* What the command writes with --json, and texts that hold something. */
#ifndef BRIGADE_TESTS_BRIGADE_JSON_H
#define BRIGADE_TESTS_BRIGADE_JSON_H

#include <gtest/gtest.h>
#include <jansson.h>

#include <string>

#define EXPECT_HAS(text, word) EXPECT_NE((text).find(word), std::string::npos) << (text)

/* A failure where the text is none. */
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

#endif
