/* Paceline's attention engine for other programs: flex attention whose masks are expressions, with its gradients.
 *
 * In one breath: describe a problem (shapes, a mask as text, the values that the text names), make a plan of it, ask the
 * plan how much workspace a run needs, run it. examples/attend.c is a complete program; docs/LANGUAGE.md is the language.
 *
 *     pl_problem_create(&problem, &(pl_shape){.size = sizeof(pl_shape), .batch = 1, .q_heads = 8, ...}, PL_F32);
 *     pl_problem_mask(problem, "kv <= q && q - kv < window");
 *     pl_problem_int(problem, "window", 256);
 *     pl_device_open_cpu(&device, 0);
 *     pl_plan_create(&plan, problem, device);
 *     io.workspace_bytes = pl_plan_forward_workspace(plan, device);
 *     pl_forward(plan, device, &io);
 *
 * What is computed. Query head h reads key/value head h / (q_heads / kv_heads). For each query row
 *     s = scale * q . k  ->  score expression  ->  mask (hidden cells take no part)  ->  softmax in fp32  ->  o = sum of weights * v
 *     lse = natural logarithm of the sum of exp(score), the head's sink included where there is one
 * A row that sees nothing gives o = 0, lse = -inf and zero gradients. Hidden keys and values are never multiplied: a NaN
 * there reaches nothing. Memory follows tiles of the score matrix, never its cells. Results are the same bits for any
 * number of threads and for every call.
 *
 * Errors. Every function that can fail returns a pl_error, PL_OK = 0. After a failure pl_error_text() is one sentence of
 * what is wrong and what to do, kept per thread. A failed function leaves its outputs' handles NULL and changes nothing
 * else, but for the tensors of a run, which may be half written. NULL where a handle, a name or an output is needed is
 * PL_ERROR_USAGE. Nothing here prints, exits or installs a signal handler.
 *
 * Ownership. Handles are made by _create and _open and freed by _free (NULL is fine there); they own copies of all text,
 * names and scalars given to them. Arrays, tensors and workspaces stay the caller's; each function says how long it reads
 * them. A run allocates nothing of its own.
 *
 * Threads. Any number of threads may use separate handles at the same time, also for the first time. A const handle may be
 * used by several threads at once: one plan may be run by many, each with a pl_io and a workspace of its own. Runs on one
 * device queue up; threads that are to run side by side open a device each. A handle that is not const in a function's
 * signature must not be in use elsewhere during that call, devices excepted.
 *
 * Compatibility. Structs that may grow begin with their size, to be set to sizeof; a program built with an older header runs
 * with a newer library of the same soname. Structs without a size never change. Types, codes and kinds keep their numbers. C11
 * and C++11.
 *
 * Environment: PACELINE_THREADS and PACELINE_ISA bound threads and instruction sets, PACELINE_REFERENCE=1 computes by the
 * plain definition; `paceline --help` tells them. */
#ifndef PACELINE_FLEX_H
#define PACELINE_FLEX_H
#include <stddef.h>
#include <stdint.h>

#define PL_VERSION "0.1.0"

#if defined(__GNUC__)
#define PL_API  __attribute__((visibility("default")))
#define PL_MUST __attribute__((visibility("default"), warn_unused_result))
#else
#define PL_API
#define PL_MUST
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors ---- */

typedef enum pl_error {
    PL_OK = 0,
    PL_ERROR_USAGE =
        1, /* a call that cannot be meant: NULL, a missing value, a struct of the wrong size */
    PL_ERROR_IO = 3,    /* the system refused: a thread could not be started */
    PL_ERROR_SHAPE = 5, /* extents, strides or types that do not fit together */
    PL_ERROR_SYNTAX =
        6, /* in a mask or score: the sentence goes on for two lines, the text and a caret below it */
    PL_ERROR_RANGE = 7,     /* a value out of its range; a load proven to leave its array */
    PL_ERROR_MEMORY = 8,    /* the sentence says the bytes needed */
    PL_ERROR_REFUSED = 9,   /* understood and not done: a block mask beyond its budget */
    PL_ERROR_NUMERIC = 10,  /* NaN or +inf where none may be */
    PL_ERROR_INTERNAL = 12, /* a fault of the library */
    PL_ERROR_FORCE_INT = 0x7fffffff
} pl_error;

