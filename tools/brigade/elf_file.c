/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/brigade/elf_file.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ARCHIVE_MAGIC "!<arch>\n"

typedef struct image {
    const unsigned char *at;
    size_t bytes;
} image;

static bool begins(const char *name, const char *with)
{
    const char *slash = strrchr(name, '/');
    return !strncmp(slash ? slash + 1 : name, with, strlen(with));
}

bool elf_is_host(const char *name)
{
    return begins(name, "libbrigade-host.so");
}

bool elf_is_nccl(const char *name)
{
    return begins(name, "libnccl.so") || elf_is_host(name);
}

/* Copied, since nothing need be aligned in a broken file. */
static bool take(const image *m, uint64_t offset, void *to, size_t bytes)
{
    if (offset > m->bytes || bytes > m->bytes - offset)
        return false;
    memcpy(to, m->at + offset, bytes);
    return true;
}

static bool header_of(const image *m, uint64_t index, ElfW(Phdr) * header)
{
    ElfW(Ehdr) elf;
    return take(m, 0, &elf, sizeof elf) && index < elf.e_phnum &&
           take(m, elf.e_phoff + index * sizeof *header, header, sizeof *header);
}

/* Where in the file the loaded address lies. */
static bool offset_of(const image *m, uint64_t address, uint64_t *offset)
{
    ElfW(Phdr) header;
    for (uint64_t i = 0; header_of(m, i, &header); i++) {
        if (header.p_type != PT_LOAD || address < header.p_vaddr ||
            address - header.p_vaddr >= header.p_filesz)
            continue;
        *offset = header.p_offset + (address - header.p_vaddr);
        return true;
    }
    return false;
}

static bool entry_of(const image *m, const ElfW(Phdr) * dynamic, uint64_t index, ElfW(Dyn) * entry)
{
    return index < dynamic->p_filesz / sizeof *entry &&
           take(m, dynamic->p_offset + index * sizeof *entry, entry, sizeof *entry) &&
           entry->d_tag != DT_NULL;
}

static void string_copy(const image *m, uint64_t at, char *to, size_t size)
{
    size_t used = 0;
    for (; at < m->bytes && m->at[at] && used + 1 < size; at++)
        to[used++] = (char)m->at[at];
    to[used] = 0;
}

static void dynamic_read(const image *m, const ElfW(Phdr) * dynamic, elf_file *file)
{
    ElfW(Dyn) entry;
    uint64_t strings = 0;
    bool found = false;
    for (uint64_t i = 0; !found && entry_of(m, dynamic, i, &entry); i++)
        found = entry.d_tag == DT_STRTAB && offset_of(m, entry.d_un.d_ptr, &strings);
    for (uint64_t i = 0; found && entry_of(m, dynamic, i, &entry); i++) {
        char name[sizeof file->nccl];
        if (entry.d_tag != DT_NEEDED && entry.d_tag != DT_SONAME)
            continue;
        string_copy(m, strings + entry.d_un.d_val, name, sizeof name);
        if (entry.d_tag == DT_SONAME) {
            memcpy(file->soname, name, sizeof name);
        } else if (begins(name, "libbrigade-shim.so")) {
            file->shim = true;
            file->shim_late = file->nccl[0];
        } else if (elf_is_nccl(name) && !file->nccl[0]) {
            memcpy(file->nccl, name, sizeof name);
        }
    }
}

static elf_kind image_read(const image *m, elf_file *file)
{
    ElfW(Ehdr) elf;
    ElfW(Phdr) header;
    const unsigned char word_size = sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32;
    file->archive =
        m->bytes >= strlen(ARCHIVE_MAGIC) && !memcmp(m->at, ARCHIVE_MAGIC, strlen(ARCHIVE_MAGIC));
    if (!take(m, 0, &elf, sizeof elf) || memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0 ||
        elf.e_ident[EI_CLASS] != word_size)
        return ELF_OTHER;
    for (uint64_t i = 0; header_of(m, i, &header); i++) {
        if (header.p_type != PT_DYNAMIC)
            continue;
        dynamic_read(m, &header, file);
        return ELF_DYNAMIC;
    }
    return ELF_STATIC;
}

elf_kind elf_look(const char *path, elf_file *file)
{
    struct stat info;
    *file = (elf_file){.kind = ELF_UNREADABLE};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return file->kind;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0) {
        void *at = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        const image m = {at, (size_t)info.st_size};
        if (at != MAP_FAILED) {
            file->kind = image_read(&m, file);
            munmap(at, m.bytes);
        }
    } else {
        file->kind = ELF_OTHER;
    }
    int error = errno;
    close(fd);
    errno = error;
    return file->kind;
}
