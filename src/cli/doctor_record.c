/* Records of installed Python packages: see doctor_record.h.
 *
 * RECORD is CSV: path,hash,size, a path with a comma in quotes. Hashes are not kept: they are not checked.
 * A package whose METADATA cannot be read keeps the name of its folder. */
#include "cli/doctor_record.h"
#include "core/arena.h"
#include "core/file.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

static int has_packages(const char *dir) {
    char **names;
    int n, found = 0;
    if (file_list(dir, &names, &n)) {
        err_clear();
        return 0;
    }
    for (int i = 0; i < n && !found; i++) found = ends_with(names[i], ".dist-info");
    file_names_free(names, n);
    return found;
}

static void add_sites(const char *lib, char (*sites)[512], int cap, int *n) {
    char **names;
    int count;
    if (file_list(lib, &names, &count)) {
        err_clear();
        return;
    }
    for (int i = 0; i < count && *n < cap; i++) {
        int len = strncmp(names[i], "python", 6)
                      ? -1
                      : snprintf(sites[*n], 512, "%s/%s/site-packages", lib, names[i]);
        if (len > 0 && len < 512 && has_packages(sites[*n])) (*n)++;
    }
    file_names_free(names, count);
}

err doctor_record_sites(const char *dir, char (*sites)[512], int cap, int *n) {
    char lib[512];
    *n = 0;
    if (!file_is_dir(dir)) return err_set(ERR_IO, "%s is no folder: --python takes one", dir);
    if (has_packages(dir)) {
        if (snprintf(sites[0], 512, "%s", dir) < 512) *n = 1;
    } else {
        TRY(file_join(lib, sizeof lib, dir, "lib"));
        add_sites(lib, sites, cap, n);
        TRY(file_join(lib, sizeof lib, dir, "lib64"));
        if (!*n) add_sites(lib, sites, cap, n);
    }
    if (*n) return ERR_OK;
    return err_set(ERR_IO,
                   "%s holds no installed packages: give the root of a Python environment, or its "
                   "site-packages folder",
                   dir);
}

static void tidy(char *name) {
    for (; *name; name++) *name = *name == '_' ? '-' : (char)tolower((unsigned char)*name);
}

/* The value of a header line "Key: value" before the first empty line. */
static void header(const char *text, const char *key, char *out, size_t n) {
    size_t k = strlen(key);
    for (const char *line = text; line && *line && *line != '\n' && *line != '\r';) {
        if (!strncmp(line, key, k)) {
            size_t len = strcspn(line + k, "\r\n");
            if (len && len < n) snprintf(out, n, "%.*s", (int)len, line + k);
            return;
        }
        line = strchr(line, '\n');
        if (line) line++;
    }
}

static int wanted(const char *info) {
    char name[256];
    snprintf(name, sizeof name, "%s", info);
    tidy(name);
    return ends_with(name, ".dist-info") &&
           (!strncmp(name, "nvidia-", 7) || !strncmp(name, "torch-", 6) ||
            !strncmp(name, "triton-", 7));
}

static void name_package(record_package *p, const char *site, const char *info) {
    char path[1024], *text;
    size_t size, stem = strcspn(info, "-"), rest = strlen(info) - strlen(".dist-info");
    snprintf(p->name, sizeof p->name, "%.*s", (int)stem, info);
    if (stem < rest)
        snprintf(p->version, sizeof p->version, "%.*s", (int)(rest - stem - 1), info + stem + 1);
    snprintf(path, sizeof path, "%s/%s/METADATA", site, info);
    if (file_read(path, &text, &size)) {
        err_clear();
    } else {
        header(text, "Name: ", p->name, sizeof p->name);
        header(text, "Version: ", p->version, sizeof p->version);
        mem_free(text);
    }
    tidy(p->name);
}

/* libNAME.so, NAME.so.12.1: by the last part of the path. */
static int is_library(const char *path) {
    const char *name = strrchr(path, '/'), *so;
    so = strstr(name ? name : path, ".so");
    return so && (!so[3] || so[3] == '.') && !ends_with(path, ".py");
}

/* Cuts one line of RECORD in place; path "" when there is none. */
static void cut_line(char *line, record_file *f) {
    char *path = line, *end, *size;
    if (*line == '"') {
        path = ++line;
        end = strchr(line, '"');
        if (end) *end++ = 0;
    } else {
        end = strchr(line, ',');
    }
    f->size = -1;
    f->path = path;
    if (!end) return;
    size = strrchr(end, ',');
    if (size && isdigit((unsigned char)size[1])) f->size = strtoll(size + 1, NULL, 10);
    *end = 0;
}

static err read_files(doctor_record *r, int package) {
    char *save = NULL, *text = r->packages[package].text;
    for (char *line = strtok_r(text, "\r\n", &save); line; line = strtok_r(NULL, "\r\n", &save)) {
        TRY(mem_grow(&r->files, &r->cap_files, r->n_files + 1, sizeof *r->files));
        record_file *f = &r->files[r->n_files];
        cut_line(line, f);
        f->package = package;
        f->library = is_library(f->path);
        r->n_files += *f->path != 0;
    }
    return ERR_OK;
}

static err read_package(doctor_record *r, const char *info) {
    char path[1024];
    size_t size;
    TRY(mem_grow(&r->packages, &r->cap_packages, r->n_packages + 1, sizeof *r->packages));
    record_package *p = &r->packages[r->n_packages++];
    memset(p, 0, sizeof *p);
    name_package(p, r->dir, info);
    snprintf(path, sizeof path, "%s/%s/RECORD", r->dir, info);
    if (file_read(path, &p->text, &size)) {
        err_clear();
        p->text = NULL;
        return ERR_OK;
    }
    return read_files(r, (int)r->n_packages - 1);
}

err doctor_record_read(doctor_record *r, const char *site) {
    char **names;
    int n;
    err e = ERR_OK;
    memset(r, 0, sizeof *r);
    snprintf(r->dir, sizeof r->dir, "%s", site);
    TRY(file_list(site, &names, &n));
    for (int i = 0; i < n && !e; i++)
        if (wanted(names[i])) e = read_package(r, names[i]);
    file_names_free(names, n);
    if (e) doctor_record_free(r);
    return e;
}

void doctor_record_free(doctor_record *r) {
    for (size_t i = 0; i < r->n_packages; i++) mem_free(r->packages[i].text);
    mem_free(r->packages);
    mem_free(r->files);
    memset(r, 0, sizeof *r);
}
