/* A CUDA device played by the CPU, for tests: what the runtime and the kernels' text know of each other.
 *
 * The stand-in for NVRTC compiles a kernel's text as C++ behind emu_text.cuh; the stand-in for the driver loads it and runs
 * it. Threads of a block are fibers on one host thread, in random order between their meetings; all that the text loads
 * and stores comes by `access` first. C and C++ both read this file. It holds no code. */
#ifndef TESTS_EMU_EMU_H
#define TESTS_EMU_EMU_H
#include <stddef.h>

typedef struct emu_dim {
    unsigned x, y, z;
} emu_dim;

/* Of the thread that runs now. */
typedef struct emu_place {
    emu_dim thread, block, threads, blocks;
} emu_place;

/* What lanes of a warp do together. */
typedef enum emu_op {
    EMU_SYNC,
    EMU_SHUFFLE,     /* x of the lane `by` */
    EMU_SHUFFLE_XOR, /* of lane ^ by */
    EMU_SHUFFLE_UP,
    EMU_SHUFFLE_DOWN,
    EMU_BALLOT,
    EMU_MATCH, /* lanes with an equal x */
    EMU_OR,
    EMU_AND,
    EMU_ADD,
    EMU_MIN,
    EMU_MAX,
    EMU_LDMATRIX, /* x: shared address of a row; r: out */
    EMU_LDMATRIX_TURNED,
    EMU_MMA_BF16, /* r: left, b: right, c: in and out */
    EMU_MMA_F16
} emu_op;

/* One lane of a meeting. */
typedef struct emu_lane {
    emu_op op;
    unsigned mask;
    int by, width;
    unsigned long long x, out;
    unsigned *r;
    const unsigned *left;
    unsigned b[2];
    float *c;
    const void *site; /* where in the text */
} emu_lane;

/* EMU_MAY_BE_EMPTY: what nobody has written may be read (padding of tiles, which only meets padding); it is NaN. */
enum { EMU_READ = 0, EMU_WRITE = 1, EMU_ATOMIC = 2, EMU_UNALIGNED = 4, EMU_MAY_BE_EMPTY = 8 };

/* Lies in front of the fibers' stacks; nobody asks about loads and stores there. */
typedef struct emu_api {
    emu_place place;
    size_t quiet_bytes; /* of this and the stacks */
    void (*access)(const void *at, size_t bytes, unsigned how, const void *from);
    void (*barrier)(int line);
    void (*meet)(emu_lane *lane);
    void (*copy)(unsigned to, const void *from, unsigned bytes, const void *site); /* cp.async */
    void (*commit)(void);
    void (*wait)(int but); /* for all groups but so many of the last */
    void (*store)(unsigned to, const unsigned *words, const void *site); /* 16 bytes, shared */
    void (*leaves)(const void *site, const char *file, unsigned line); /* an index left an array */
} emu_api;

typedef struct emu_entry {
    const char *name;
    void (*call)(void **args);
} emu_entry;

/* What a compiled kernel file shows, under the name emu_module. */
typedef struct emu_module_info {
    emu_api **api;
    const char *begin, *end;  /* its image in memory; shared addresses count from begin */
    char *fixed, *fixed_end;  /* shared variables of fixed size */
    char *dynamic;            /* and the launch's own */
    const emu_entry *entries; /* ends with a name of NULL */
} emu_module_info;

enum { EMU_DYNAMIC_BYTES = 227 * 1024, EMU_PROCESSOR_BYTES = 228 * 1024 };

#endif
