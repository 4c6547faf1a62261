/* Libraries as findings and as objects {"name", "path", "version", "built", "minimum", "usable"}: see doctor_libraries.h.
 *
 * A library that is not there is null in "path"; one that a GPU alone would need is no fault on a machine without. */
#include "cli/doctor_libraries.h"
#include "cli/doctor_finding.h"
#include "cli/elf_probe.h"
#include "cli/linked.h"
#include "dev/cuda_libs.h"
#include <stdio.h>
#include <string.h>

static json_t *text_or_null(const char *text) {
    return text && *text ? json_string(text) : json_null();
}

static void add(json_t *libraries, const char *name, const char *path, const char *version,
                const char *built, const char *minimum, int usable) {
    json_t *o = json_object();
    json_object_set_new(o, "name", json_string(name));
    json_object_set_new(o, "path", text_or_null(path));
    json_object_set_new(o, "version", text_or_null(version));
    json_object_set_new(o, "built", text_or_null(built));
    json_object_set_new(o, "minimum", text_or_null(minimum));
    json_object_set_new(o, "usable", json_boolean(usable));
    json_array_append_new(libraries, o);
}

void doctor_libraries_linked(json_t *list, json_t *libraries) {
    linked_lib found[LINKED_MAX];
    int n = linked_list(found);
    for (int i = 0; i < n; i++) {
        const linked_lib *l = &found[i];
        char note[256];
        linked_note(l, note, sizeof note);
        int newer = l->built && shared_lib_compare(l->version, l->built) > 0;
        doctor_finding_say(list, l->name, note, "%-8s %s%s%s%s%s", l->version, l->path,
                           l->from_env ? " (by the environment's search path or preload)" : "",
                           newer ? " (built with " : "", newer ? l->built : "", newer ? ")" : "");
        add(libraries, l->name, l->path, l->version, l->built, l->minimum, 1);
    }
}

void doctor_libraries_matrix(json_t *list, json_t *libraries, const dev *d) {
    const char *path = dev_blas_path(d), *note = dev_blas_note(d);
    int plain = !strcmp(path, "plain C");
    if (plain)
        doctor_finding_add(list, "matrices", "plain C: no matrix library is in use",
                           strstr(note, "asked for")
                               ? NULL
                               : "install a serial OpenBLAS or BLIS (Debian: libblis4-serial) for "
                                 "faster training");
    else
        doctor_finding_say(list, "matrices", NULL, "%s %s", dev_blas_version(d), path);
    add(libraries, "CBLAS", plain ? NULL : path, dev_blas_version(d), NULL, NULL, !plain);
    while (*note) { /* "PATH REASON; PATH REASON" */
        const char *end = strstr(note, "; ");
        int n = (int)(end ? (size_t)(end - note) : strlen(note));
        doctor_finding_say(list, note[0] == '/' ? "not taken" : "matrices", NULL, "%.*s", n, note);
        note += n + (end ? 2 : 0);
    }
}

/* The first file that is there, as the loader finds it; 0 when there is none. */
static int find(const shared_lib_spec *s, elf_probe_result *out) {
    for (int i = 0; s->files[i]; i++) {
        elf_probe_open(s->files[i], s->symbol, s->how, out);
        if (!out->absent) return 1;
    }
    return 0;
}

static void say_found(json_t *list, json_t *libraries, const shared_lib_spec *s,
                      const elf_probe_result *r) {
    err e = r->fault[0] ? ERR_OK : shared_lib_check_version(s, r->path, r->version);
    char fix[256];
    snprintf(fix, sizeof fix, "install %s", s->source);
    if (r->fault[0])
        doctor_finding_say(list, s->name, fix, "cannot be used%s%s: %s", r->path[0] ? ", " : "",
                           r->path, r->fault);
    else if (e)
        doctor_finding_error(list, s->name, err_text());
    else
        doctor_finding_say(list, s->name, NULL, "%-8s %s%s", r->version, r->path,
                           r->resident   ? " (preloaded)"
                           : r->from_env ? " (by LD_LIBRARY_PATH)"
                                         : "");
    err_clear();
    add(libraries, s->name, r->path, r->version, NULL, s->minimum, !r->fault[0] && !e);
}

void doctor_libraries_cuda(json_t *list, json_t *libraries, int driver, const char *cuda) {
    char absent[256] = "", nvrtc[SHARED_LIB_VERSION] = "";
    size_t at = 0;
    for (int i = 0; i < CUDA_LIBS_COUNT; i++) {
        const shared_lib_spec *s = cuda_libs_spec((cuda_lib)i);
        elf_probe_result r;
        if (find(s, &r)) {
            say_found(list, libraries, s, &r);
            if (i == CUDA_LIBS_NVRTC) snprintf(nvrtc, sizeof nvrtc, "%s", r.version);
            continue;
        }
        add(libraries, s->name, NULL, NULL, NULL, s->minimum, 0);
        if (driver) {
            char fix[256];
            snprintf(fix, sizeof fix, "%sinstall %s",
                     i == CUDA_LIBS_NCCL ? "for runs on several GPUs, " : "", s->source);
            doctor_finding_say(list, s->name, fix, "not found");
        } else if (at < sizeof absent) {
            at +=
                (size_t)snprintf(absent + at, sizeof absent - at, "%s%s", at ? ", " : "", s->name);
        }
    }
    if (absent[0])
        doctor_finding_say(list, "CUDA", NULL, "not found, and not needed without a GPU: %s",
                           absent);
    if (cuda_libs_check_driver(cuda, nvrtc)) {
        doctor_finding_error(list, "CUDA", err_text());
        err_clear();
    }
}