/* The sentence of this thread's last failure, "" before the first. Valid until this thread's next call of the library. */
PL_API const char *pl_error_text(void);
/* Short name of a code: "shape mismatch". Never NULL. */
PL_API const char *pl_error_name(pl_error code);
/* Version of the library in use; PL_VERSION is that of the header. */
PL_API const char *pl_version(void);

/* ---- element types ---- */

typedef enum pl_type {
    PL_F32 = 0,
    PL_F64 = 1,
    PL_F16 = 2,
    PL_BF16 = 3,
    PL_I8 = 4,
    PL_U8 = 5,
    PL_I16 = 6,
    PL_I32 = 7,
    PL_I64 = 8,
    PL_BOOL = 9, /* one byte, 0 or 1 */
    PL_TYPE_FORCE_INT = 0x7fffffff
} pl_type;

/* ---- devices: what a run happens on ---- */

typedef struct pl_device pl_device;
/* The CPU with this many threads, 1 to 1024; 0: PACELINE_THREADS, else the CPUs that this process may use. The calling
 * thread of a run is one of them. */
PL_MUST pl_error pl_device_open_cpu(pl_device **out, int threads);
PL_API void pl_device_free(pl_device *d);
PL_API int pl_device_threads(const pl_device *d);
/* "CPU, 8 threads, avx512". Owned by the device. */
PL_API const char *pl_device_text(const pl_device *d);

/* ---- problems: what is to be computed ---- */

/* Extents. q is [batch, q_heads, q_len, dim], k [batch, kv_heads, kv_len, dim], v [batch, kv_heads, kv_len, v_dim],
 * o [batch, q_heads, q_len, v_dim]. batch and lengths may be 0; kv_heads divides q_heads; dim and v_dim are multiples of 8
 * from 8 to 256. A mask alone (pl_mask_create) needs batch, q_heads, q_len and kv_len. */
typedef struct pl_shape {
    size_t size; /* sizeof(pl_shape) */
    int64_t batch, q_heads, kv_heads, q_len, kv_len, dim, v_dim;
} pl_shape;

typedef struct pl_problem pl_problem;
typedef struct pl_mask pl_mask;

/* type is that of q, k and v: PL_F32 or PL_BF16, else PL_ERROR_SHAPE. shape is copied. Outputs and gradients are fp32. Extents are checked when a plan or mask is
 * made. A problem may be changed and planned again; plans keep what they were made of. */
PL_MUST pl_error pl_problem_create(pl_problem **out, const pl_shape *shape, pl_type type);
PL_API void pl_problem_free(pl_problem *p);

/* Factor of q . k, rounded to fp32; PL_ERROR_RANGE when that is not finite. Not called: 1 / sqrt(dim). */
PL_MUST pl_error pl_problem_scale(pl_problem *p, double scale);
/* Cells of a tile, multiples of 8 from 8 to 1024; 0 (also when not called): chosen by the plan, 128 for a mask alone. */
PL_MUST pl_error pl_problem_tiles(pl_problem *p, int tile_q, int tile_kv);
/* Bytes that a block mask may take; beyond it PL_ERROR_REFUSED. 0, or not called: 256 MiB. */
PL_MUST pl_error pl_problem_mask_budget(pl_problem *p, size_t bytes);
/* Added to q and kv in the expressions: a problem that is a slice of a longer one. Each from 0 to 2^40, else
 * PL_ERROR_RANGE. Cells that a run or an error tells of are rows of the tensors, without the offsets. */
PL_MUST pl_error pl_problem_offsets(pl_problem *p, int64_t q0, int64_t kv0);

/* The mask: an expression over b, h, q, kv and captured names that is true where a key is visible. NULL, or not called:
 * every key is visible. It is read when a plan or mask is made: PL_ERROR_SYNTAX comes from there. Replaces a mask handle. */
