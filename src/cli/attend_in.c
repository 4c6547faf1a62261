/* Tensors of `paceline attend`: see attend_in.h. Random ones are normal numbers keyed by
 * (seed, tensor, element), so the same command gives the same numbers on every machine.
 * Tensors of a file are used where they lie; only unaligned ones are copied. */
#include "cli/attend_in.h"
#include "core/limits.h"
#include "core/rng.h"
#include "core/str.h"
#include <string.h>

flex_view attend_in_view(dtype type, const void *data, int64_t heads, int64_t rows, int64_t dim) {
    return (flex_view){
        .type = type, .data = data, .sb = heads * rows * dim, .sh = rows * dim, .sl = dim};
}

static err aligned(arena *mem, const tensor *t, const void **out) {
    void *copy;
    *out = t->data;
    if ((uintptr_t)t->data % dtype_size(t->type) == 0) return ERR_OK;
    TRY(arena_alloc_raw(mem, tensor_bytes(t) + 1, 1, &copy));
    memcpy(copy, t->data, tensor_bytes(t));
    *out = copy;
    return ERR_OK;
}

static err find_qkv(const st_file *f, const char *name, const tensor **out) {
    *out = safetensors_find(f, name);
    if (!*out)
        return err_set(ERR_SHAPE, "%s: tensor '%s' is missing; q, k and v are needed",
                       safetensors_path(f), name);
    if ((*out)->ndim != 4)
        return err_set(ERR_SHAPE, "%s: tensor '%s' has %d dimensions instead of 4",
                       safetensors_path(f), name, (*out)->ndim);
    if ((*out)->type != DT_F32 && (*out)->type != DT_BF16)
        return err_set(ERR_SHAPE, "%s: tensor '%s' is %s; F32 or BF16 is needed",
                       safetensors_path(f), name, dtype_name((*out)->type));
    return ERR_OK;
}

static err expect(const st_file *f, const tensor *t, int ndim, const int64_t *dim) {
    return err_context(tensor_expect(t, ndim, dim), "%s: ", safetensors_path(f));
}

static err load_gradient(const st_file *f, const char *name, int ndim, const int64_t *dim,
                         const float **out, arena *mem) {
    const tensor *t = safetensors_find(f, name);
    float *values;
    if (!t) return ERR_OK;
    TRY(expect(f, t, ndim, dim));
    if (t->type != DT_F32 && t->type != DT_BF16)
        return err_set(ERR_SHAPE, "%s: tensor '%s' is %s; F32 or BF16 is needed",
                       safetensors_path(f), name, dtype_name(t->type));
    TRY(arena_alloc_raw(mem, (size_t)tensor_count(t), sizeof *values, &values));
    dtype_to_f32(t->type, t->data, values, (size_t)tensor_count(t));
    *out = values;
    return ERR_OK;
}

static err load_file(attend_in *in, const st_file *f, arena *mem) {
    const tensor *q, *k, *v;
    TRY(find_qkv(f, "q", &q));
    TRY(find_qkv(f, "k", &k));
    TRY(find_qkv(f, "v", &v));
    if (q->type != k->type || q->type != v->type)
        return err_set(ERR_SHAPE, "%s: q is %s, k is %s and v is %s; one type is needed",
                       safetensors_path(f), dtype_name(q->type), dtype_name(k->type),
                       dtype_name(v->type));
    *in = (attend_in){.batch = q->dim[0],
                      .q_heads = q->dim[1],
                      .kv_heads = k->dim[1],
                      .q_len = q->dim[2],
                      .kv_len = k->dim[2],
                      .dim = q->dim[3],
                      .v_dim = v->dim[3],
                      .type = q->type};
    TRY(expect(f, k, 4, (int64_t[]){in->batch, in->kv_heads, in->kv_len, in->dim}));
    TRY(expect(f, v, 4, (int64_t[]){in->batch, in->kv_heads, in->kv_len, in->v_dim}));
    TRY(aligned(mem, q, &in->q));
    TRY(aligned(mem, k, &in->k));
    TRY(aligned(mem, v, &in->v));
    TRY(load_gradient(f, "do", 4, (int64_t[]){in->batch, in->q_heads, in->q_len, in->v_dim},
                      &in->d_o, mem));
    return load_gradient(f, "dlse", 3, (int64_t[]){in->batch, in->q_heads, in->q_len}, &in->d_lse,
                         mem);
}

static err draw(arena *mem, dtype type, int64_t n, int64_t seed, uint64_t which, const void **out) {
    float *x;
    bf16 *y;
    if (type == DT_F32) {
        TRY(arena_alloc_raw(mem, (size_t)n, sizeof *x, &x));
        for (int64_t i = 0; i < n; i++)
            x[i] = (float)rng_normal((uint64_t)seed, RNG_TEST, which, (uint64_t)i);
        *out = x;
        return ERR_OK;
    }
    TRY(arena_alloc_raw(mem, (size_t)n, sizeof *y, &y));
    for (int64_t i = 0; i < n; i++)
        y[i] = bf16_from_f32((float)rng_normal((uint64_t)seed, RNG_TEST, which, (uint64_t)i));
    *out = y;
    return ERR_OK;
}

