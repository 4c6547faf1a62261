/* Records against files, and files against what they answer: see doctor_python.h.
 *
 * An installer that says "satisfied" has read the record only, so every fix is a forced reinstall. A library
 * gets one finding, the first fault met in the order: there, not empty, size, ELF, name inside, opens, version. */
#include "cli/doctor_python.h"
#include "cli/doctor_finding.h"
#include "cli/doctor_record.h"
#include "cli/elf_probe.h"
#include "core/arena.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Libraries whose version one call tells. Compared with the package's version as far as both go. */
static const struct known {
    const char *stem, *symbol;
    shared_lib_call how;
    int needed; /* by this program on GPUs; the others are optional */
} known[] = {
    {"libcudart.so", "cudaRuntimeGetVersion", SHARED_LIB_CUDA, 1},
    {"libnccl.so", "ncclGetVersion", SHARED_LIB_NCCL, 1},
    {"libnvrtc.so", "nvrtcVersion", SHARED_LIB_PAIR, 1},
    {"libcublasLt.so", "cublasLtGetVersion", SHARED_LIB_SIZE, 1},
    {"libcublas.so", "cublasGetProperty", SHARED_LIB_TRIPLE, 0},
    {"libcudnn.so", "cudnnGetVersion", SHARED_LIB_SIZE, 0},
    {"libcufft.so", "cufftGetProperty", SHARED_LIB_TRIPLE, 0},
    {"libcurand.so", "curandGetProperty", SHARED_LIB_TRIPLE, 0},
    {"libcusolver.so", "cusolverGetProperty", SHARED_LIB_TRIPLE, 0},
    {"libcusparse.so", "cusparseGetProperty", SHARED_LIB_TRIPLE, 0},
    {"libcusparseLt.so", "cusparseLtGetProperty", SHARED_LIB_TRIPLE, 0},
    {"libnvJitLink.so", "nvJitLinkVersion", SHARED_LIB_PAIR, 0},
    {"libcupti.so", "cuptiGetVersion", SHARED_LIB_LOOKUP, 0},
    {"libnvshmem_host.so", "nvshmem_info_get_version", SHARED_LIB_LOOKUP, 0},
};
enum { KNOWN = sizeof known / sizeof known[0] };

/* Packages that are nothing without a library: the rest of a name is version or generation. */
static const char *const carriers[] = {
    "cublas", "cuda-cupti", "cuda-nvrtc", "cuda-runtime", "cudnn", "cufft",     "cufile",
    "curand", "cusolver",   "cusparse",   "cusparselt",   "nccl",  "nvjitlink", "nvshmem",
};

typedef struct look {
    json_t *list;
    const doctor_record *r;
    const record_package *p;
    char fix[320];
    int libraries, absent, others, other_faults, opened, faults;
    char first_absent[256], first_other[256];
} look;

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static const struct known *find_known(const char *name) {
    for (int i = 0; i < KNOWN; i++) {
        size_t n = strlen(known[i].stem);
        if (!strncmp(name, known[i].stem, n) && (!name[n] || name[n] == '.')) return &known[i];
    }
    return NULL;
}

/* One sentence about a file of the package, with the package's reinstall as the fix. */
static void fault(look *k, const char *path, const char *what) {
    k->faults++;
    doctor_finding_say(k->list, k->p->name, k->fix, "%s of %s %s %s", path, k->p->name,
                       k->p->version, what);
}

static int dots(const char *text) {
    int n = 0;
    for (; *text; text++) n += *text == '.';
    return n;
}

/* The name inside differs: another library's, or another version of it. Copies that a packager renamed
 * (NAME-1a2b.so, NAME.alt.so.13) carry the original's name, which begins the same way. */
static int soname_differs(const char *file, const char *soname) {
    const char *a = strstr(file, ".so"), *b = strstr(soname, ".so");
    if (!a || !b) return 0;
    size_t na = (size_t)(a - file), nb = (size_t)(b - soname);
    if (nb > na || memcmp(file, soname, nb)) return 1;
    if (na > nb && file[nb] != '-' && file[nb] != '.') return 1;
    if (a[3] != '.' || b[3] != '.') return 0;
    /* Only numbers of one depth are one kind of number: libcupti.so.2025.1.1 is libcupti.so.12 inside. */
    return strcmp(a, b) && dots(a) == dots(b);
}

/* Whether two dotted versions agree as far as both go. */
static int versions_agree(const char *a, const char *b) {
    while (*a >= '0' && *a <= '9' && *b >= '0' && *b <= '9') {
        char *end_a, *end_b;
        if (strtol(a, &end_a, 10) != strtol(b, &end_b, 10)) return 0;
        if (*end_a != '.' || *end_b != '.') return 1;
        a = end_a + 1, b = end_b + 1;
    }
    return 1;
}

