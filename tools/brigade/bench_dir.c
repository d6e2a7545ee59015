/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tools/brigade/bench.h"

enum { MAX_RANKS = 64 };

bool bench_dir_make(char dir[BENCH_DIR_SIZE])
{
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, BENCH_DIR_SIZE, "%s/brigade-bench-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    return mkdtemp(dir) != NULL;
}

bool bench_dir_remove(const char *dir)
{
    char path[BENCH_DIR_SIZE + 32];
    bool traced = false;
    for (int rank = 0; rank < MAX_RANKS; rank++) {
        snprintf(path, sizeof path, "%s/rank-%d.ring", dir, rank);
        traced |= !unlink(path);
    }
    rmdir(dir);
    return traced;
}
