/* paceline doctor: what this machine offers to the program: CPU, threads, memory and its limits, every
 * library by the file that is really loaded and the version it reports; with --python, the CUDA packages of
 * a Python environment. Looks only: changes nothing. */
#include "cli/command.h"
#include "cli/doctor_finding.h"
#include "cli/doctor_limits.h"
#include "cli/doctor_python.h"
#include "core/arena.h"
#include "core/env.h"
#include "core/file.h"
#include "core/limits.h"
#include "core/pool.h"
#include "dev/dev.h"
#include "io/json.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const arg_spec spec[] = {
    {"--json", ARG_FLAG, NULL, "print one JSON object"},
    {"--python", ARG_TEXT, "DIR",
     "also the CUDA packages of a Python environment: its root or site-packages"},
    {"--threads", ARG_INT, "N", "CPU threads to look at (default: usable CPUs)"},
    {NULL, ARG_FLAG, NULL, NULL},
};

/* A library that is linked, the symbol that proves it, and how that symbol tells the version. */
typedef struct library {
    const char *name, *symbol;
    enum { TEXT_CALL, PCRE, XXH, PNG } how;
} library;
static const library libraries[] = {
    {"jansson", "jansson_version_str", TEXT_CALL},
    {"libyaml", "yaml_get_version_string", TEXT_CALL},
    {"PCRE2", "pcre2_config_8", PCRE},
    {"utf8proc", "utf8proc_version", TEXT_CALL},
    {"zstd", "ZSTD_versionString", TEXT_CALL},
    {"xxHash", "XXH_versionNumber", XXH},
    {"libpng", "png_get_libpng_ver", PNG},
};
enum { LIBRARIES = sizeof libraries / sizeof libraries[0], PCRE2_CONFIG_VERSION_CODE = 11 };

typedef union symbol {
    void *p;
    const char *(*text)(void);
    const char *(*text1)(void *);
    unsigned (*number)(void);
    int (*pcre)(uint32_t, void *);
} symbol;

/* Path and version of a loaded library; 0 when this build does not use it. */
static int look_up(const library *l, char *path, size_t n, char *version, size_t nv) {
    symbol s = {.p = dlsym(RTLD_DEFAULT, l->symbol)};
    Dl_info info;
    char buf[64] = "";
    if (!s.p || !dladdr(s.p, &info)) return 0;
    snprintf(path, n, "%s", info.dli_fname);
    if (l->how == PCRE)
        s.pcre(PCRE2_CONFIG_VERSION_CODE, buf);
    else if (l->how == XXH)
        snprintf(buf, sizeof buf, "%u.%u.%u", s.number() / 10000, s.number() / 100 % 100,
                 s.number() % 100);
    else if (l->how == PNG)
        snprintf(buf, sizeof buf, "%s", s.text1(NULL));
    else
        snprintf(buf, sizeof buf, "%s", s.text());
    snprintf(version, nv, "%s", buf);
    return 1;
}

static double physical_memory(void) {
    return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
}

static void look_cpu(json_t *out, const dev *d) {
    char text[256];
    snprintf(text, sizeof text, "%d usable CPUs, %d threads, kernels for %s", pool_cpus(),
             dev_threads(d), dev_isa_name(dev_get_isa(d)));
    doctor_finding_add(
        out, "cpu", text,
        dev_get_isa(d) == DEV_ISA_PORTABLE
            ? "this CPU, or PACELINE_ISA, allows portable kernels only: expect low speed"
            : NULL);
    snprintf(text, sizeof text, "%s%s%s", dev_blas_path(d), dev_blas_note(d)[0] ? "; " : "",
             dev_blas_note(d));
    doctor_finding_add(
        out, "matrices", text,
        !strcmp(dev_blas_path(d), "plain C")
            ? "install a serial OpenBLAS (Debian: libopenblas0-serial) for faster training"
            : NULL);
}

