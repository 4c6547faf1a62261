/* Libraries of the link line, looked at from inside: see linked.h.
 *
 * Versions come from one call each, paths from the address of that call. Functions are bound when first called (the
 * Makefile links so), which lets linked_check name a file that lacks one instead of the loader's bare symbol. */
#include "cli/linked.h"
#include "core/env.h"
#include <dlfcn.h>
#include <jansson.h>
#include <link.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <png.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include <zstd.h>

#define TEXT_OF(x)       #x
#define NUMBER(x)        TEXT_OF(x)
#define DOTTED2(a, b)    NUMBER(a) "." NUMBER(b)
#define DOTTED3(a, b, c) DOTTED2(a, b) "." NUMBER(c)

/* file: how its name begins. prefix: of its functions. minimum: the oldest release that has every call we make. */
static const struct row {
    const char *name, *file, *prefix, *symbol;
    enum { TEXT_CALL, PCRE, PNG } how;
    const char *built, *minimum;
} rows[] = {
    {"jansson", "libjansson", "json", "jansson_version_str", TEXT_CALL, JANSSON_VERSION, "2.11"},
    {"libyaml", "libyaml", "yaml_", "yaml_get_version_string", TEXT_CALL, NULL, "0.1.5"},
    {"PCRE2", "libpcre2-8", "pcre2_", "pcre2_config_8", PCRE, DOTTED2(PCRE2_MAJOR, PCRE2_MINOR),
     "10.30"},
    {"utf8proc", "libutf8proc", "utf8proc_", "utf8proc_version", TEXT_CALL,
     DOTTED3(UTF8PROC_VERSION_MAJOR, UTF8PROC_VERSION_MINOR, UTF8PROC_VERSION_PATCH), "2.2"},
    {"zstd", "libzstd", "ZSTD_", "ZSTD_versionString", TEXT_CALL, ZSTD_VERSION_STRING, "1.4.0"},
    {"libpng", "libpng", "png_", "png_get_libpng_ver", PNG, PNG_LIBPNG_VER_STRING, "1.6.0"},
    {"SQLite", "libsqlite3", "sqlite3_", "sqlite3_libversion", TEXT_CALL, NULL, "3.24"},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

typedef union symbol {
    void *p;
    const char *(*text)(void);
    const char *(*png)(void *);
    int (*pcre)(uint32_t, void *);
} symbol;

static int starts(const char *text, const char *with) { return !strncmp(text, with, strlen(with)); }

static void ask(const struct row *r, symbol s, char *out, size_t n) {
    char text[64] = "";
    const char *told = text;
    if (r->how == PCRE)
        s.pcre(PCRE2_CONFIG_VERSION, text);
    else
        told = r->how == PNG ? s.png(NULL) : s.text();
    snprintf(out, n, "%.*s", told ? (int)strcspn(told, " ") : 0, told ? told : "");
}

static int preloaded(const char *path) {
    const char *list = env_preload();
    return list && strstr(list, path) != NULL;
}

/* The file of a row, by its version call, else by any loaded file with the library's name. */
static int look(const struct row *r, linked_lib *out) {
    char build[SHARED_LIB_BUILD];
    int length;
    symbol s = {.p = dlsym(RTLD_DEFAULT, r->symbol)};
    *out = (linked_lib){.name = r->name, .built = r->built, .minimum = r->minimum};
    if (!s.p) return 0;
    shared_lib_locate(s.p, out->path, sizeof out->path, build, sizeof build);
    ask(r, s, out->version, sizeof out->version);
    out->from_env = preloaded(out->path) || shared_lib_search_entry(out->path, &length) != NULL;
    return 1;
}

int linked_list(linked_lib out[LINKED_MAX]) {
    int n = 0;
    for (int i = 0; i < ROWS; i++) n += look(&rows[i], &out[n]);
    return n;
}

/* "take /x out of LD_LIBRARY_PATH, or " when the file was found there; LD_PRELOAD likewise. */
static const char *way_out(const char *path, char *buf, size_t n) {
    int length;
    const char *entry = shared_lib_search_entry(path, &length);
    buf[0] = 0;
    if (preloaded(path))
        snprintf(buf, n, "take %s out of LD_PRELOAD, or ", path);
    else if (entry)
        snprintf(buf, n, "take %.*s out of LD_LIBRARY_PATH, or ", length, entry);
    return buf;
}

err linked_judge(const linked_lib *l) {
    char way[700];
    if (l->minimum && shared_lib_compare(l->version, l->minimum) < 0)
        return err_set(
            ERR_REFUSED,
            "%s %s at %s is older than %s, the oldest that serves (this program was built "
            "with %s); %sinstall a later one",
            l->name, l->version, l->path, l->minimum, l->built ? l->built : "a later one",
            way_out(l->path, way, sizeof way));
    if (l->built && atoi(l->version) != atoi(l->built))
        return err_set(
            ERR_REFUSED,
            "%s %s at %s is of another generation than the headers that this program was "
            "built with (%s); %sbuild the program anew",
            l->name, l->version, l->path, l->built, way_out(l->path, way, sizeof way));
    return ERR_OK;
}

void linked_note(const linked_lib *l, char *out, size_t n) {
    out[0] = 0;
    if (l->built && shared_lib_compare(l->version, l->built) < 0)
        snprintf(
            out, n,
            "built with the headers of %s and running on the older %s: install %s %s or later, "
            "or build anew",
            l->built, l->version, l->name, l->built);
}

/* The loaded file that a function of this name should come from: by prefix, then by the file's name. */
static const char *home_of(const char *function, const char **name) {
    *name = "a library";
    for (int i = 0; i < ROWS; i++) {
        if (!starts(function, rows[i].prefix)) continue;
        *name = rows[i].name;
        for (const struct link_map *m = _r_debug.r_map; m; m = m->l_next) {
            const char *slash = strrchr(m->l_name, '/');
            if (starts(slash ? slash + 1 : m->l_name, rows[i].file)) return m->l_name;
        }
    }
    return NULL;
}

static err missing(const char *function) {
    char way[700];
    const char *name, *path = home_of(function, &name);
    return err_set(
        ERR_REFUSED,
        "%s at %s has no function %s, which this program calls; %sinstall the library anew", name,
        path ? path : "a place that is not known", function,
        path ? way_out(path, way, sizeof way) : "");
}

/* Every function that the program itself imports must be there. Names of the program's table of procedure links. */
static err check_functions(void) {
    const ElfW(Rela) *links = NULL;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    size_t bytes = 0;
    const struct link_map *own = _r_debug.r_map;
    for (const ElfW(Dyn) *d = own ? own->l_ld : NULL; d && d->d_tag != DT_NULL; d++) {
        if (d->d_tag == DT_JMPREL) links = (const ElfW(Rela) *)d->d_un.d_ptr;
        if (d->d_tag == DT_PLTRELSZ) bytes = d->d_un.d_val;
        if (d->d_tag == DT_SYMTAB) symbols = (const ElfW(Sym) *)d->d_un.d_ptr;
        if (d->d_tag == DT_STRTAB) strings = (const char *)d->d_un.d_ptr;
    }
    if (!links || !symbols || !strings) return ERR_OK;
    for (size_t i = 0; i < bytes / sizeof *links; i++) {
        const ElfW(Sym) *s = &symbols[ELF64_R_SYM(links[i].r_info)];
        const char *function = strings + s->st_name;
        if (s->st_shndx == SHN_UNDEF && ELF64_ST_BIND(s->st_info) != STB_WEAK &&
            !dlsym(RTLD_DEFAULT, function))
            return missing(function);
    }
    return ERR_OK;
}

err linked_check(void) {
    linked_lib found[LINKED_MAX];
    int n = linked_list(found);
    for (int i = 0; i < n; i++) TRY(linked_judge(&found[i]));
    return check_functions();
}

err linked_print(FILE *f, const dev *d) {
    linked_lib found[LINKED_MAX];
    dev *own = NULL;
    if (!d) TRY(dev_open_cpu(&own, &(dev_config){.threads = 1}));
    int n = linked_list(found);
    fprintf(f, "libraries\n");
    for (int i = 0; i < n; i++)
        fprintf(f, "  %-9s %-8s %s\n", found[i].name, found[i].version, found[i].path);
    const char *version = dev_blas_version(d ? d : own);
    fprintf(f, "  %-9s %s%s%s\n", "blas", version, *version ? " " : "", dev_blas_path(d ? d : own));
    dev_close(own);
    return ERR_OK;
}
