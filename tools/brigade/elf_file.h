/* SPDX-License-Identifier: Apache-2.0 */
/* What the dynamic loader reads of a program or library: its own name and those that it asks for.
 */
#ifndef BRIGADE_TOOLS_ELF_FILE_H
#define BRIGADE_TOOLS_ELF_FILE_H

#include <stdbool.h>

typedef enum elf_kind {
    ELF_UNREADABLE, /* errno says why */
    ELF_OTHER,      /* no ELF file of this machine's word size */
    ELF_STATIC,     /* asks the loader for nothing */
    ELF_DYNAMIC,
} elf_kind;

typedef struct elf_file {
    elf_kind kind;
    bool archive;    /* ELF_OTHER: an archive of objects, libX.a */
    char soname[64]; /* DT_SONAME; "": none */
    char nccl[64];   /* the first NCCL in DT_NEEDED, libbrigade-host counted; "": none */
    bool shim;       /* libbrigade-shim is in DT_NEEDED */
    bool shim_late;  /* and comes after `nccl`: the loader finds NCCL's functions first */
} elf_file;

elf_kind elf_look(const char *path, elf_file *file);

/* By a file's or a DT_SONAME's last part: libnccl.so*, libbrigade-host.so*. */
bool elf_is_nccl(const char *name);
bool elf_is_host(const char *name);

#endif
