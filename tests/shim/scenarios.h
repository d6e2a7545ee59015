/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SHIM_SCENARIOS_H
#define TESTS_SHIM_SCENARIOS_H

#include <stdio.h>

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
            scenario_failures++;                                                                   \
        }                                                                                          \
    } while (0)

extern int scenario_failures;
int scenario_run(const char *name); /* an exit code */

#endif
