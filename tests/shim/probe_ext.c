/* SPDX-License-Identifier: Apache-2.0 */
/* A program that knows no NCCL, and loads what does as Python loads an extension: with RTLD_LOCAL.
 *
 *   probe_ext run FILE SCENARIO           the extension is linked with NCCL, as PyTorch's is
 *   probe_ext two FILE OTHER_FILE         two extensions, linked with an NCCL each
 *   probe_ext dlsym NCCL_FILE             NCCL itself is opened and asked for its functions, as
 *                                         vLLM, CuPy and JAX do
 *   probe_ext threads                     prints how many threads this process has
 */
#include <dirent.h>
#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *need(void *found)
{
    if (!found) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
    return found;
}

static int with_dlsym(const char *file)
{
    void *nccl = need(dlopen(file, RTLD_NOW | RTLD_LOCAL));
    int failed = 0;
    ncclUniqueId id;
    ncclComm_t comm, all[2];
    char memory[64];
    typeof(ncclGetUniqueId) *get_id = need(dlsym(nccl, "ncclGetUniqueId"));
    typeof(ncclCommInitRank) *init = need(dlsym(nccl, "ncclCommInitRank"));
    typeof(ncclCommInitAll) *init_all = need(dlsym(nccl, "ncclCommInitAll"));
    typeof(ncclBcast) *bcast = need(dlsym(nccl, "ncclBcast"));
    typeof(ncclAllReduce) *reduce = need(dlsym(nccl, "ncclAllReduce"));
    failed |= get_id(&id) != ncclSuccess || init(&comm, 2, id, 0) != ncclSuccess;
    failed |= init_all(all, 2, NULL) != ncclSuccess; /* calls ncclGetUniqueId by its name */
    failed |= bcast(memory, 1, ncclInt8, 0, comm, NULL) != ncclSuccess; /* ncclBroadcast */
    failed |= reduce(memory, memory, 1, ncclInt8, ncclSum, comm, NULL) != ncclSuccess;
    return failed;
}

static int threads(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; tasks && (entry = readdir(tasks));)
        count += entry->d_name[0] != '.';
    printf("threads %d\n", count);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 3 && !strcmp(argv[1], "run")) {
        void *extension = need(dlopen(argv[2], RTLD_NOW | RTLD_LOCAL));
        int (*run)(const char *) = need(dlsym(extension, "scenario_run"));
        return run(argv[3]);
    }
    if (argc > 3 && !strcmp(argv[1], "two")) {
        typedef int pass(int number);
        pass *first = need(dlsym(need(dlopen(argv[2], RTLD_NOW | RTLD_LOCAL)), "copy_pass"));
        pass *second = need(dlsym(need(dlopen(argv[3], RTLD_NOW | RTLD_LOCAL)), "copy_pass"));
        int failed = 0;
        for (int number = 0; number < 4;
             number++) /* in turn: groups of one span calls of the other */
            failed |= first(number) | second(number);
        return failed;
    }
    if (argc > 2 && !strcmp(argv[1], "dlsym"))
        return with_dlsym(argv[2]);
    if (argc > 1 && !strcmp(argv[1], "threads"))
        return threads();
    return 2;
}
