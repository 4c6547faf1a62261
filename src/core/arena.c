/* Arenas: a bump pointer over a list of chunks, and the plain heap for handles.
 *
 * A chunk comes zeroed from calloc and remembers how far it was ever handed out ("dirty"), so that a
 * zeroed allocation of fresh memory costs nothing. Resetting keeps every chunk: a step that repeats the
 * same allocations after a reset walks the same chunks and never meets the system again.
 * There is no freeing of single objects and no locking. In builds with the address sanitizer the bytes
 * that are not handed out are poisoned, so a use after a reset is reported. */
#include "core/arena.h"
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define ARENA_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_ASAN 1
#endif
#endif
#ifdef ARENA_ASAN
#include <sanitizer/asan_interface.h>
#define POISON(p, n)   ASAN_POISON_MEMORY_REGION(p, n)
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define POISON(p, n)   ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

#define ALIGN         64
#define FIRST_CHUNK   ((size_t)256 << 10)
#define LARGEST_CHUNK ((size_t)64 << 20)

typedef struct chunk chunk;
struct chunk {
    chunk *next;
    void *block;   /* what calloc gave */
    uint8_t *data; /* block, aligned */
    size_t cap, used, dirty;
};

struct arena {
    const char *name;
    size_t cap; /* 0: grows */
    chunk *first, *current;
    arena_stats stats;
    uint64_t fail_in; /* 0: off; 1: the next allocation fails */
};

static err chunk_new(arena *a, size_t cap, chunk **out) {
    chunk *c = calloc(1, sizeof *c);
    void *block = c && cap <= SIZE_MAX - ALIGN ? calloc(1, cap + ALIGN) : NULL;
    if (!block) {
        free(c);
        return err_set(
            ERR_MEMORY,
            "arena '%s' needs %zu more bytes and the system has none to give (%zu are in use); "
            "free memory or make the run smaller",
            a->name, cap, a->stats.used);
    }
    c->block = block;
    c->data = (uint8_t *)(((uintptr_t)block + ALIGN - 1) & ~(uintptr_t)(ALIGN - 1));
    c->cap = cap;
    POISON(c->data, cap);
    a->stats.reserved += cap;
    a->stats.system_calls++;
    *out = c;
    return ERR_OK;
}

err arena_create(arena **out, const char *name, size_t cap) {
    *out = NULL;
    arena *a = calloc(1, sizeof *a);
    if (!a) return err_set(ERR_MEMORY, "no memory for the arena '%s' (%zu bytes)", name, sizeof *a);
    a->name = name;
    a->cap = cap;
    if (cap) {
        err e = chunk_new(a, cap, &a->first);
        if (e) {
            free(a);
            return e;
        }
        a->current = a->first;
    }
    *out = a;
    return ERR_OK;
}

void arena_destroy(arena *a) {
    if (!a) return;
    for (chunk *c = a->first; c;) {
        chunk *next = c->next;
        UNPOISON(c->data, c->cap);
        free(c->block);
        free(c);
        c = next;
    }
    free(a);
}

/* Makes current a chunk with room for need bytes: a kept one further on, else a new one right behind. */
static err find_room(arena *a, size_t need) {
    if (a->current && a->current->cap - a->current->used >= need) return ERR_OK;
    if (a->cap)
        return err_set(
            ERR_MEMORY,
            "arena '%s' holds %zu bytes, %zu of them are in use and %zu more are needed (%zu in all); "
            "raise its budget",
            a->name, a->cap, a->stats.used, need, a->stats.used + need);
    for (chunk *c = a->current ? a->current->next : a->first; c; c = c->next) {
        if (c->cap - c->used < need) continue;
        a->current = c;
        return ERR_OK;
    }
    size_t size = a->stats.reserved < FIRST_CHUNK ? FIRST_CHUNK : a->stats.reserved;
    if (size > LARGEST_CHUNK) size = LARGEST_CHUNK;
    if (size < need) size = need;
    chunk *c;
    TRY(chunk_new(a, size, &c));
    if (a->current) {
        c->next = a->current->next;
        a->current->next = c;
    } else {
        c->next = a->first;
        a->first = c;
    }
    a->current = c;
    return ERR_OK;
}

