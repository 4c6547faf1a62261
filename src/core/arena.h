/* Arenas: all memory that grows with models, rows or tiles comes from one of these.
 *
 * An arena is a bump allocator over chunks. It counts (bytes in use, peak, reserved, number of
 * allocations) and can be told to fail its N-th allocation, so tests can walk every failure path.
 * A capped arena takes its bytes at creation and never grows: exceeding it is ERR_MEMORY with the
 * bytes needed. A step marks its arena and resets to the mark; there is no per-object free.
 * Not thread safe: one arena belongs to one thread of control. */
#ifndef CORE_ARENA_H
#define CORE_ARENA_H
#include "core/err.h"
#include <stddef.h>
#include <stdint.h>

typedef struct arena arena;
typedef struct arena_mark {
    void *chunk;
    size_t used;
    size_t total;
} arena_mark;
typedef struct arena_stats {
    size_t used, peak, reserved; /* bytes handed out now, at most, and taken from the system */
    uint64_t allocations;        /* calls of arena_alloc that succeeded */
    uint64_t system_calls; /* times the arena went to malloc/mmap: constant in a steady step */
} arena_stats;

/* cap > 0: takes cap bytes now and never more. cap == 0: grows by chunks. name is borrowed (a literal). */
MUST_CHECK err arena_create(arena **out, const char *name, size_t cap);
void arena_destroy(arena *a); /* NULL is fine */
/* n*size bytes, zeroed, aligned to 64. n or size 0 gives a valid non-NULL pointer. Overflow is an error. */
MUST_CHECK err arena_alloc(arena *a, size_t n, size_t size, void *out /* T** */);
/* Same, not zeroed: for buffers that are written whole. Debug and ASan builds poison it with NaN bytes. */
MUST_CHECK err arena_alloc_raw(arena *a, size_t n, size_t size, void *out);
MUST_CHECK err arena_strdup(arena *a, const char *s, char **out);
arena_mark arena_get_mark(const arena *a);
void arena_reset(arena *a, arena_mark m); /* everything after m is gone; chunks are kept */
void arena_get_stats(const arena *a, arena_stats *out);
const char *arena_name(const arena *a);
/* The n-th allocation from now on fails with ERR_MEMORY (1 = the next one); 0 switches off. */
void arena_fail_at(arena *a, uint64_t n);
/* Heap memory for handles themselves: zeroed calloc with a sentence; free with mem_free. */
MUST_CHECK err mem_new(size_t n, size_t size, void *out /* T** */);
MUST_CHECK err mem_grow(void *ptr /* T** */, size_t *cap, size_t need, size_t size); /* geometric */
void mem_free(void *p);

#endif