PL_MUST pl_error pl_problem_mask(pl_problem *p, const char *text);
/* A block mask built before, with its expression and values: saves building it for each of several plans. m is borrowed for
 * the life of the problem's plans. The problem must have the batch, query heads, lengths and (when set) tile sizes that m was
 * built for: PL_ERROR_SHAPE with both, when the plan is made. Replaces a mask text; NULL takes it away. */
PL_MUST pl_error pl_problem_use_mask(pl_problem *p, const pl_mask *m);

/* The score: an expression over s (scale * q . k, fp32), b, h, q, kv and captured names that gives what is to stand in s's place.
 * -inf hides a cell; NaN or +inf in a visible cell fails the run with PL_ERROR_NUMERIC and the cell. NULL, or not called: s
 * itself, and nothing is looked for: a NaN in q, k or v reaches the rows that see it. Read when a plan is made. */
PL_MUST pl_error pl_problem_score(pl_problem *p, const char *text);
/* Sinks: one logit for each query head, [q_heads], that joins the denominator of its rows; -inf for none. NULL takes them
 * away. Borrowed for the life of p's plans and read by each run, so values may change between runs; backward writes their
 * gradient. */
PL_MUST pl_error pl_problem_sinks(pl_problem *p, const float *sinks);

/* Values for the names in the expressions: letters, digits and `_`, one set for mask and score, 16 at most (PL_ERROR_RANGE). A
 * name given again takes the new value and type. A plan keeps the values of its time; what is learned is an array, of one
 * element if need be. */
PL_MUST pl_error pl_problem_int(pl_problem *p, const char *name, int64_t value);
PL_MUST pl_error pl_problem_float(pl_problem *p, const char *name, float value);
PL_MUST pl_error pl_problem_bool(pl_problem *p, const char *name, int value);
/* An array, read as name[i, j, ...]: contiguous, row by row, ndim 1 to 4, aligned to its elements. Integer types give
 * integers, PL_BOOL conditions, float types floats. data is borrowed for the life of the plans and masks made of p.
 * Its values must stay as they are, but for float arrays that only the score reads: each run reads these anew, so a bias that is
 * learned needs no new plan. */
PL_MUST pl_error pl_problem_array(pl_problem *p, const char *name, pl_type type, int ndim,
                                  const int64_t *extents, const void *data);
/* wanted 1: backward gives the gradient of this float array or float, which the score reads; 0: it does not. The name has
 * been given a value before. */
PL_MUST pl_error pl_problem_gradient(pl_problem *p, const char *name, int wanted);

/* ---- masks: which tiles hold visible cells ---- */

enum { PL_TILE_EMPTY = 0, PL_TILE_PARTIAL = 1, PL_TILE_FULL = 2 };

typedef struct pl_mask_info {
    size_t size;                        /* sizeof(pl_mask_info), set by the caller */
    int64_t batch, heads;               /* the problem's */
    int64_t stored_batch, stored_heads; /* 1 where the mask is the same for all */
    int64_t q_len, kv_len;              /* cells */
    int64_t tile_q, tile_kv;            /* cells of a tile */
    int64_t q_tiles, kv_tiles;          /* tiles of one batch and head */
    int64_t empty, partial, full;       /* tiles of all stored entries */
    int64_t undecided;                  /* tiles that were counted cell by cell */
    size_t bytes, peak_bytes;           /* kept; while building */
    double build_ms;                    /* milliseconds */
    int32_t no_empty_row;               /* 1: every query row sees a key */
    int32_t may_leave; /* 1: a load is not proven to stay inside its array (it is guarded) */
} pl_mask_info;

/* Builds the block mask of the problem's mask alone. d may be NULL. The mask needs neither p nor d afterwards, but borrows the
 * problem's arrays. PL_ERROR_SYNTAX for the texts, PL_ERROR_SHAPE for a captured array of the wrong type or extents,
 * PL_ERROR_RANGE for a load that leaves its array in a visible cell, PL_ERROR_REFUSED beyond the budget. */
