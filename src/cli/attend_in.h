/* The tensors of `paceline attend`: read from a safetensors file or drawn at random, checked, ready for flex.
 *
 * q [B,Hq,L,D], k [B,Hkv,S,D], v [B,Hkv,S,Dv] of one type (F32 or BF16); do [B,Hq,L,Dv] and dlse [B,Hq,L] optional. */
#ifndef CLI_ATTEND_IN_H
#define CLI_ATTEND_IN_H
#include "cli/args.h"
#include "core/arena.h"
#include "flex/flex.h"
#include "io/safetensors.h"

typedef struct attend_in {
    int64_t batch, q_heads, kv_heads, q_len, kv_len, dim, v_dim;
    dtype type;
    const void *q, *k, *v;
    const float *d_o;   /* fp32; NULL: not given */
    const float *d_lse; /* NULL: not given */
} attend_in;

/* From --in (tensors by name) or --random B,Hq,Hkv,L,S,D with --type and --seed; file is the opened --in or NULL.
 * Memory from a. backward 1 with --random also draws do. */
MUST_CHECK err attend_in_load(attend_in *in, const args *a, const st_file *file, int backward,
                              arena *mem);
/* The tensor of the file that holds a sink for every query head, NULL without a name; copied as F32. Memory from mem. */
MUST_CHECK err attend_in_sinks(const attend_in *in, const st_file *file, const char *name,
                               arena *mem, float **out);
/* A contiguous [B, heads, rows, dim] view. */
flex_view attend_in_view(dtype type, const void *data, int64_t heads, int64_t rows, int64_t dim);

#endif
