/* ELF headers and trial openings of shared libraries: see elf_probe.h.
 *
 * Every offset of a file is checked against its size before it is used. Versions are asked for as dev/shared_lib
 * does; a library that is broken is opened in a child and nowhere else. */
#include "cli/elf_probe.h"
#include "cli/child_look.h"
#include "core/file.h"
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
enum { THIS_MACHINE = EM_X86_64 };
#elif defined(__aarch64__)
enum { THIS_MACHINE = EM_AARCH64 };
#else
enum { THIS_MACHINE = EM_NONE };
#endif

/* n bytes at offset copied out, or 0 when the file does not have them. */
static int take(const file_map *m, uint64_t offset, void *out, size_t n) {
    if (offset > m->size || n > m->size - offset) return 0;
    memcpy(out, m->data + offset, n);
    return 1;
}

/* File offset of a virtual address, by the loadable segments. */
static int to_offset(const file_map *m, const Elf64_Ehdr *h, uint64_t address, uint64_t *out) {
    Elf64_Phdr p;
    for (int i = 0; i < h->e_phnum; i++) {
        if (!take(m, h->e_phoff + (uint64_t)i * sizeof p, &p, sizeof p)) return 0;
        if (p.p_type != PT_LOAD || address < p.p_vaddr || address - p.p_vaddr >= p.p_filesz)
            continue;
        *out = p.p_offset + (address - p.p_vaddr);
        return 1;
    }
    return 0;
}

static void read_soname(const file_map *m, const Elf64_Ehdr *h, const Elf64_Phdr *dynamic,
                        elf_probe *out) {
    Elf64_Dyn d;
    uint64_t name = 0, table = 0, at;
    int has_name = 0;
    for (uint64_t i = 0; i < dynamic->p_filesz / sizeof d; i++) {
        if (!take(m, dynamic->p_offset + i * sizeof d, &d, sizeof d) || d.d_tag == DT_NULL) break;
        if (d.d_tag == DT_SONAME) name = d.d_un.d_val, has_name = 1;
        if (d.d_tag == DT_STRTAB) table = d.d_un.d_ptr;
    }
    if (!has_name || !to_offset(m, h, table, &at)) return;
    for (size_t i = 0; i + 1 < sizeof out->soname; i++) {
        if (!take(m, at + name + i, &out->soname[i], 1)) {
            out->soname[0] = 0;
            return;
        }
        if (!out->soname[i]) return;
    }
}

static void read_header(const file_map *m, elf_probe *out) {
    Elf64_Ehdr h;
    Elf64_Phdr p;
    int loads = 0;
    if (!take(m, 0, &h, sizeof h) || memcmp(h.e_ident, ELFMAG, SELFMAG)) {
        snprintf(out->fault, sizeof out->fault, "is no ELF file");
        return;
    }
    if (h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_type != ET_DYN ||
        (THIS_MACHINE != EM_NONE && h.e_machine != THIS_MACHINE)) {
        snprintf(out->fault, sizeof out->fault, "is no shared library for this machine");
        return;
    }
    for (int i = 0; i < h.e_phnum; i++) {
        if (!take(m, h.e_phoff + (uint64_t)i * sizeof p, &p, sizeof p) ||
            (p.p_type == PT_LOAD && (p.p_offset > m->size || p.p_filesz > m->size - p.p_offset))) {
            snprintf(out->fault, sizeof out->fault, "is cut short");
            return;
        }
        loads += p.p_type == PT_LOAD;
        if (p.p_type == PT_DYNAMIC) read_soname(m, &h, &p, out);
    }
    if (!loads) snprintf(out->fault, sizeof out->fault, "holds nothing to load");
}

err elf_probe_read(const char *path, elf_probe *out) {
    file_map m;
    memset(out, 0, sizeof *out);
    TRY(file_map_open(&m, path));
    read_header(&m, out);
    file_map_close(&m);
    return ERR_OK;
}

typedef struct question {
    const char *name, *symbol;
    shared_lib_call how;
} question;

/* In the child. */
static void answer(void *ctx, void *out) {
    const question *q = ctx;
    elf_probe_result *r = out;
    struct link_map *map = NULL;
    int n;
    r->resident = dlopen(q->name, RTLD_LAZY | RTLD_NOLOAD) != NULL;
    void *h = dlopen(q->name, RTLD_LAZY | RTLD_LOCAL);
    if (!h) {
        const char *why = dlerror();
        size_t length = strlen(q->name);
        snprintf(r->fault, sizeof r->fault, "%s", why ? why : "cannot be opened");
        r->absent = !strncmp(r->fault, q->name, length) &&
                    strstr(r->fault + length, ": cannot open shared object file: No such file") ==
                        r->fault + length;
        return;
    }
    if (!dlinfo(h, RTLD_DI_LINKMAP, &map) && map)
        snprintf(r->path, sizeof r->path, "%s", map->l_name);
    r->from_env = shared_lib_search_entry(r->path, &n) != NULL;
    if (shared_lib_ask(h, q->symbol, q->how, r->version, sizeof r->version))
        snprintf(r->fault, sizeof r->fault, "%s", err_text());
}

void elf_probe_open(const char *name, const char *symbol, shared_lib_call how,
                    elf_probe_result *out) {
    question q = {name, symbol, how};
    char fault[160];
    child_look(answer, &q, out, sizeof *out, fault);
    if (fault[0]) snprintf(out->fault, sizeof out->fault, "opening it %s", fault);
}
