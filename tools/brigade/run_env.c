/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <hwloc.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tools/brigade/run.h"

/* Cores that the affinity mask touches, within what hwloc finds allowed. */
static int affine_cores(void)
{
    int cores = 0;
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology))
        return 0;
    hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (set && !hwloc_topology_load(topology)) {
        if (hwloc_get_cpubind(topology, set, HWLOC_CPUBIND_PROCESS) || hwloc_bitmap_iszero(set))
            hwloc_bitmap_copy(set, hwloc_topology_get_allowed_cpuset(topology));
        hwloc_bitmap_and(set, set, hwloc_topology_get_allowed_cpuset(topology));
        hwloc_obj_t core = NULL;
        while ((
            core = hwloc_get_next_obj_covering_cpuset_by_type(topology, set, HWLOC_OBJ_CORE, core)))
            cores++;
        if (!cores)
            cores = hwloc_bitmap_weight(set); /* a machine that does not tell its cores */
    }
    hwloc_bitmap_free(set);
    hwloc_topology_destroy(topology);
    return cores;
}

/* Reads "QUOTA PERIOD" (cgroup v2; "max" is no quota). */
static double quota_of(const char *path)
{
    char first[32];
    long long period;
    double cores = 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    if (fscanf(file, "%31s %lld", first, &period) == 2 && period > 0)
        cores = strtod(first, NULL) / (double)period;
    fclose(file);
    return cores;
}

/* The tightest CPU quota of our control group and those above; 0: none. */
static double quota_cores(void)
{
    char line[1024], path[1200];
    double tightest = 0;
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "0::/", 4))
            continue;
        line[strcspn(line, "\n")] = 0;
        char *group = line + 3;
        for (;;) {
            snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
            double cores = quota_of(path);
            if (cores > 0 && (tightest <= 0 || cores < tightest))
                tightest = cores;
            char *slash = strrchr(group, '/');
            if (!slash)
                break;
            *slash = 0;
        }
    }
    fclose(file);
    return tightest;
}

int run_cores(void)
{
    int cores = affine_cores();
    if (cores <= 0) {
        cpu_set_t set;
        cores = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    }
    double quota = quota_cores();
    if (quota > 0 && quota < cores)
        cores = (int)(quota + 0.999);
    return cores > 0 ? cores : 1;
}

static int try_port(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int error = bind(fd, (struct sockaddr *)&address, sizeof address) ? errno : 0;
    close(fd);
    return error;
}

/* Ports that the kernel gives to nobody by itself: between this choice and the moment when rank 0
 * listens, no connection of another program can take one. */
int run_free_port(int wanted, char *error, size_t error_bytes)
{
    enum { FIRST = 20000, LAST_DEFAULT = 32767, LAST_PORT = 65535, TRIES = 200 };
    if (wanted) {
        int failed = try_port(wanted);
        if (failed)
            snprintf(error, error_bytes, "port %d is not free: %s", wanted, strerror(failed));
        return failed ? 0 : wanted;
    }
    int low = LAST_DEFAULT + 1, failed = 0;
    FILE *range = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
    if (range) {
        if (fscanf(range, "%d", &low) != 1)
            low = LAST_DEFAULT + 1;
        fclose(range);
    }
    int last = low - 1 >= FIRST + TRIES ? low - 1 : LAST_PORT;
    for (int i = 0; i < TRIES; i++) {
        uint32_t random;
        if (getrandom(&random, sizeof random, 0) != sizeof random)
            random = (uint32_t)getpid() * 2654435761u + (uint32_t)i;
        int port = FIRST + (int)(random % (uint32_t)(last - FIRST + 1));
        failed = try_port(port);
        if (!failed)
            return port;
    }
    snprintf(error, error_bytes, "no free port found from %d to %d: %s", FIRST, last,
             strerror(failed));
    return 0;
}

__attribute__((format(printf, 2, 3))) static bool add(run_env *env, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    bool ok = env->count < (int)(sizeof env->items / sizeof *env->items) &&
              vasprintf(&env->items[env->count], format, args) >= 0;
    va_end(args);
    if (ok)
        env->count++;
    return ok;
}

bool run_env_build(const run_config *config, int rank, run_env *env)
{
    static const char *const thread_names[] = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"};
    bool ok = true;
    env->count = 0;
    if (config->set_env) {
        ok = add(env, "RANK=%d", rank) && add(env, "WORLD_SIZE=%d", config->ranks) &&
             add(env, "LOCAL_RANK=%d", rank) && add(env, "LOCAL_WORLD_SIZE=%d", config->ranks) &&
             add(env, "MASTER_ADDR=127.0.0.1") && add(env, "MASTER_PORT=%d", config->port);
        for (int i = 0; i < 2; i++)
            if (!getenv(thread_names[i]))
                ok = ok && add(env, "%s=%d", thread_names[i], config->threads);
    }
    if (config->trace)
        ok = ok && add(env, "BRIGADE_TRACE=%s", config->trace);
    if (config->records)
        ok = ok && add(env, "BRIGADE_TRACE_RECORDS=%lld", (long long)config->records);
    if (config->preload)
        ok = ok && add(env, "LD_PRELOAD=%s", config->preload);
    if (config->kernels)
        ok = ok && add(env, "BRIGADE_SHIM_KERNELS=cupti");
    if (!ok)
        run_env_free(env);
    return ok;
}

void run_env_free(run_env *env)
{
    for (int i = 0; i < env->count; i++)
        free(env->items[i]);
    env->count = 0;
}

char *run_quote(const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_@%+=:,./-";
    if (*text && strspn(text, plain) == strlen(text))
        return strdup(text);
    char *quoted = malloc(strlen(text) * 4 + 3);
    if (!quoted)
        return NULL;
    char *end = quoted;
    *end++ = '\'';
    for (; *text; text++) {
        if (*text == '\'')
            end = stpcpy(end, "'\\''");
        else
            *end++ = *text;
    }
    strcpy(end, "'");
    return quoted;
}

static void print_quoted(const char *text)
{
    char *quoted = run_quote(text);
    fputs(quoted ? quoted : text, stdout);
    free(quoted);
}

void run_print(const run_config *config)
{
    for (int rank = 0; rank < config->ranks; rank++) {
        run_env env;
        if (!run_env_build(config, rank, &env))
            return;
        for (int i = 0; i < env.count; i++) {
            int name = (int)strcspn(env.items[i], "=") + 1;
            printf("%.*s", name, env.items[i]);
            print_quoted(env.items[i] + name);
            putchar(' ');
        }
        for (int i = 0; config->argv[i]; i++) {
            if (i)
                putchar(' ');
            print_quoted(config->argv[i]);
        }
        putchar('\n');
        run_env_free(&env);
    }
}
