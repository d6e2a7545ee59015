/* SPDX-License-Identifier: Apache-2.0 */
/* probe NAME: runs a scenario that is linked in, as a C trainer is. */
#include "scenarios.h"

int main(int argc, char **argv)
{
    return argc > 1 ? scenario_run(argv[1]) : 2;
}