static err take(arena *a, size_t n, size_t size, int zero, void **out) {
    *out = NULL;
    if (a->fail_in && --a->fail_in == 0)
        return err_set(ERR_MEMORY,
                       "arena '%s': this allocation of %zu x %zu bytes fails on request", a->name,
                       n, size);
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX / 2)
        return err_set(ERR_MEMORY,
                       "arena '%s' was asked for %zu x %zu bytes, more than can be addressed",
                       a->name, n, size);
    size_t need = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (!need) need = ALIGN;
    TRY(find_room(a, need));
    chunk *c = a->current;
    uint8_t *p = c->data + c->used;
    UNPOISON(p, bytes);
    if (zero && c->used < c->dirty) {
        size_t stale = c->dirty - c->used;
        memset(p, 0, stale < bytes ? stale : bytes);
    }
#if defined(ARENA_ASAN) || defined(PACELINE_DEBUG)
    if (!zero) memset(p, 0xff, bytes);
#endif
    c->used += need;
    if (c->used > c->dirty) c->dirty = c->used;
    a->stats.used += need;
    if (a->stats.used > a->stats.peak) a->stats.peak = a->stats.used;
    a->stats.allocations++;
    *out = p;
    return ERR_OK;
}

err arena_alloc(arena *a, size_t n, size_t size, void *out) {
    void *p;
    err e = take(a, n, size, 1, &p);
    memcpy(out, &p, sizeof p);
    return e;
}

err arena_alloc_raw(arena *a, size_t n, size_t size, void *out) {
    void *p;
    err e = take(a, n, size, 0, &p);
    memcpy(out, &p, sizeof p);
    return e;
}

err arena_strdup(arena *a, const char *s, char **out) {
    size_t n = strlen(s) + 1;
    TRY(arena_alloc_raw(a, n, 1, out));
    memcpy(*out, s, n);
    return ERR_OK;
}

arena_mark arena_get_mark(const arena *a) {
    return (arena_mark){a->current, a->current ? a->current->used : 0, a->stats.used};
}

void arena_reset(arena *a, arena_mark m) {
    chunk *keep = m.chunk;
    for (chunk *c = keep ? keep->next : a->first; c; c = c->next) {
        c->used = 0;
        POISON(c->data, c->cap);
    }
    if (keep) {
        POISON(keep->data + m.used, keep->cap - m.used);
        keep->used = m.used;
    }
    a->current = keep ? keep : a->first;
    a->stats.used = m.total;
}

void arena_get_stats(const arena *a, arena_stats *out) { *out = a->stats; }

const char *arena_name(const arena *a) { return a->name; }

void arena_fail_at(arena *a, uint64_t n) { a->fail_in = n; }

err mem_new(size_t n, size_t size, void *out) {
    void *p = calloc(n ? n : 1, size ? size : 1);
    memcpy(out, &p, sizeof p);
    if (!p)
        return err_set(ERR_MEMORY,
                       "no memory for %zu x %zu bytes; free memory or make the run smaller", n,
                       size);
    return ERR_OK;
}

err mem_grow(void *ptr, size_t *cap, size_t need, size_t size) {
    if (need <= *cap) return ERR_OK;
    size_t want = *cap + *cap / 2;
    if (want < need) want = need;
    if (want < 8) want = 8;
    size_t bytes;
    void *p;
    memcpy(&p, ptr, sizeof p);
    void *q = __builtin_mul_overflow(want, size, &bytes) ? NULL : realloc(p, bytes ? bytes : 1);
    if (!q)
        return err_set(
            ERR_MEMORY,
            "no memory to grow a list to %zu x %zu bytes; free memory or make the run smaller",
            want, size);
    memcpy(ptr, &q, sizeof q);
    *cap = want;
    return ERR_OK;
}

void mem_free(void *p) { free(p); }