static void look_memory(json_t *out) {
    struct rlimit as, files;
    char text[256], a[24], b[24];
    double limit = limits_group_memory("");
    getrlimit(RLIMIT_AS, &as);
    getrlimit(RLIMIT_NOFILE, &files);
    snprintf(text, sizeof text, "%s physical, container limit %s, address space %s",
             str_bytes(physical_memory(), a), limit < 0 ? "none" : str_bytes(limit, b),
             as.rlim_cur == RLIM_INFINITY ? "unlimited" : "limited by ulimit -v");
    doctor_finding_add(out, "memory", text,
                       limit > 0 && limit < 1e9
                           ? "the container allows less than 1 GB: raise its memory limit"
                           : NULL);
    snprintf(text, sizeof text, "%llu open files", (unsigned long long)files.rlim_cur);
    doctor_finding_add(out, "files", text,
                       files.rlim_cur < 256 ? "raise the limit with ulimit -n 1024" : NULL);
}

static void look_disk(json_t *out) {
    char text[256], a[24];
    uint64_t bytes;
    if (file_free_bytes(".", &bytes)) {
        doctor_finding_add(out, "disk", err_text(), NULL);
        err_clear();
        return;
    }
    snprintf(text, sizeof text, "%s free here", str_bytes((double)bytes, a));
    doctor_finding_add(out, "disk", text,
                       bytes < (UINT64_C(1) << 30)
                           ? "less than 1 GiB is free: a run may not be able to save"
                           : NULL);
}

static void look_libraries(json_t *out) {
    char path[512], version[64], text[640];
    for (int i = 0; i < LIBRARIES; i++) {
        if (!look_up(&libraries[i], path, sizeof path, version, sizeof version)) continue;
        snprintf(text, sizeof text, "%s %s", version, path);
        doctor_finding_add(out, libraries[i].name, text, NULL);
    }
}

static void look_switches(json_t *out) {
    for (int i = 0; i < ENV_COUNT; i++)
        if (env_get((env_key)i))
            doctor_finding_add(out, env_name((env_key)i), env_get((env_key)i), NULL);
    if (env_library_path()) doctor_finding_add(out, "LD_LIBRARY_PATH", env_library_path(), NULL);
}

static void print_findings(const json_t *list) {
    size_t i;
    json_t *f;
    json_array_foreach(list, i, f) {
        const json_t *fix = json_object_get(f, "fix");
        printf("%-20s %s\n", json_string_value(json_object_get(f, "item")),
               json_string_value(json_object_get(f, "finding")));
        if (fix) printf("%-20s -> %s\n", "", json_string_value(fix));
    }
}

static err run(const args *a) {
    int64_t threads;
    dev *d;
    TRY(args_int(a, "--threads", 0, 0, 1024, &threads));
    const char *python = args_text(a, "--python", NULL);
    json_t *packages = json_array();
    /* First, while there is one thread: it forks. */
    err e = python ? doctor_python_look(packages, python) : ERR_OK;
    if (!e) e = dev_open_cpu(&d, &(dev_config){.threads = (int)threads});
    if (e) {
        json_decref(packages);
        return e;
    }
    json_t *list = json_array(), *root = json_object();
    look_cpu(list, d);
    look_memory(list);
    look_disk(list);
    doctor_limits_look(list);
    look_libraries(list);
    look_switches(list);
    json_array_extend(list, packages);
    json_decref(packages);
    json_object_set_new(root, "findings", list);
    if (args_has(a, "--json")) {
        char *text = json_dumps(root, JSON_INDENT(1));
        printf("%s\n", text ? text : "{}");
        free(text);
    } else {
        print_findings(list);
    }
    json_decref(root);
    dev_close(d);
    return ERR_OK;
}

const command command_doctor = {
    .name = "doctor",
    .usage = "doctor [--python DIR] [--json]",
    .summary = "what this machine offers: CPU, limits, libraries, Python packages; and what to fix",
    .spec = spec,
    .run = run,
};
