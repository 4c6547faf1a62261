/* The emulated device inside: one machine, its block of threads, and what it knows of memory; for the files of this folder.
 *
 * emu_driver.c is the driver's face, emu_block.c runs blocks of fibers, emu_warp.c does what lanes do together, emu_memory.c
 * judges accesses. One launch runs at a time, under the driver's lock. Not for tests: they see the driver alone. */
#ifndef TESTS_EMU_EMU_RUN_H
#define TESTS_EMU_EMU_RUN_H
#include "emu.h"
#include <stdint.h>
#pragma GCC visibility push(hidden)

enum { EMU_THREADS = 1024, EMU_WARPS = EMU_THREADS / 32, EMU_COPIES = 2048 };

typedef enum emu_state { EMU_READY, EMU_AT_BARRIER, EMU_AT_MEETING, EMU_GONE } emu_state;

typedef struct emu_pending { /* an asynchronous copy of 16 bytes */
    char *to;
    const char *from;
    unsigned bytes; /* the rest is zeros */
    int group;
} emu_pending;

typedef struct emu_fiber {
    void *stack; /* its top, while it does not run */
    emu_state state;
    emu_dim at;
    emu_lane *lane; /* of a meeting */
    int line;       /* of a barrier */
    int groups;     /* committed */
    int n_copies;
    emu_pending *copy;
} emu_fiber;

typedef struct emu_launch {
    const char *name, *file; /* the function; its module's file */
    const emu_module_info *module;
    void (*call)(void **args);
    void **args;
    unsigned shared; /* dynamic bytes */
} emu_launch;

typedef struct emu_machine {
    emu_api *api;
    emu_fiber *fiber; /* EMU_THREADS */
    void *main;       /* the driver's stack, while fibers run */
    emu_launch launch;
    int n, now, alive, n_ready;
    int ready[EMU_THREADS];
    /* time within a block: rises at each barrier and warp sync */
    uint64_t tick, barrier_tick, warp_tick[EMU_WARPS];
    unsigned waiting[EMU_WARPS], gone[EMU_WARPS]; /* lanes in a meeting; ended or never there */
    uint64_t serial, launch_serial;               /* of the block, and of the launch's first */
    uint64_t random, seed;
    int fault;            /* what the driver answers from now on */
    char fault_text[800]; /* and why */
} emu_machine;

extern emu_machine emu_m;

int emu_block_open(void); /* stacks; 0 when there is no memory */
void emu_block_run(emu_dim block, emu_dim threads, emu_dim blocks);
void emu_block_switch(void **save, void *to);
uint64_t emu_random(uint64_t below);
/* Ends the launch from inside a fiber, with the sentence. code: the driver's. site: where in the text, or NULL. */
void emu_fail(int code, const void *site, const char *format, ...)
    __attribute__((noreturn, format(printf, 3, 4)));

void emu_warp_finish(emu_fiber *first, unsigned mask); /* all lanes of the mask have come */

int emu_memory_open(void);
void emu_memory_access(const void *at, size_t bytes, unsigned how, const void *site);
void emu_memory_copy(unsigned to, const void *from, unsigned bytes, const void *site);
void emu_memory_land(const emu_pending *p);
void emu_memory_store(unsigned to, const unsigned *words, const void *site);
void *emu_memory_alloc(size_t bytes); /* device memory, poisoned; NULL */
int emu_memory_free(void *p);         /* 0: it is none */
int emu_memory_host(const void *at, size_t bytes,
                    int write); /* a copy or a fill of the host; 0: outside */
void emu_memory_begin_block(void);
void emu_memory_room(size_t *free_bytes, size_t *total);

#pragma GCC visibility pop
#endif
