/* ELF headers and trial openings of shared libraries: see elf_probe.h.
 *
 * Every offset of a file is checked against its size before it is used. The child sends one structure
 * through a pipe; a pipe that ends early means that the library ended the child. */
#include "cli/elf_probe.h"
#include "core/env.h"
#include "core/file.h"
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OPEN_SECONDS = 30 };

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

typedef union function {
    void *p;
    int (*one)(int *);
    int (*pair)(int *, int *);
    size_t (*size)(void);
    int (*part)(int, int *);
} function;

/* Calls the symbol as how says; 0 when it reports a failure. */
static int ask(function f, elf_probe_call how, char *out, size_t n) {
    int a = 0, b = 0, c = 0;
    if (how == ELF_PROBE_CUDART) {
        if (f.one(&a)) return 0;
        snprintf(out, n, "%d.%d", a / 1000, a % 1000 / 10);
    } else if (how == ELF_PROBE_NCCL) {
        if (f.one(&a)) return 0;
        if (a < 10000) /* before 2.9 the minor number had one digit less */
            snprintf(out, n, "%d.%d.%d", a / 1000, a / 100 % 10, a % 100);
        else
            snprintf(out, n, "%d.%d.%d", a / 10000, a / 100 % 100, a % 100);
    } else if (how == ELF_PROBE_PAIR) {
        if (f.pair(&a, &b)) return 0;
        snprintf(out, n, "%d.%d", a, b);
    } else if (how == ELF_PROBE_SIZE) {
        size_t v = f.size();
        snprintf(out, n, "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
    } else if (how == ELF_PROBE_TRIPLE) {
        if (f.part(0, &a) || f.part(1, &b) || f.part(2, &c)) return 0;
        snprintf(out, n, "%d.%d.%d", a, b, c);
    }
    return 1;
}

/* Whether the folder of path is one of LD_LIBRARY_PATH, which ':' and ';' part and where "" is here. */
static int in_search_path(const char *path) {
    const char *list = env_library_path(), *slash = strrchr(path, '/');
    char dir[1024];
    struct stat a, b;
    if (!list || !slash) return 0;
    snprintf(dir, sizeof dir, "%.*s/", (int)(slash - path), path);
    if (stat(dir, &a)) return 0;
    for (;; list++) {
        size_t n = strcspn(list, ":;");
        snprintf(dir, sizeof dir, "%.*s", n ? (int)n : 1, n ? list : ".");
        if (!stat(dir, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino) return 1;
        list += n;
        if (!*list) return 0;
    }
}

static void child(const char *name, const char *symbol, elf_probe_call how, elf_probe_result *r) {
    struct link_map *map = NULL;
    r->resident = dlopen(name, RTLD_LAZY | RTLD_NOLOAD) != NULL;
    void *h = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (!h) {
        snprintf(r->fault, sizeof r->fault, "%s", dlerror());
        return;
    }
    if (!dlinfo(h, RTLD_DI_LINKMAP, &map) && map)
        snprintf(r->path, sizeof r->path, "%s", map->l_name);
    r->from_env = in_search_path(r->path);
    if (!symbol) return;
    function f = {.p = dlsym(h, symbol)};
    if (!f.p)
        snprintf(r->fault, sizeof r->fault, "it has no symbol %s", symbol);
    else if (!ask(f, how, r->version, sizeof r->version))
        snprintf(r->fault, sizeof r->fault, "%s reports a failure", symbol);
}

/* The child's side: nothing of it may reach the terminal or outlive the time limit. */
static void run_child(int out, const char *name, const char *symbol, elf_probe_call how) {
    elf_probe_result r;
    int null = open("/dev/null", O_RDWR);
    memset(&r, 0, sizeof r);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    for (int s = 1; s < 32; s++) signal(s, SIG_DFL);
    alarm(OPEN_SECONDS);
    if (null >= 0) dup2(null, 0), dup2(null, 1), dup2(null, 2);
    child(name, symbol, how, &r);
    _exit(write(out, &r, sizeof r) == (ssize_t)sizeof r ? 0 : 1);
}

void elf_probe_open(const char *name, const char *symbol, elf_probe_call how,
                    elf_probe_result *out) {
    int ends[2], status = 0;
    size_t got = 0;
    memset(out, 0, sizeof *out);
    if (pipe2(ends, O_CLOEXEC)) {
        snprintf(out->fault, sizeof out->fault, "no pipe for a child to open it in");
        return;
    }
    pid_t pid = fork();
    if (pid == 0) run_child(ends[1], name, symbol, how);
    close(ends[1]);
    if (pid > 0) {
        ssize_t n;
        while (got < sizeof *out && (n = read(ends[0], (char *)out + got, sizeof *out - got)) > 0)
            got += (size_t)n;
        waitpid(pid, &status, 0);
    }
    close(ends[0]);
    if (got == sizeof *out) return;
    memset(out, 0, sizeof *out);
    if (pid < 0)
        snprintf(out->fault, sizeof out->fault, "no child could be started to open it in");
    else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        snprintf(out->fault, sizeof out->fault, "opening it took more than %d s", OPEN_SECONDS);
    else if (WIFSIGNALED(status))
        snprintf(out->fault, sizeof out->fault, "opening it ends the process (signal %d)",
                 WTERMSIG(status));
    else
        snprintf(out->fault, sizeof out->fault, "opening it ends the process (code %d)",
                 WEXITSTATUS(status));
}