static err parse_shape(const char *text, int64_t shape[6]) {
    const char *p = text;
    for (int i = 0; i < 6; i++) {
        char number[24];
        size_t n = strcspn(p, ",");
        if (n == 0 || n >= sizeof number) break;
        memcpy(number, p, n);
        number[n] = 0;
        if (!args_parse_int(number, &shape[i]) || shape[i] < 0 || shape[i] > INT64_C(1) << 32)
            break;
        p += n;
        if (i == 5 && !*p) return ERR_OK;
        if (*p++ != ',') break;
    }
    return err_set(ERR_USAGE,
                   "--random needs six numbers B,Hq,Hkv,L,S,D from 0 to 4294967296, not '%s'",
                   text);
}

/* Drawing writes every byte: what the machine does not have would end in a kill instead of a sentence. Counts the tensors alone. */
static err check_room(const int64_t s[6], dtype type, int backward) {
    const double rows = (double)s[0] * (double)s[1] * (double)s[3],
                 keys = (double)s[0] * (double)s[2] * (double)s[4], dim = (double)s[5],
                 most =
                     0x1p60; /* where nothing is known of memory: element counts stay in 64 bits */
    double bytes = (rows + 2 * keys) * dim * (double)dtype_size(type) + rows * (dim + 1) * 4;
    char need[24], have[24];
    limits_memory m;
    if (backward) bytes += (2 * rows + 2 * keys) * dim * 4;
    limits_get_memory("", &m);
    const double room = m.room < 0 ? most : m.room;
    if (bytes <= room) return ERR_OK;
    return err_set(
        ERR_MEMORY,
        "the tensors of this problem take %s and %s of memory can be had here; make it smaller",
        str_bytes(bytes, need), str_bytes(room, have));
}

static err load_random(attend_in *in, const args *a, int backward, arena *mem) {
    int64_t s[6], seed;
    const char *type = args_text(a, "--type", "f32");
    const void *d_o;
    TRY(parse_shape(args_text(a, "--random", ""), s));
    TRY(args_int(a, "--seed", 1, 0, INT64_MAX, &seed));
    if (strcmp(type, "f32") && strcmp(type, "bf16"))
        return err_set(ERR_USAGE, "--type is f32 or bf16, not '%s'", type);
    *in = (attend_in){.batch = s[0],
                      .q_heads = s[1],
                      .kv_heads = s[2],
                      .q_len = s[3],
                      .kv_len = s[4],
                      .dim = s[5],
                      .v_dim = s[5],
                      .type = type[0] == 'f' ? DT_F32 : DT_BF16};
    TRY(check_room(s, in->type, backward));
    TRY(draw(mem, in->type, s[0] * s[1] * s[3] * s[5], seed, 0, &in->q));
    TRY(draw(mem, in->type, s[0] * s[2] * s[4] * s[5], seed, 1, &in->k));
    TRY(draw(mem, in->type, s[0] * s[2] * s[4] * s[5], seed, 2, &in->v));
    if (!backward) return ERR_OK;
    TRY(draw(mem, DT_F32, s[0] * s[1] * s[3] * s[5], seed, 3, &d_o));
    in->d_o = d_o;
    return ERR_OK;
}

err attend_in_load(attend_in *in, const args *a, const st_file *file, int backward, arena *mem) {
    int random = args_has(a, "--random");
    if (!random && !file)
        return err_set(ERR_USAGE, "--in FILE or --random B,Hq,Hkv,L,S,D is needed");
    if (random && file && safetensors_find(file, "q"))
        return err_set(ERR_USAGE,
                       "--random is given and %s holds a tensor q: choose one source of q, k and v",
                       safetensors_path(file));
    return random ? load_random(in, a, backward, mem) : load_file(in, file, mem);
}

err attend_in_sinks(const attend_in *in, const st_file *file, const char *name, arena *mem,
                    float **out) {
    *out = NULL;
    if (!name) return ERR_OK;
    if (!file) return err_set(ERR_USAGE, "--sinks %s needs --in with that tensor", name);
    const tensor *t = safetensors_find(file, name);
    if (!t)
        return err_set(ERR_SHAPE, "%s: tensor '%s', which --sinks names, is missing",
                       safetensors_path(file), name);
    if (!dtype_is_float(t->type))
        return err_set(ERR_SHAPE, "%s: tensor '%s' is %s; sinks are floats", safetensors_path(file),
                       name, dtype_name(t->type));
    TRY(expect(file, t, 1, &in->q_heads));
    TRY(arena_alloc(mem, (size_t)in->q_heads, sizeof(float), out));
    dtype_to_f32(t->type, t->data, *out, (size_t)in->q_heads);
    return ERR_OK;
}