PL_MUST pl_error pl_mask_create(pl_mask **out, const pl_problem *p, pl_device *d);
PL_API void pl_mask_free(pl_mask *m);
/* Fills *info; info->size, set before, tells which fields it has. */
PL_MUST pl_error pl_mask_get_info(const pl_mask *m, pl_mask_info *info);
/* Kinds of the tiles of one batch and head, [q_tiles, kv_tiles] row by row, one byte each: PL_TILE_... . b and h count the problem's
 * batch and query heads. capacity: bytes at kinds, q_tiles * kv_tiles at least, else
 * PL_ERROR_RANGE. */
PL_MUST pl_error pl_mask_tiles(const pl_mask *m, int64_t b, int64_t h, uint8_t *kinds,
                               size_t capacity);

/* A mask as padded lists of tiles, the form of PyTorch's BlockMask: int32, contiguous. count is [batch, heads, lines] and
 * index [batch, heads, lines, across]: the first count tiles of a line are listed, the rest is not read. Partial lists hold
 * tiles whose cells the expression decides, full lists tiles that are visible whole; the others see nothing. */
typedef struct pl_side {
    const int32_t *count, *index; /* kv_num_blocks, kv_indices (q_num_blocks, q_indices) */
    const int32_t *full_count, *full_index; /* full_...; NULL, both: no tile is full */
} pl_side;
typedef struct pl_lists {
    size_t size;          /* sizeof(pl_lists) */
    int64_t batch, heads; /* the problem's, or 1 for all */
    int32_t tile_q, tile_kv;
    pl_side by_q; /* lines are query tiles, across key tiles */
    pl_side
        by_kv; /* lines are key tiles, across query tiles; all NULL: made from by_q, else held against it */
} pl_lists;

/* A mask from lists, for the problem's lengths, with the problem's mask text for the cells of partial tiles. The lists are
 * read and not kept. PL_ERROR_RANGE names the list and the tile that cannot be. */
PL_MUST pl_error pl_mask_import(pl_mask **out, const pl_problem *p, const pl_lists *lists);
/* The lists of one direction into the caller's arrays, indices rising, -1 behind the counts: by_kv 0 for lines of query tiles, 1
 * for lines of key tiles. Extents [stored_batch, stored_heads, q_tiles, kv_tiles] of pl_mask_info; by_kv exchanges the last two. */
PL_MUST pl_error pl_mask_export(const pl_mask *m, int by_kv, int32_t *count, int32_t *index,
                                int32_t *full_count, int32_t *full_index);
/* Whether an imported mask says what its expression says: PL_ERROR_RANGE with the first tile that is listed as full, or not
 * listed, and should not be. *loose (may be NULL): tiles listed as partial that need not be. */
PL_MUST pl_error pl_mask_check(const pl_mask *m, int64_t *loose);

/* ---- plans: how it is computed ---- */

typedef struct pl_plan pl_plan;
/* Checks the whole problem, reads the expressions, builds the block mask and chooses the kernels for devices like d. The
 * plan needs neither p nor d afterwards, but borrows the problem's arrays, sinks and mask handle. Errors are those of
 * pl_mask_create, and PL_ERROR_SHAPE or PL_ERROR_RANGE for the problem's extents, which the sentence gives. */
PL_MUST pl_error pl_plan_create(pl_plan **out, const pl_problem *p, pl_device *d);
PL_API void pl_plan_free(pl_plan *plan);
/* The plan's block mask, owned by the plan. */
PL_API const pl_mask *pl_plan_mask(const pl_plan *plan);
/* Bytes of workspace for a run on d; they follow the tiles and the number of d's threads. May be 0. */
PL_API size_t pl_plan_forward_workspace(const pl_plan *plan, const pl_device *d);
PL_API size_t pl_plan_backward_workspace(const pl_plan *plan, const pl_device *d);
/* Bytes that the plan itself holds, block mask included. */
PL_API size_t pl_plan_bytes(const pl_plan *plan);
/* Share of all cells that lie in visited tiles, 0 to 1. */
PL_API double pl_plan_visited(const pl_plan *plan);
/* Bytes of the fp32 score matrix that a dense run would take and this one never makes. */
PL_API double pl_plan_dense_bytes(const pl_plan *plan);
/* The choices in words, some lines, ended by 0. *needed (may be NULL) is the room that the whole text needs; with less of it
 * (capacity bytes at text; 0 with NULL asks only) the text is cut. */
