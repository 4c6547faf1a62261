/* A malloc interposer for tests: counts the bytes that a process holds, from outside its own accounting.
 *
 * Loaded with LD_PRELOAD; at exit it writes "peak BYTES\ncalls N\n" to the file named by COUNT_FILE. Counts malloc, calloc, realloc,
 * the aligned forms and anonymous mmap; usable sizes, so slack of the allocator is included. It changes no behaviour unless the
 * program finds count_fail_at with dlsym and sets it: 1 makes the next allocation fail, 2 the one after it, 0 none. */
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

_Atomic int64_t count_fail_at, count_held; /* what a program under test may find */
static _Atomic int64_t peak, calls;
static char early[65536]; /* dlsym itself allocates before the real functions are known */
static size_t early_used;

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

static void add(int64_t n) {
    int64_t now = atomic_fetch_add(&count_held, n) + n, top = atomic_load(&peak);
    if (n > 0) atomic_fetch_add(&calls, 1);
    while (now > top && !atomic_compare_exchange_weak(&peak, &top, now)) {
    }
}

static int fails(void) {
    if (atomic_load(&count_fail_at) == 0 || atomic_fetch_sub(&count_fail_at, 1) != 1) return 0;
    errno = ENOMEM;
    return 1;
}

static int is_early(const void *p) {
    return (const char *)p >= early && (const char *)p < early + sizeof early;
}

static void *take_early(size_t n) {
    size_t at = (early_used + 15) / 16 * 16;
    if (at + n > sizeof early) abort();
    early_used = at + n;
    return early + at;
}

static void *(*real_malloc)(size_t), *(*real_calloc)(size_t, size_t),
    *(*real_realloc)(void *, size_t), (*real_free)(void *);
static void *(*real_aligned)(size_t, size_t), *(*real_mmap)(void *, size_t, int, int, int, off_t);
static int (*real_memalign)(void **, size_t, size_t), (*real_munmap)(void *, size_t);
static int finding;

static void find(void) {
    if (real_munmap || finding) return;
    finding = 1;
    *(void **)&real_malloc = real("malloc");
    *(void **)&real_calloc = real("calloc");
    *(void **)&real_realloc = real("realloc");
    *(void **)&real_free = real("free");
    *(void **)&real_aligned = real("aligned_alloc");
    *(void **)&real_memalign = real("posix_memalign");
    *(void **)&real_mmap = real("mmap");
    *(void **)&real_munmap = real("munmap");
    finding = 0;
}

static void *counted(void *p) {
    if (p) add((int64_t)malloc_usable_size(p));
    return p;
}

void *malloc(size_t n) {
    find();
    if (fails()) return NULL;
    return real_malloc ? counted(real_malloc(n)) : take_early(n);
}
void *calloc(size_t n, size_t size) {
    find();
    if (fails()) return NULL;
    return real_calloc ? counted(real_calloc(n, size)) : take_early(n * size);
}
void *realloc(void *p, size_t n) {
    find();
    if (is_early(p)) {
        void *q = malloc(n);
        if (q) memcpy(q, p, n);
        return q;
    }
    if (fails()) return NULL;
    int64_t before = p ? (int64_t)malloc_usable_size(p) : 0;
    void *q = real_realloc(p, n);
    if (q || n == 0) add((q ? (int64_t)malloc_usable_size(q) : 0) - before);
    return q;
}
void free(void *p) {
    if (!p || is_early(p)) return;
    find();
    add(-(int64_t)malloc_usable_size(p));
    real_free(p);
}
void *aligned_alloc(size_t align, size_t n) {
    find();
    return fails() ? NULL : counted(real_aligned(align, n));
}
int posix_memalign(void **out, size_t align, size_t n) {
    find();
    if (fails()) return ENOMEM;
    int rc = real_memalign(out, align, n);
    if (!rc) counted(*out);
    return rc;
}
/* File maps are page cache, not memory of ours: only anonymous maps count. An unmapped file map must then not be taken off: such
 * maps are remembered by their start in a small table. */
static _Atomic uintptr_t anonymous[4096];

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset) {
    find();
    if ((flags & MAP_ANONYMOUS) && fails()) return MAP_FAILED;
    void *p = real_mmap(at, n, prot, flags, fd, offset);
    if (p == MAP_FAILED || !(flags & MAP_ANONYMOUS) || prot == PROT_NONE) return p;
    for (int i = 0; i < 4096; i++) {
        uintptr_t none = 0;
        if (!atomic_compare_exchange_strong(&anonymous[i], &none, (uintptr_t)p)) continue;
        add((int64_t)n);
        break;
    }
    return p;
}
int munmap(void *p, size_t n) {
    find();
    for (int i = 0; i < 4096; i++) {
        uintptr_t mine = (uintptr_t)p;
        if (!atomic_compare_exchange_strong(&anonymous[i], &mine, 0)) continue;
        add(-(int64_t)n);
        break;
    }
    return real_munmap(p, n);
}

__attribute__((destructor)) static void report(void) {
    const char *path = getenv("COUNT_FILE");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f) return;
    fprintf(f, "peak %lld\ncalls %lld\n", (long long)atomic_load(&peak),
            (long long)atomic_load(&calls));
    fclose(f);
}