/* A failed opening: the driver's libraries come from elsewhere, everything else from a package. */
static void say_unopened(look *k, const char *path, const char *why, int needed) {
    const char *driver = strstr(why, "libcuda.so.1")        ? "libcuda.so.1"
                         : strstr(why, "libnvidia-ml.so.1") ? "libnvidia-ml.so.1"
                                                            : NULL;
    const char *mine = base_name(path), *colon = strstr(why, ": cannot open shared object file");
    int other = colon && strncmp(why, path, strlen(path)) && strncmp(why, mine, strlen(mine));
    char fix[512];
    k->faults++;
    if (driver)
        snprintf(fix, sizeof fix, "install the NVIDIA driver, which brings %s", driver);
    else if (other)
        snprintf(fix, sizeof fix, "%sinstall what brings %.*s, or reinstall it by force",
                 needed ? "" : "if you use this one, ", (int)(colon - why), why);
    else
        snprintf(fix, sizeof fix, "%s", k->fix);
    doctor_finding_say(k->list, k->p->name, fix, "%s cannot be used%s: %s", path,
                       needed ? "" : " (optional: this program runs without it)", why);
}

/* Another copy under the same name that a search path or a preload puts first: the first one loaded
 * serves the whole process. */
static void look_first_copy(look *k, const char *name, const struct known *what,
                            const elf_probe_result *own) {
    elf_probe_result first;
    struct stat a, b;
    char fix[700];
    const char *slash;
    elf_probe_open(name, what->symbol, what->how, &first);
    if (!first.path[0] || (!first.resident && !first.from_env)) return;
    if (stat(first.path, &a) || stat(own->path, &b) ||
        (a.st_dev == b.st_dev && a.st_ino == b.st_ino))
        return;
    slash = strrchr(first.path, '/');
    if (first.resident)
        snprintf(fix, sizeof fix, "take %s out of LD_PRELOAD", first.path);
    else
        snprintf(fix, sizeof fix, "take %.*s out of LD_LIBRARY_PATH",
                 slash ? (int)(slash - first.path) : 0, first.path);
    k->faults++;
    doctor_finding_say(k->list, k->p->name, fix,
                       "%s %s would be %s, version %s, not %s, version %s", name,
                       first.resident ? "is preloaded: it" : "is found by the search path: it",
                       first.path, first.version[0] ? first.version : "unknown", own->path,
                       own->version[0] ? own->version : "unknown");
}

static void open_library(look *k, const char *path, const elf_probe *elf) {
    const char *name = base_name(path);
    const struct known *what = find_known(name);
    elf_probe_result got;
    elf_probe_open(path, what ? what->symbol : NULL, what ? what->how : SHARED_LIB_OPEN, &got);
    if (got.fault[0]) {
        say_unopened(k, path, got.fault, what && what->needed);
        return;
    }
    k->opened++;
    if (!what) return;
    if (got.version[0] && !versions_agree(got.version, k->p->version)) {
        char text[160];
        snprintf(text, sizeof text, "answers as version %s: another version's file lies there",
                 got.version);
        fault(k, path, text);
    } else {
        doctor_finding_say(k->list, name, NULL, "%s %s", got.version[0] ? got.version : "opens",
                           got.path);
    }
    look_first_copy(k, elf->soname[0] ? elf->soname : name, what, &got);
}

/* Only nvidia-* libraries named lib*: plug-ins and Python modules need their host. */
static int can_open(const look *k, const char *relative) {
    return !strncmp(k->p->name, "nvidia-", 7) && !strncmp(base_name(relative), "lib", 3) &&
           !strstr(relative, "..") && relative[0] != '/';
}

static void look_library(look *k, const record_file *f) {
    char path[1024], text[320];
    struct stat s;
    elf_probe elf;
    snprintf(path, sizeof path, "%s/%s", k->r->dir, f->path);
    k->libraries++;
    if (stat(path, &s)) {
        int link = !lstat(path, &s);
        if (!link && !k->absent++) snprintf(k->first_absent, 256, "%s", f->path);
        if (link) fault(k, path, "is a link to a file that does not exist");
        return;
    }
    if (!s.st_size) {
        fault(k, path, "is empty (zero bytes)");
    } else if (f->size >= 0 && s.st_size != f->size) {
        snprintf(text, sizeof text, "has %lld bytes, its record says %lld", (long long)s.st_size,
                 f->size);
        fault(k, path, text);
    } else if (elf_probe_read(path, &elf)) {
        fault(k, path, "cannot be read");
        err_clear();
    } else if (elf.fault[0]) {
        fault(k, path, elf.fault);
    } else if (soname_differs(base_name(path), elf.soname)) {
        snprintf(text, sizeof text, "is %s inside: another version's file lies there", elf.soname);
        fault(k, path, text);
    } else if (can_open(k, f->path)) {
        open_library(k, path, &elf);
    }
}

/* Headers, Python files: there and of the recorded size; told as one number. */
static void look_other(look *k, const record_file *f) {
    char path[1024];
    struct stat s;
    if (f->size < 0) return; /* made after the installation: bytecode, the record itself */
    snprintf(path, sizeof path, "%s%s%s", *f->path == '/' ? "" : k->r->dir,
             *f->path == '/' ? "" : "/", f->path);
    k->others++;
    if (!stat(path, &s) && s.st_size == f->size) return;
    if (!k->other_faults++) snprintf(k->first_other, 256, "%s", f->path);
}