PL_MUST pl_error pl_plan_explain(const pl_plan *plan, char *text, size_t capacity, size_t *needed);

/* ---- runs ---- */

/* A tensor [batch, heads, length, dim] that is read, and one that is written. Strides count elements; the last one must be
 * 1, the others may be anything that keeps the elements inside the caller's memory, 0 (repeated rows) only where read. */
typedef struct pl_view {
    const void *data; /* aligned to its elements; NULL only where there are none */
    pl_type type;
    int64_t stride[4];
} pl_view;
typedef struct pl_out {
    float *data;
    int64_t stride[4];
} pl_out;

/* Where backward writes the gradient of a captured value: fp32, of the array's extents, one element for a float. */
typedef struct pl_gradient {
    const char *name;
    float *data;
} pl_gradient;

typedef struct pl_io {
    size_t size; /* sizeof(pl_io) */
    pl_view q, k, v;
    pl_out o;
    float *
        lse; /* [batch, q_heads, q_len] contiguous. Forward writes it, NULL: not wanted; backward reads it */
    void *workspace;        /* aligned to 64 bytes; contents do not matter before or after */
    size_t workspace_bytes; /* what it holds: at least what the plan states */
    /* Set by a run to 1 when a load of an expression left its array (it gave 0), with b, h, q, kv of the first such cell
     * in the tiles that are visited; else to 0. */
    int32_t left, reserved;
    int64_t left_cell[4];
    /* Backward: o and lse as forward wrote them, gradients of both in, gradients of q, k and v out (written, not added). */
    pl_view d_o;        /* PL_F32, shape of o */
    const float *d_lse; /* [batch, q_heads, q_len] contiguous; NULL: zeros */
    pl_out dq, dk, dv;  /* shapes of q, k, v */
    float *d_sinks;     /* [q_heads]; needed by backward of a plan with sinks */
    const pl_gradient
        *gradients; /* [n_gradients]: exactly the ones that the problem wanted, in any order */
    int64_t n_gradients;
} pl_io;

/* Contiguous tensors: strides (heads*length*dim, length*dim, dim, 1). */
PL_API pl_view pl_view_dense(const void *data, pl_type type, int64_t heads, int64_t length,
                             int64_t dim);
PL_API pl_out pl_out_dense(float *data, int64_t heads, int64_t length, int64_t dim);

/* Runs the plan on d and returns when it is done. Reads q, k, v; writes o and lse. PL_ERROR_USAGE for a tensor that is missing,
 * and for a workspace that is missing, not aligned or too small (the sentence gives the bytes needed); PL_ERROR_SHAPE for types and
 * strides; PL_ERROR_NUMERIC with the first visible cell for which a score expression gives NaN or +inf. */
PL_MUST pl_error pl_forward(const pl_plan *plan, pl_device *d, pl_io *io);
/* The same for gradients. Reads q, k, v, o, lse, d_o and d_lse; writes dq, dk, dv and the gradients of sinks and captured values. */
PL_MUST pl_error pl_backward(const pl_plan *plan, pl_device *d, pl_io *io);

/* ---- partial results ---- */

/* Joins attention over parts of the keys: o[i] is [rows, dim] and lse[i] is [rows], of part i; an empty part has lse -inf
 * and may hold anything in o. Writes out [rows, dim] and out_lse [rows], which must not overlap the parts. No parts, or
 * only empty ones, give 0 and -inf. */
PL_MUST pl_error pl_merge(int parts, int64_t rows, int64_t dim, const float *const *o,
                          const float *const *lse, float *out, float *out_lse);

#ifdef __cplusplus
}
#endif
#endif
