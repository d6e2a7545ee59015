/* SPDX-License-Identifier: Apache-2.0 */
/* Which NCCL there is: how many copies, which versions, linked in or not. */
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/brigade/doctor.h"
#include "tools/brigade/elf_file.h"

#define CHECK "NCCL"
/* NCCL keeps this text, followed by its version, so that `strings` shows it. */
#define VERSION_TEXT "NCCL version "
#define HOST_TEXT ": collectives run over shared memory on the CPU"
enum { OLDEST = 21900 };

static int version_parse(const char *text, const char *end)
{
    char copy[32] = "";
    int major, minor, patch;
    size_t n = (size_t)(end - text) < sizeof copy - 1 ? (size_t)(end - text) : sizeof copy - 1;
    memcpy(copy, text, n);
    if (sscanf(copy, "%d.%d.%d", &major, &minor, &patch) != 3 || major < 1 || major > 99 ||
        minor < 0 || minor > 99 || patch < 0 || patch > 99)
        return 0;
    return major * 10000 + minor * 100 + patch;
}

int doctor_nccl_version(const char *path)
{
    struct stat info;
    int version = 0, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return 0;
    char *bytes = MAP_FAILED;
    if (!fstat(fd, &info) && S_ISREG(info.st_mode) && info.st_size > 0)
        bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (bytes == MAP_FAILED)
        return 0;
    const char *at = bytes, *end = bytes + info.st_size;
    while (!version && (at = memmem(at, (size_t)(end - at), VERSION_TEXT, strlen(VERSION_TEXT)))) {
        at += strlen(VERSION_TEXT);
        if (at < end && isdigit((unsigned char)*at))
            version = version_parse(at, end);
    }
    munmap(bytes, (size_t)info.st_size);
    return version;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* `soname`: as the file itself says. */
static void copy_add(doctor *d, const char *path, const char *soname, int version)
{
    char *real = realpath(path, NULL);
    if (!real)
        real = strdup(path);
    for (size_t i = 0; real && i < d->ncopies; i++)
        if (!strcmp(d->copies[i].path, real)) {
            free(real);
            return;
        }
    doctor_nccl_copy *grown = reallocarray(d->copies, d->ncopies + 1, sizeof *grown);
    if (grown)
        d->copies = grown;
    if (!grown || !real) {
        d->no_memory = true;
        free(real);
        return;
    }
    bool host = elf_is_host(real) || elf_is_host(soname);
    grown[d->ncopies++] = (doctor_nccl_copy){
        .path = real,
        .version = version,
        .host = host,
        .embedded = !host && strncmp(base_name(path), "libnccl", strlen("libnccl")) != 0};
}

/* What the loader would give to a program. A library that loads tells its version itself. */
static void copy_load(doctor *d, const char *name)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        if (strchr(name, '/') || !strstr(why ? why : "", "No such file"))
            doctor_note(d, CHECK, DOCTOR_FAIL, "install NCCL, or correct the path",
                        "%s cannot be loaded: %s", name, why ? why : "?");
        return;
    }
    struct link_map *map = NULL;
    int version = 0;
    int (*get_version)(int *) = NULL;
    *(void **)&get_version = dlsym(library, "ncclGetVersion");
    if (get_version && get_version(&version))
        version = 0;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map))
        return;
    elf_file file;
    elf_look(map->l_name, &file);
    copy_add(d, map->l_name, file.soname, version);
}

/* Files that can have NCCL in them: those with such names are read to the end, which takes time. */
static bool worth_reading(const char *path)
{
    static const char *const parts[] = {"nccl", "torch", "tensorflow", "xla", "paddle", NULL};
    const char *name = base_name(path);
    for (const char *const *part = parts; *part; part++)
        if (strstr(name, *part))
            return true;
    return !strstr(name, ".so");
}

/* The loader takes a function from the first library in this order that has it. */
static void order_judge(doctor *d, const char *path, const elf_file *file)
{
    if (file->shim_late)
        doctor_note(d, "link order", DOCTOR_FAIL,
                    "link with -lbrigade-shim before -lnccl or -lbrigade-host",
                    "%s names %s before libbrigade-shim, which, unless it is preloaded, thus sees "
                    "nothing of its calls",
                    path, file->nccl);
}

