/* What the emulated device knows of its memory: bounds, what was never written, and who touched what last, for races.
 *
 * For each 4 bytes of device and shared memory stand the last write and the last reads: block, thread, time and bytes.
 * Two accesses are ordered when they are one thread's, when a barrier of the block stands between, or a __syncwarp within
 * one warp; blocks of a launch are never ordered, launches are. A pair that is not ordered, of which one writes and not both
 * are atomic, is a race. 4 bytes remember one writer: where neighbours of 2 bytes have two, one of them may go unseen.
 * Reading what nobody has written fails too; shared memory holds NaN before each block. */
#include "emu_run.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ILLEGAL = 700, MISALIGNED = 716, LAUNCH_FAILED = 719, PAGE = 4096, UNIT = 4 };
static const size_t device_bytes = (size_t)12 << 30,
                    room = (size_t)40 << 30; /* addresses are not used again at once */

/* Packed: serial of the block 28 bits (0: the host), tick 18, thread 10, bytes 4, more 4. Of a write, more is which bytes
 * hold a value; of a read, how many other threads have read since. What kind the last write was stands in the bytes of
 * `read`, which takes all four for read. */
typedef struct touch {
    uint64_t serial, tick;
    unsigned thread, bytes, more;
} touch;
enum { MANY = 1, MANY_WARPS = 2, MANY_BLOCKS = 3 };
enum { ATOMIC = 1, PENDING = 2 };
typedef struct cell {
    uint64_t write, read;
} cell;

static uint64_t pack(touch t) {
    return t.serial << 36 | (t.tick & 0x3ffffu) << 18 | (uint64_t)t.thread << 8 | t.bytes << 4 |
           t.more;
}
static touch unpack(uint64_t x) {
    return (touch){x >> 36, x >> 18 & 0x3ffffu, (unsigned)(x >> 8) & 0x3ffu,
                   (unsigned)(x >> 4) & 15u, (unsigned)x & 15u};
}

typedef struct block { /* of device memory */
    size_t at, bytes;
} block;

static struct memory {
    char *device;
    cell *device_cells;
    cell shared_cells[(EMU_DYNAMIC_BYTES + (64 << 10)) / UNIT];
    block *blocks; /* by address */
    size_t n, cap, used, next;
} g;

int emu_memory_open(void) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *p = mmap(NULL, room, PROT_READ | PROT_WRITE, flags, -1, 0);
    void *c = mmap(NULL, room / UNIT * sizeof(cell), PROT_READ | PROT_WRITE, flags, -1, 0);
    g.device = p, g.device_cells = c;
    return p != MAP_FAILED && c != MAP_FAILED;
}

/* ---- device memory ---- */

static size_t round_up(size_t n) { return (n + PAGE - 1) / PAGE * PAGE; }

