/* Opening libraries by name, asking their version, resolving symbols: see shared_lib.h.
 *
 * The search is the loader's: LD_LIBRARY_PATH, its cache, the system's folders; a name with a slash is a path. When
 * no name leads anywhere the first name's reason is told, since later names are older generations. */
#include "dev/shared_lib.h"
#include "core/env.h"
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int shared_lib_compare(const char *a, const char *b) {
    while (*a >= '0' && *a <= '9' && *b >= '0' && *b <= '9') {
        char *end_a, *end_b;
        long x = strtol(a, &end_a, 10), y = strtol(b, &end_b, 10);
        if (x != y) return x < y ? -1 : 1;
        if (*end_a != '.' || *end_b != '.') return 0;
        a = end_a + 1, b = end_b + 1;
    }
    return 0;
}

typedef union function {
    void *p;
    int (*one)(int *);
    int (*pair)(int *, int *);
    size_t (*size)(void);
    int (*part)(int, int *);
    const char *(*text)(void);
    int (*buffer)(char *, unsigned);
} function;

/* Calls the symbol; 0 when it reports a failure. */
static int call(function f, shared_lib_call how, char *out, size_t n) {
    int a = 0, b = 0, c = 0;
    char text[128] = "";
    switch (how) {
    case SHARED_LIB_OPEN:
    case SHARED_LIB_LOOKUP: return 1;
    case SHARED_LIB_CUDA:
        if (f.one(&a)) return 0;
        snprintf(out, n, "%d.%d", a / 1000, a % 1000 / 10);
        return 1;
    case SHARED_LIB_NCCL:
        if (f.one(&a)) return 0;
        if (a < 10000) /* before 2.9 the minor number had one digit less */
            snprintf(out, n, "%d.%d.%d", a / 1000, a / 100 % 10, a % 100);
        else
            snprintf(out, n, "%d.%d.%d", a / 10000, a / 100 % 100, a % 100);
        return 1;
    case SHARED_LIB_PAIR:
        if (f.pair(&a, &b)) return 0;
        snprintf(out, n, "%d.%d", a, b);
        return 1;
    case SHARED_LIB_SIZE: {
        size_t v = f.size();
        snprintf(out, n, "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
        return 1;
    }
    case SHARED_LIB_TRIPLE:
        if (f.part(0, &a) || f.part(1, &b) || f.part(2, &c)) return 0;
        snprintf(out, n, "%d.%d.%d", a, b, c);
        return 1;
    case SHARED_LIB_TEXT: {
        const char *told = f.text();
        if (told) snprintf(out, n, "%s", told);
        return told != NULL;
    }
    case SHARED_LIB_BUFFER:
        if (f.buffer(text, sizeof text)) return 0;
        snprintf(out, n, "%.*s", (int)sizeof text - 1, text);
        return 1;
    }
    return 0;
}

err shared_lib_ask(void *handle, const char *symbol, shared_lib_call how, char *version, size_t n) {
    version[0] = 0;
    if (how == SHARED_LIB_OPEN || !symbol) return ERR_OK;
    function f = {.p = dlsym(handle, symbol)};
    if (!f.p) return err_set(ERR_REFUSED, "it has no symbol %s", symbol);
    if (!call(f, how, version, n)) return err_set(ERR_REFUSED, "%s reports a failure", symbol);
    return ERR_OK;
}

const char *shared_lib_search_entry(const char *path, int *n) {
    const char *list = env_library_path(), *slash = strrchr(path, '/');
    char dir[PATH_MAX];
    struct stat a, b;
    *n = 0;
    if (!list || !slash) return NULL;
    snprintf(dir, sizeof dir, "%.*s/", (int)(slash - path), path);
    if (stat(dir, &a)) return NULL;
    for (;; list++) { /* ':' and ';' part, and "" is the working folder */
        size_t length = strcspn(list, ":;");
        snprintf(dir, sizeof dir, "%.*s", length ? (int)length : 1, length ? list : ".");
        if (!stat(dir, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino) {
            *n = (int)length;
            return list;
        }
        list += length;
        if (!*list) return NULL;
    }
}

err shared_lib_check_version(const shared_lib_spec *spec, const char *path, const char *version) {
    if (!spec->minimum || !version[0] || shared_lib_compare(version, spec->minimum) >= 0)
        return ERR_OK;
    int n;
    const char *entry = shared_lib_search_entry(path, &n);
    return err_set(ERR_REFUSED,
                   "%s %s at %s is older than %s, the oldest that serves; %s%.*s%sinstall %s",
                   spec->name, version, path, spec->minimum, entry ? "take " : "", n,
                   entry ? entry : "", entry ? " out of LD_LIBRARY_PATH, or " : "", spec->source);
}

typedef struct place {
    uintptr_t address;
    char *build;
    size_t size;
} place;

/* The note NT_GNU_BUILD_ID of one segment of notes, as hex. */
static void read_notes(const char *at, size_t size, place *p) {
    while (size >= sizeof(ElfW(Nhdr))) {
        ElfW(Nhdr) h;
        memcpy(&h, at, sizeof h);
        size_t name = (h.n_namesz + 3u) & ~3u, body = (h.n_descsz + 3u) & ~3u;
        if (name + body > size - sizeof h) return;
        if (h.n_type == NT_GNU_BUILD_ID && h.n_namesz == 4 && !memcmp(at + sizeof h, "GNU", 4)) {
            const char *id = at + sizeof h + name;
            for (size_t i = 0; i < h.n_descsz && 2 * i + 3 <= p->size; i++)
                snprintf(p->build + 2 * i, 3, "%02x", (unsigned char)id[i]);
            return;
        }
        at += sizeof h + name + body;
        size -= sizeof h + name + body;
    }
}

static int visit(struct dl_phdr_info *info, size_t size, void *ctx) {
    place *p = ctx;
    int inside = 0;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum && !inside; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + h->p_vaddr;
        inside = h->p_type == PT_LOAD && p->address >= start && p->address - start < h->p_memsz;
    }
    for (int i = 0; inside && i < info->dlpi_phnum && !p->build[0]; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        if (h->p_type == PT_NOTE)
            read_notes((const char *)(info->dlpi_addr + h->p_vaddr), h->p_memsz, p);
    }
    return inside;
}

void shared_lib_locate(const void *address, char *path, size_t n, char *build, size_t nb) {
    Dl_info info;
    place p = {.address = (uintptr_t)address, .build = build, .size = nb};
    path[0] = build[0] = 0;
    if (dladdr(address, &info) && info.dli_fname) snprintf(path, n, "%s", info.dli_fname);
    dl_iterate_phdr(visit, &p);
}

/* Opens the first name that leads to a file that can be loaded. *found: some name led to a file. */
static err open_first(shared_lib *out, const shared_lib_spec *spec) {
    char why[512] = "";
    for (int i = 0; spec->files[i]; i++) {
        out->handle = dlopen(spec->files[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (out->handle) return ERR_OK;
        const char *text = dlerror();
        size_t n = strlen(spec->files[i]);
        int absent = text && !strncmp(text, spec->files[i], n) &&
                     !strncmp(text + n, ": cannot open shared object file: No such file", 45);
        if (text && !absent) /* broken, or a library of its own is missing: said, not passed over */
            return err_set(ERR_REFUSED, "%s cannot be opened: %s; mend it, or install %s",
                           spec->name, text, spec->source);
        if (!why[0]) snprintf(why, sizeof why, "%s", spec->files[i]);
    }
    return err_set(ERR_IO, "%s is not on this machine (no %s); install %s", spec->name, why,
                   spec->source);
}

/* The path as the loader has it, for a handle. */
static void locate_handle(shared_lib *l) {
    struct link_map *map = NULL;
    char found[PATH_MAX];
    if (dlinfo(l->handle, RTLD_DI_LINKMAP, &map) || !map) return;
    shared_lib_locate((const void *)map->l_ld, found, sizeof found, l->build, sizeof l->build);
    snprintf(l->path, sizeof l->path, "%s", map->l_name && *map->l_name ? map->l_name : found);
}

err shared_lib_open(shared_lib *out, const shared_lib_spec *spec) {
    memset(out, 0, sizeof *out);
    out->spec = spec;
    TRY(open_first(out, spec));
    locate_handle(out);
    err e = shared_lib_ask(out->handle, spec->symbol, spec->how, out->version, sizeof out->version);
    if (e)
        e = err_context(e, "%s at %s cannot be used (install %s): ", spec->name, out->path,
                        spec->source);
    if (!e) e = shared_lib_check_version(spec, out->path, out->version);
    if (e) shared_lib_close(out);
    return e;
}

void shared_lib_close(shared_lib *l) {
    if (l->handle) dlclose(l->handle);
    memset(l, 0, sizeof *l);
}

err shared_lib_symbols(const shared_lib *l, const shared_lib_symbol *table, int n) {
    for (int i = 0; i < n; i++) {
        void *p = dlsym(l->handle, table[i].name);
        if (!p && !table[i].optional)
            return err_set(ERR_REFUSED, "%s %s at %s has no %s; install %s", l->spec->name,
                           l->version[0] ? l->version : "of unknown version", l->path,
                           table[i].name, l->spec->source);
        memcpy(table[i].into, &p, sizeof p);
    }
    return ERR_OK;
}