/* The file that the user has named. */
static void binary_look(doctor *d, const char *binary)
{
    elf_file file;
    int version = doctor_nccl_version(binary);
    elf_kind kind = elf_look(binary, &file);
    if (kind == ELF_UNREADABLE)
        doctor_note(d, CHECK, DOCTOR_FAIL, "name a file that can be read", "%s cannot be read: %s",
                    binary, strerror(errno));
    else if (kind == ELF_OTHER && !file.archive)
        doctor_note(d, CHECK, DOCTOR_FAIL,
                    "name the program itself (of a script: its interpreter), or a library",
                    "%s is not an ELF file of this machine: neither a program nor a library",
                    binary);
    else if (version || elf_is_host(file.soname))
        copy_add(d, binary, file.soname, version);
    else if (file.nccl[0])
        doctor_note(d, CHECK, DOCTOR_PASS, NULL, "%s is linked with %s%s", binary, file.nccl,
                    elf_is_host(file.nccl) ? HOST_TEXT : "");
    else
        doctor_note(d, CHECK, DOCTOR_PASS, NULL, "%s has no NCCL linked in", binary);
    if (kind == ELF_DYNAMIC)
        order_judge(d, binary, &file);
}

static void copies_collect(doctor *d, const char *binary)
{
    if (binary)
        binary_look(d, binary);
    for (size_t i = 0; i < d->nmapped; i++) {
        int version = worth_reading(d->mapped[i]) ? doctor_nccl_version(d->mapped[i]) : 0;
        elf_file file;
        elf_kind kind = elf_look(d->mapped[i], &file);
        if (version || elf_is_nccl(d->mapped[i]))
            copy_add(d, d->mapped[i], file.soname, version);
        if (kind == ELF_DYNAMIC)
            order_judge(d, d->mapped[i], &file);
    }
    const char *wanted = getenv("BRIGADE_NCCL");
    if (wanted && *wanted)
        copy_load(d, wanted);
    else if (!d->ncopies && !d->mapped)
        copy_load(d, "libnccl.so.2");
}

static void copy_judge(doctor *d, const doctor_nccl_copy *copy)
{
    char version[32] = "of unknown version";
    int v = copy->version;
    if (v)
        snprintf(version, sizeof version, "%d.%d.%d", v / 10000, v / 100 % 100, v % 100);
    if (copy->host)
        doctor_note(d, CHECK, DOCTOR_PASS, NULL, "%s is Brigade's own%s", copy->path, HOST_TEXT);
    else if (v && v < OLDEST)
        doctor_note(d, CHECK, DOCTOR_FAIL, "install NCCL 2.19 or later", "%s is %s", copy->path,
                    version);
    else if (v >= 22803 && v < 22807)
        doctor_note(d, CHECK, DOCTOR_FAIL, "install NCCL 2.28.9 or later",
                    "%s is %s, which corrupts data in symmetric kernels of sizes below 8-byte "
                    "granularity or aggregated in a group, and leaves a CUDA error behind when "
                    "linked into PyTorch",
                    copy->path, version);
    else if (v >= 22807 && v < 22809)
        doctor_note(d, CHECK, DOCTOR_WARN, "install NCCL 2.28.9 or later",
                    "%s is %s, in which main and proxy thread can hang at scale", copy->path,
                    version);
    else
        doctor_note(d, CHECK, v ? DOCTOR_PASS : DOCTOR_WARN,
                    v ? NULL : "make sure that this is NVIDIA's NCCL", "%s is %s", copy->path,
                    version);
    if (copy->embedded)
        doctor_note(d, "static NCCL", DOCTOR_WARN,
                    "use a build that links libnccl.so.2, or link with brigade at build time",
                    "%s has NCCL linked in: what is preloaded may not see its calls", copy->path);
}

void doctor_nccl(doctor *d, const char *binary)
{
    copies_collect(d, binary);
    for (size_t i = 0; i < d->ncopies; i++)
        copy_judge(d, &d->copies[i]);
    if (d->ncopies > 1)
        doctor_note(d, "NCCL copies", DOCTOR_WARN, "make everything use one libnccl.so.2",
                    "%zu copies: a group begun in one does not hold back calls of another",
                    d->ncopies);
    if (!d->ncopies)
        doctor_note(d, CHECK, DOCTOR_ABSENT, NULL, "%s",
                    d->mapped ? "the command has loaded no NCCL"
                              : "the loader finds no libnccl.so.2");
}
