/* SPDX-License-Identifier: Apache-2.0 */
/* brigade doctor --json, taken apart. */
#ifndef BRIGADE_TESTS_DOCTOR_H
#define BRIGADE_TESTS_DOCTOR_H

#include <gtest/gtest.h>
#include <jansson.h>

#include <map>
#include <string>
#include <vector>

#include "tests/brigade/command.h"

using Args = std::vector<std::string>;
using Env = std::map<std::string, std::string>;

struct Finding {
    std::string state, text, fix;
};

/* The findings of a check, out of the JSON document. */
struct Doctor {
    CommandResult result;
    std::multimap<std::string, Finding> findings;

    explicit Doctor(const Env &env, Args args = {})
    {
        CommandOptions options;
        options.env = env;
        args.insert(args.begin(), {"doctor", "--json"});
        result = brigade(args, options);
        json_t *root = json_loads(result.out.c_str(), JSON_REJECT_DUPLICATES, nullptr), *check;
        EXPECT_NE(root, nullptr) << result.out << result.err;
        size_t i;
        json_array_foreach(json_object_get(root, "checks"), i, check)
        {
            auto text = [&](const char *key) {
                const char *value = json_string_value(json_object_get(check, key));
                return std::string(value ? value : "");
            };
            findings.insert({text("check"), {text("state"), text("text"), text("fix")}});
        }
        observed = json_is_true(json_object_get(root, "observed"));
        failures = (int)json_integer_value(json_object_get(root, "failures"));
        json_decref(root);
        EXPECT_EQ(result.code, failures ? 1 : 0);
    }
    /* The finding of the check that has the words in its text. */
    Finding find(const std::string &check, const std::string &words = "") const
    {
        auto range = findings.equal_range(check);
        for (auto i = range.first; i != range.second; ++i)
            if (i->second.text.find(words) != std::string::npos)
                return i->second;
        return {"missing", result.out, ""};
    }
    bool observed;
    int failures;
};

inline void expect(const Finding &finding, const std::string &state)
{
    EXPECT_EQ(finding.state, state) << finding.text;
    EXPECT_EQ(finding.fix.empty(), state == "pass" || state == "absent") << finding.text;
}

#endif