static int carries_libraries(const char *name) {
    for (size_t i = 0; i < sizeof carriers / sizeof carriers[0]; i++) {
        size_t n = strlen(carriers[i]);
        if (strncmp(name, "nvidia-", 7) || strncmp(name + 7, carriers[i], n)) continue;
        if (!name[7 + n] || !strncmp(name + 7 + n, "-cu", 3)) return 1;
    }
    return 0;
}

static void sum_up(look *k) {
    const char *name = k->p->name, *version = k->p->version;
    if (!k->p->text) {
        k->faults++;
        doctor_finding_say(k->list, name, k->fix, "%s %s has no RECORD of its files", name,
                           version);
    } else if (k->absent) {
        k->faults++;
        doctor_finding_say(k->list, name, k->fix,
                           "%s %s is recorded as installed, but %d of its %d libraries %s missing: "
                           "%s/%s",
                           name, version, k->absent, k->libraries, k->absent == 1 ? "is" : "are",
                           k->r->dir, k->first_absent);
    } else if (!k->libraries && carries_libraries(name)) {
        k->faults++;
        doctor_finding_say(k->list, name, k->fix,
                           "%s %s is recorded as installed and has no library at all", name,
                           version);
    }
    if (k->other_faults)
        doctor_finding_say(k->list, name, k->fix,
                           "%d of the %d other files of %s %s are missing or of another size than "
                           "recorded, first %s",
                           k->other_faults, k->others, name, version, k->first_other);
    if (!k->faults && !k->other_faults)
        doctor_finding_say(k->list, name, NULL,
                           "%s: %d libraries, %d other files as recorded (sizes, not hashes), %d "
                           "opened",
                           version, k->libraries, k->others, k->opened);
}

static int by_path(const void *a, const void *b) {
    const record_file *x = *(const record_file *const *)a, *y = *(const record_file *const *)b;
    int c = strcmp(x->path, y->path);
    return c ? c : x->package - y->package;
}

/* Libraries that two packages own: removing one package deletes the other's file. One finding a pair. */
static err look_shared_paths(json_t *list, const doctor_record *r) {
    const record_file **sorted;
    size_t n = 0;
    TRY(mem_new(r->n_files + 1, sizeof *sorted, &sorted));
    for (size_t i = 0; i < r->n_files; i++)
        if (r->files[i].library) sorted[n++] = &r->files[i];
    qsort(sorted, n, sizeof *sorted, by_path);
    for (size_t i = 1; i < n; i++) {
        const record_file *x = sorted[i - 1], *y = sorted[i];
        int said = x->package == y->package || strcmp(x->path, y->path);
        for (size_t j = 1; j < i && !said; j++)
            said = sorted[j - 1]->package == x->package && sorted[j]->package == y->package &&
                   !strcmp(sorted[j - 1]->path, sorted[j]->path);
        if (said) continue;
        const record_package *a = &r->packages[x->package], *b = &r->packages[y->package];
        char fix[512];
        snprintf(fix, sizeof fix,
                 "uninstall the one you do not need, then force a reinstall of the other, as in: "
                 "pip uninstall %s && pip install --force-reinstall %s==%s",
                 a->name, b->name, b->version);
        doctor_finding_say(list, b->name, fix,
                           "%s %s and %s %s both own %s/%s: removing one deletes the other's file",
                           a->name, a->version, b->name, b->version, r->dir, x->path);
    }
    mem_free(sorted);
    return ERR_OK;
}

static err look_site(json_t *list, const char *site) {
    doctor_record r;
    TRY(doctor_record_read(&r, site));
    for (size_t i = 0, at = 0; i < r.n_packages; i++) {
        look k = {.list = list, .r = &r, .p = &r.packages[i]};
        snprintf(k.fix, sizeof k.fix,
                 "force a reinstall of %s: pip install --force-reinstall %s==%s", k.p->name,
                 k.p->name, k.p->version);
        for (; at < r.n_files && r.files[at].package == (int)i; at++)
            if (r.files[at].library)
                look_library(&k, &r.files[at]);
            else
                look_other(&k, &r.files[at]);
        sum_up(&k);
    }
    err e = look_shared_paths(list, &r);
    if (!r.n_packages)
        doctor_finding_say(list, "python", NULL, "no nvidia-*, torch or triton package in %s",
                           site);
    doctor_record_free(&r);
    return e;
}

err doctor_python_look(json_t *list, const char *dir) {
    char sites[8][512], real[4096];
    int n;
    /* The loader takes a name with a slash as a path only; a whole path is also what people can use. */
    if (!realpath(dir, real)) return err_errno("%s cannot be looked at", dir);
    TRY(doctor_record_sites(real, sites, 8, &n));
    for (int i = 0; i < n; i++) TRY(look_site(list, sites[i]));
    return ERR_OK;
}
