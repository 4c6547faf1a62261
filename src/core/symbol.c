/* Names of code addresses: the program's ELF symbol table, and dladdr for libraries.
 *
 * The file is mapped while the table is open; every offset of it is checked before use, since a file that was replaced while the
 * program runs may hold anything. Such a file gives wrong or no names, never a fault. No line numbers: addr2line knows them. */
#include "core/symbol.h"
#include "core/arena.h"
#include "core/file.h"
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

struct symbol_table {
    file_map file;
    const ElfW(Sym) * symbols; /* NULL: none */
    size_t n;
    const char *names;
    size_t names_size;
    uintptr_t base; /* where the program was loaded */
};

/* A section's bytes, or NULL when they do not lie inside the file. */
static const void *section(const file_map *f, const ElfW(Shdr) * s) {
    if (s->sh_type == SHT_NOBITS || s->sh_offset > f->size || s->sh_size > f->size - s->sh_offset)
        return NULL;
    return f->data + s->sh_offset;
}

static void find_symbols(symbol_table *t) {
    const file_map *f = &t->file;
    const ElfW(Ehdr) *head = (const void *)f->data;
    if (f->size < sizeof *head || memcmp(head->e_ident, ELFMAG, SELFMAG) != 0) return;
    if (head->e_shentsize != sizeof(ElfW(Shdr)) || head->e_shoff > f->size ||
        head->e_shoff % sizeof(void *) ||
        head->e_shnum > (f->size - head->e_shoff) / sizeof(ElfW(Shdr)))
        return;
    const ElfW(Shdr) *sections = (const void *)(f->data + head->e_shoff);
    for (int i = 0; i < head->e_shnum; i++) {
        const ElfW(Shdr) *s = &sections[i];
        if (s->sh_type != SHT_SYMTAB || s->sh_link >= head->e_shnum ||
            s->sh_offset % sizeof(void *))
            continue;
        const ElfW(Sym) *symbols = section(f, s);
        const char *names = section(f, &sections[s->sh_link]);
        const size_t size = sections[s->sh_link].sh_size;
        if (!symbols || !names || !size || names[size - 1]) continue;
        t->symbols = symbols;
        t->n = s->sh_size / sizeof *symbols;
        t->names = names;
        t->names_size = size;
        return;
    }
}

err symbol_open(symbol_table **out) {
    *out = NULL;
    symbol_table *t;
    Dl_info self;
    TRY(mem_new(1, sizeof *t, &t));
    t->file.fd = -1;
    if (dladdr((void *)(uintptr_t)symbol_open, &self)) t->base = (uintptr_t)self.dli_fbase;
    if (file_map_open(&t->file, "/proc/self/exe") == ERR_OK) {
        const ElfW(Ehdr) *head = (const void *)t->file.data;
        find_symbols(t);
        /* A program at a fixed place has addresses in its table, a movable one distances. */
        if (t->symbols && head->e_type == ET_EXEC) t->base = 0;
    }
    *out = t;
    return ERR_OK;
}

void symbol_close(symbol_table *t) {
    if (!t) return;
    file_map_close(&t->file);
    mem_free(t);
}

static const char *own_name(const symbol_table *t, uintptr_t address, uintptr_t *start) {
    for (size_t i = 0; i < t->n; i++) {
        const ElfW(Sym) *s = &t->symbols[i];
        const uintptr_t from = t->base + s->st_value;
        if ((s->st_info & 15) != STT_FUNC || !s->st_value || s->st_name >= t->names_size) continue;
        if (address < from || address - from >= s->st_size) continue;
        *start = from;
        return t->names + s->st_name;
    }
    return NULL;
}

const char *symbol_text(const symbol_table *t, uintptr_t address, char buf[SYMBOL_TEXT]) {
    Dl_info info = {0};
    uintptr_t start = 0;
    const int known = dladdr((void *)address, &info);
    const char *name = own_name(t, address, &start);
    if (!name && known && info.dli_sname) {
        name = info.dli_sname;
        start = (uintptr_t)info.dli_saddr;
    }
    const char *file = known && info.dli_fname ? info.dli_fname : "";
    const char *slash = strrchr(file, '/');
    if (slash) file = slash + 1;
    char place[120];
    if (*file)
        snprintf(place, sizeof place, "%.80s+0x%zx", file,
                 (size_t)(address - (uintptr_t)info.dli_fbase));
    else
        snprintf(place, sizeof place, "0x%zx", (size_t)address);
    if (name)
        snprintf(buf, SYMBOL_TEXT, "%.150s+0x%zx (%s)", name, (size_t)(address - start), place);
    else
        snprintf(buf, SYMBOL_TEXT, "%s", place);
    return buf;
}
