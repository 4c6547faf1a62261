/* A block of threads as fibers on one host thread: order, barriers, meetings of a warp, asynchronous copies.
 *
 * A fiber runs until it waits or ends; then any fiber that can run is next, by the machine's random numbers. A barrier opens
 * when all threads that have not ended are there, a meeting when all lanes of its mask are in the same operation with
 * the same mask. When nobody can run, the launch fails and says who waits where. */
#include "emu_run.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { STACK = 256 << 10, HEAD = 4096, LAUNCH_FAILED = 719 };

emu_machine emu_m;

/* splitmix64 */
uint64_t emu_random(uint64_t below) {
    uint64_t x = emu_m.random += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return below ? (x ^ x >> 31) % below : 0;
}

/* ---- stacks ---- */

#if defined __x86_64__
__asm__(
    ".text\n.globl emu_block_switch\n.hidden emu_block_switch\n.type emu_block_switch, @function\n"
    "emu_block_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
#else
#error "the emulated device switches stacks on x86-64 alone"
#endif

static void fiber_main(void);

static void *fresh_stack(int i) {
    uint64_t *top = (uint64_t *)((char *)emu_m.api + HEAD + (size_t)STACK * (size_t)(i + 1)) - 1;
    *top-- = 0; /* nobody's return address: fiber_main never returns */
    *top-- = (uint64_t)(uintptr_t)fiber_main; /* `ret` goes here */
    for (int k = 0; k < 6; k++) *top-- = 0;
    return top + 1;
}

/* ---- failures ---- */

/* "attention.cu:123" of an address in the kernel, by addr2line, where that is installed. */
static void find_line(const void *site, char *out, size_t n) {
    const emu_module_info *m = emu_m.launch.module;
    char command[200], line[400] = "";
    out[0] = 0;
    if (!site || (const char *)site < m->begin || (const char *)site >= m->end) return;
    snprintf(command, sizeof command, "addr2line -e '%s' %#lx 2>/dev/null", emu_m.launch.file,
             (unsigned long)((const char *)site - m->begin) - 1);
    FILE *f = popen(command, "r");
    if (!f) return;
    if (fgets(line, sizeof line, f)) {
        const char *slash = strrchr(line, '/');
        line[strcspn(line, "\n")] = 0;
        snprintf(out, n, " at %s", slash ? slash + 1 : line);
    }
    pclose(f);
}

void emu_fail(int code, const void *site, const char *format, ...) {
    char what[500], line[100];
    va_list args;
    const emu_fiber *f = &emu_m.fiber[emu_m.now];
    const emu_dim b = emu_m.api->place.block;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    find_line(site, line, sizeof line);
    emu_m.fault = code;
    snprintf(emu_m.fault_text, sizeof emu_m.fault_text,
             "%s: %s%s (block %u %u %u, thread %u %u %u, seed %llu)", emu_m.launch.name, what, line,
             b.x, b.y, b.z, f->at.x, f->at.y, f->at.z, (unsigned long long)emu_m.seed);
    fprintf(stderr, "emulated device: %s\n", emu_m.fault_text);
    void *never;
    emu_block_switch(&never, emu_m.main);
    abort();
}

static void leaves(const void *site, const char *file, unsigned line) {
    (void)site;
    emu_fail(LAUNCH_FAILED, NULL, "an index leaves its array at %s:%u", file, line);
}

/* ---- order ---- */

static void make_ready(int i) {
    emu_m.fiber[i].state = EMU_READY;
    emu_m.ready[emu_m.n_ready++] = i;
}

static _Noreturn void tell_deadlock(void) {
    int waiting = 0, meeting = 0, at = -1, line = 0;
    for (int i = 0; i < emu_m.n; i++) {
        waiting += emu_m.fiber[i].state == EMU_AT_BARRIER;
        meeting += emu_m.fiber[i].state == EMU_AT_MEETING;
        if (emu_m.fiber[i].state == EMU_AT_BARRIER) line = emu_m.fiber[i].line;
        if (emu_m.fiber[i].state == EMU_AT_MEETING) at = i;
    }
    emu_fail(
        LAUNCH_FAILED, at < 0 ? NULL : emu_m.fiber[at].lane->site,
        "nobody can go on: %d threads wait at a barrier (line %d), %d in operations of their warps (thread %d: "
        "operation %d, mask %08x), %d have ended",
        waiting, line, meeting, at, at < 0 ? -1 : (int)emu_m.fiber[at].lane->op,
        at < 0 ? 0 : emu_m.fiber[at].lane->mask, emu_m.n - emu_m.alive);
}

/* Another fiber, or the driver when all have ended. */
static void go_on(void) {
    emu_fiber *from = &emu_m.fiber[emu_m.now];
    void *to = emu_m.main;
    if (!emu_m.n_ready && emu_m.alive) tell_deadlock();
    if (emu_m.n_ready) {
        const int pick = (int)emu_random((uint64_t)emu_m.n_ready), i = emu_m.ready[pick];
        emu_m.ready[pick] = emu_m.ready[--emu_m.n_ready];
        emu_m.now = i;
        emu_m.api->place.thread = emu_m.fiber[i].at;
        if (&emu_m.fiber[i] == from) return;
        to = emu_m.fiber[i].stack;
    }
    emu_block_switch(&from->stack, to);
}

static void open_barrier(void) {
    int waiting = 0, line = 0;
    for (int i = 0; i < emu_m.n; i++) {
        const emu_fiber *f = &emu_m.fiber[i];
        if (f->state != EMU_AT_BARRIER) continue;
        if (waiting++ && f->line != line)
            emu_fail(LAUNCH_FAILED, NULL, "threads wait at different barriers: lines %d and %d",
                     line, f->line);
        line = f->line;
    }
    if (waiting < emu_m.alive) return;
    emu_m.barrier_tick = ++emu_m.tick;
    for (int i = 0; i < emu_m.n; i++)
        if (emu_m.fiber[i].state == EMU_AT_BARRIER) make_ready(i);
}

static void fiber_main(void) {
    emu_m.launch.call(emu_m.launch.args);
    emu_fiber *f = &emu_m.fiber[emu_m.now];
    if (f->n_copies)
        emu_fail(LAUNCH_FAILED, NULL, "a thread ends and %d of its copies still run", f->n_copies);
    f->state = EMU_GONE;
    emu_m.gone[emu_m.now / 32] |= 1u << emu_m.now % 32;
    emu_m.alive--;
    open_barrier();
    go_on();
    abort();
}

static void barrier(int line) {
    emu_fiber *f = &emu_m.fiber[emu_m.now];
    f->state = EMU_AT_BARRIER;
    f->line = line;
    open_barrier();
    go_on();
}

/* Lanes of a mask that wait in its operation. */
static unsigned who_waits(const emu_fiber *first, const emu_lane *lane) {
    unsigned here = 0;
    for (int i = 0; i < 32; i++) {
        if (!(lane->mask >> i & 1)) continue;
        const emu_fiber *f = &first[i];
        if (f->state == EMU_GONE)
            emu_fail(LAUNCH_FAILED, lane->site,
                     "mask %08x names lane %d, which is not there or has ended", lane->mask, i);
        if (f->state == EMU_AT_MEETING && f->lane->op == lane->op && f->lane->mask == lane->mask)
            here |= 1u << i;
    }
    return here;
}

static void meet(emu_lane *lane) {
    const int me = emu_m.now, warp = me / 32;
    emu_fiber *first = &emu_m.fiber[warp * 32];
    first[me % 32].state = EMU_AT_MEETING;
    first[me % 32].lane = lane;
    lane->site = __builtin_return_address(0);
    if (!(lane->mask >> me % 32 & 1))
        emu_fail(LAUNCH_FAILED, lane->site,
                 "a lane takes part in an operation whose mask %08x lacks it", lane->mask);
    emu_m.waiting[warp] |= 1u << me % 32;
    /* A lane that ended before is found by the last who comes, or by nobody's going on. */
    if ((emu_m.waiting[warp] & lane->mask) != (lane->mask & ~emu_m.gone[warp]) ||
        who_waits(first, lane) != lane->mask) {
        go_on();
        return;
    }
    if (lane->op == EMU_SYNC) emu_m.warp_tick[warp] = ++emu_m.tick;
    emu_warp_finish(first, lane->mask);
    emu_m.waiting[warp] &= ~lane->mask;
    for (int i = 0; i < 32; i++)
        if (lane->mask >> i & 1 && first + i != &emu_m.fiber[me]) make_ready(warp * 32 + i);
    emu_m.fiber[me].state = EMU_READY;
}

/* ---- asynchronous copies: they land when somebody waits, and not before ---- */

static void commit(void) { emu_m.fiber[emu_m.now].groups++; }

static void wait_copies(int but) {
    emu_fiber *f = &emu_m.fiber[emu_m.now];
    int kept = 0;
    for (int i = 0; i < f->n_copies; i++) {
        if (f->copy[i].group < f->groups - but)
            emu_memory_land(&f->copy[i]);
        else
            f->copy[kept++] = f->copy[i];
    }
    f->n_copies = kept;
}

/* ---- a block ---- */

static emu_dim unfold(unsigned i, emu_dim d) {
    return (emu_dim){i % d.x, i / d.x % d.y, i / d.x / d.y};
}

void emu_block_run(emu_dim block, emu_dim threads, emu_dim blocks) {
    emu_m.n = emu_m.alive = (int)(threads.x * threads.y * threads.z);
    emu_m.n_ready = 0;
    emu_m.tick = emu_m.barrier_tick = 0;
    memset(emu_m.warp_tick, 0, sizeof emu_m.warp_tick);
    memset(emu_m.waiting, 0, sizeof emu_m.waiting);
    memset(emu_m.gone, 0xff, sizeof emu_m.gone);
    emu_m.api->place = (emu_place){{0, 0, 0}, block, threads, blocks};
    *emu_m.launch.module->api = emu_m.api;
    emu_memory_begin_block();
    for (int i = emu_m.n; i < (emu_m.n + 31) / 32 * 32; i++) emu_m.fiber[i].state = EMU_GONE;
    for (int i = 0; i < emu_m.n; i++) {
        emu_fiber *f = &emu_m.fiber[i];
        f->stack = fresh_stack(i);
        f->at = unfold((unsigned)i, threads);
        f->groups = f->n_copies = 0;
        emu_m.gone[i / 32] &= ~(1u << i % 32);
        make_ready(i);
    }
    const int pick = (int)emu_random((uint64_t)emu_m.n);
    emu_m.now = emu_m.ready[pick];
    emu_m.ready[pick] = emu_m.ready[--emu_m.n_ready];
    emu_m.api->place.thread = emu_m.fiber[emu_m.now].at;
    emu_block_switch(&emu_m.main, emu_m.fiber[emu_m.now].stack);
}

int emu_block_open(void) {
    const size_t bytes = HEAD + (size_t)STACK * EMU_THREADS;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    emu_m.fiber = calloc(EMU_THREADS, sizeof *emu_m.fiber);
    if (p == MAP_FAILED || !emu_m.fiber) return 0;
    for (int i = 0; i < EMU_THREADS; i++) /* a page that nobody may touch below each stack */
        if (mprotect((char *)p + HEAD + (size_t)STACK * (size_t)i, HEAD, PROT_NONE)) return 0;
    emu_m.api = p;
    *emu_m.api = (emu_api){.quiet_bytes = bytes,
                           .access = emu_memory_access,
                           .barrier = barrier,
                           .meet = meet,
                           .copy = emu_memory_copy,
                           .commit = commit,
                           .wait = wait_copies,
                           .store = emu_memory_store,
                           .leaves = leaves};
    return 1;
}