/* The index of the first block at or behind `at`. */
static size_t find(size_t at) {
    size_t low = 0, high = g.n;
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (g.blocks[mid].at + round_up(g.blocks[mid].bytes) <= at)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Blocks lie a page apart, from where the last one ended, and from the start again at the end. */
void *emu_memory_alloc(size_t bytes) {
    const size_t take = round_up(bytes) + PAGE;
    if (bytes > device_bytes - g.used) return NULL;
    if (g.n == g.cap) {
        block *more = realloc(g.blocks, (2 * g.cap + 64) * sizeof *more);
        if (!more) return NULL;
        g.blocks = more, g.cap = 2 * g.cap + 64;
    }
    size_t at = g.next, i = find(at);
    for (int turn = 0;; i++) {
        if (i < g.n && g.blocks[i].at < at + take) {
            at = g.blocks[i].at + round_up(g.blocks[i].bytes) + PAGE;
        } else if (at + take <= room) {
            break;
        } else if (turn++ == 0) {
            at = 0, i = (size_t)-1;
        } else {
            return NULL;
        }
    }
    memmove(&g.blocks[i + 1], &g.blocks[i], (g.n - i) * sizeof *g.blocks);
    g.blocks[i] = (block){at, bytes};
    g.n++, g.used += bytes, g.next = at + take;
    return g.device + at;
}

int emu_memory_free(void *p) {
    const size_t at = (size_t)((char *)p - g.device), i = at < room ? find(at) : g.n;
    if (i >= g.n || g.blocks[i].at != at) return 0;
    const size_t bytes = round_up(g.blocks[i].bytes);
    g.used -= g.blocks[i].bytes;
    (void)madvise(g.device + at, bytes, MADV_DONTNEED);
    (void)madvise(g.device_cells + at / UNIT, bytes / UNIT * sizeof(cell), MADV_DONTNEED);
    memmove(&g.blocks[i], &g.blocks[i + 1], (g.n - i - 1) * sizeof *g.blocks);
    g.n--;
    return 1;
}

void emu_memory_room(size_t *free_bytes, size_t *total) {
    *total = device_bytes;
    *free_bytes = device_bytes - g.used;
}

static int is_inside(const void *p, size_t bytes) {
    const size_t at = (size_t)((const char *)p - g.device);
    if (at >= room) return 0;
    const size_t i = find(at);
    return i < g.n && at >= g.blocks[i].at && at + bytes <= g.blocks[i].at + g.blocks[i].bytes;
}

int emu_memory_host(const void *p, size_t bytes, int write) {
    if (!is_inside(p, bytes)) return 0;
    const size_t first = (size_t)((const char *)p - g.device), end = first + bytes;
    for (size_t at = first / UNIT * UNIT; write && at < end; at += UNIT) {
        cell *c = &g.device_cells[at / UNIT];
        unsigned mask = 15u;
        if (at < first) mask &= 15u << (first - at);
        if (at + UNIT > end) mask &= 15u >> (at + UNIT - end);
        c->write = pack((touch){.more = unpack(c->write).more | mask});
        c->read = 0;
    }
    return 1;
}

/* ---- shared memory ---- */

static size_t fixed_bytes(void) {
    const emu_module_info *m = emu_m.launch.module;
    return (size_t)(m->fixed_end - m->fixed);
}

/* The cell of a shared address, or NULL where this launch has no shared memory. */
static cell *shared_cell(const void *p, size_t bytes) {
    const emu_module_info *m = emu_m.launch.module;
    const size_t fixed = (size_t)((const char *)p - m->fixed),
                 at = (size_t)((const char *)p - m->dynamic);
    if (fixed < fixed_bytes() && fixed + bytes <= fixed_bytes())
        return &g.shared_cells[fixed / UNIT];
    if (at < emu_m.launch.shared && at + bytes <= emu_m.launch.shared)
        return &g.shared_cells[(fixed_bytes() + at) / UNIT];
    return NULL;
}

void emu_memory_begin_block(void) {
    const emu_module_info *m = emu_m.launch.module;
    memset(m->fixed, 0xff, fixed_bytes());
    memset(m->dynamic, 0xff, emu_m.launch.shared);
    emu_m.serial++;
}

/* The kernel's own tables. */
static int is_constant(const char *p, size_t bytes) {
    const emu_module_info *m = emu_m.launch.module;
    if (p < m->begin || p + bytes > m->end) return 0;
    return !(p >= m->fixed && p < m->fixed_end) &&
           !(p >= m->dynamic && p < m->dynamic + EMU_DYNAMIC_BYTES);
}

/* ---- judging ---- */

/* An earlier touch by a thread that is not ordered before now. */
static int is_beside(touch t) {
    const int me = emu_m.now;
    if (t.serial < emu_m.launch_serial || !t.bytes) return 0;
    if (t.serial != emu_m.serial) return 1;
    if (t.tick < emu_m.barrier_tick) return 0;
    return (int)t.thread / 32 != me / 32 || t.tick >= emu_m.warp_tick[me / 32];
}
static int is_me(touch t) { return t.serial == emu_m.serial && (int)t.thread == emu_m.now; }

static _Noreturn void tell_race(const char *now, const char *before, touch t, const void *site,
                                const void *p) {
    if (t.serial != emu_m.serial)
        emu_fail(LAUNCH_FAILED, site, "race: %s what another block %s in the same launch (%p)", now,
                 before, p);
    emu_fail(LAUNCH_FAILED, site,
             "race: %s what thread %u of its block %s, with no barrier between (%p)", now, t.thread,
             before, p);
}

/* The last readers, as far as a write of this thread is not ordered behind them. */
static int are_beside(touch r) {
    if (r.serial < emu_m.launch_serial || !r.serial) return 0;
    if (r.more == MANY_BLOCKS) return 1;
    if (r.serial == emu_m.serial && r.more == MANY_WARPS) return r.tick >= emu_m.barrier_tick;
    return (r.more == MANY || !is_me(r)) && is_beside(r);
}

/* What becomes of the last readers when this thread reads. */
static unsigned more_readers(touch r) {
    if (r.serial < emu_m.launch_serial || !r.serial) return 0;
    if (r.serial != emu_m.serial) return MANY_BLOCKS;
    if (r.more == MANY_BLOCKS || is_me(r)) return r.more;
    if (r.tick < emu_m.barrier_tick) return 0;
    return (int)r.thread / 32 == emu_m.now / 32 && r.more <= MANY ? MANY : MANY_WARPS;
}

/* A read that changes nothing: after others by more than one warp, or by me, at this time. */
static int is_known(const cell *c, unsigned bytes, unsigned how, int shared) {
    if (how & (EMU_WRITE | EMU_ATOMIC)) return 0;
    const touch r = unpack(c->read), w = unpack(c->write);
    return r.serial == emu_m.serial && r.tick == emu_m.tick && !(r.bytes & PENDING) &&
           (w.more & bytes) == bytes && (r.more >= MANY_WARPS || (int)r.thread == emu_m.now) &&
           w.tick < emu_m.barrier_tick && shared && w.serial == emu_m.serial;
}

static void look(cell *c, unsigned bytes, unsigned how, int shared, const void *site,
                 const void *p) {
    touch w = unpack(c->write), r = unpack(c->read);
    const int atomic = (how & EMU_ATOMIC) != 0, write = atomic || (how & EMU_WRITE);
    touch me = {emu_m.serial, emu_m.tick, (unsigned)emu_m.now, bytes, 0};
    if (shared && w.serial != emu_m.serial) w = r = (touch){0}; /* of another block */
    if (shared && r.serial != emu_m.serial) r = (touch){.bytes = r.bytes};
    const unsigned kind = r.bytes;
    r.bytes = 15u;
    if (kind & PENDING && w.serial == emu_m.serial)
        emu_fail(LAUNCH_FAILED, site,
                 "memory is used that an asynchronous copy of thread %u still fills (%p)", w.thread,
                 p);
    if (w.bytes & bytes && !is_me(w) && is_beside(w) && !(atomic && kind & ATOMIC))
        tell_race(write ? "writes" : "reads", "wrote", w, site, p);
    if ((!write || atomic) && !(how & EMU_MAY_BE_EMPTY) && (w.more & bytes) != bytes)
        emu_fail(LAUNCH_FAILED, site, "%s memory is read that nobody has written (%p)",
                 shared ? "shared" : "device", p);
    if (write) {
        if (are_beside(r)) tell_race("writes", "read", r, site, p);
        me.more = w.more | bytes;
        c->write = pack(me);
        c->read = pack((touch){.bytes = atomic ? ATOMIC : 0});
    } else {
        me.bytes = kind, me.more = more_readers(r);
        c->write = pack(w); /* of shared memory: not another block's */
        c->read = pack(me);
    }
}

void emu_memory_access(const void *p, size_t bytes, unsigned how, const void *site) {
    cell *c = shared_cell(p, bytes);
    const int shared = c != NULL;
    if (!(how & EMU_UNALIGNED) && (uintptr_t)p % bytes)
        emu_fail(MISALIGNED, site, "%zu bytes at %p are not aligned", bytes, p);
    if (!c) {
        if (!is_inside(p, bytes)) {
            if (is_constant(p, bytes) && !(how & (EMU_WRITE | EMU_ATOMIC))) return;
            emu_fail(ILLEGAL, site,
                     "%zu bytes at %p are %s, which no allocation and no shared memory has", bytes,
                     p, how & (EMU_WRITE | EMU_ATOMIC) ? "written" : "read");
        }
        c = &g.device_cells[(size_t)((const char *)p - g.device) / UNIT];
    }
    const size_t first = (uintptr_t)p % UNIT;
    for (size_t at = 0; at < first + bytes; at += UNIT, c++) {
        unsigned mask = 15u;
        if (at < first) mask &= 15u << first;
        if (at + UNIT > first + bytes) mask &= 15u >> (at + UNIT - first - bytes);
        if (!is_known(c, mask, how, shared)) look(c, mask, how, shared, site, p);
    }
}

/* ---- by address of shared memory ---- */

static char *shared_pointer(unsigned at) {
    return (char *)(uintptr_t)emu_m.launch.module->begin + at;
}

void emu_memory_store(unsigned to, const unsigned *words, const void *site) {
    char *p = shared_pointer(to);
    emu_memory_access(p, 16, EMU_WRITE, site);
    memcpy(p, words, 16);
}

static void mark(char *p, int pending) {
    cell *c = shared_cell(p, 16);
    for (int i = 0; i < 16 / UNIT; i++) {
        touch r = unpack(c[i].read);
        r.bytes = pending ? PENDING : 0;
        c[i].read = pack(r);
    }
}

/* Starts a copy: until somebody waits its destination holds NaN, and nobody may touch it. */
void emu_memory_copy(unsigned to, const void *from, unsigned bytes, const void *site) {
    emu_fiber *f = &emu_m.fiber[emu_m.now];
    char *p = shared_pointer(to);
    if (!shared_cell(p, 16))
        emu_fail(ILLEGAL, site, "a copy goes to %#x, which is no shared memory", to);
    if ((uintptr_t)from % 16) emu_fail(MISALIGNED, site, "a copy of 16 bytes comes from %p", from);
    if (f->n_copies == EMU_COPIES)
        emu_fail(LAUNCH_FAILED, site, "more than %d copies run at once", EMU_COPIES);
    if (bytes) emu_memory_access(from, bytes, EMU_READ, site);
    emu_memory_access(p, 16, EMU_WRITE, site);
    memset(p, 0xff, 16);
    mark(p, 1);
    if (!f->copy) f->copy = malloc(EMU_COPIES * sizeof *f->copy);
    if (!f->copy) abort();
    f->copy[f->n_copies++] = (emu_pending){p, from, bytes, f->groups};
}

void emu_memory_land(const emu_pending *x) {
    mark(x->to, 0);
    emu_memory_access(x->to, 16, EMU_WRITE, NULL);
    memset(x->to, 0, 16);
    memcpy(x->to, x->from, x->bytes);
}
