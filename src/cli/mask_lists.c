/* Lists of tiles to and from a file: names, extents, element type.
 *
 * Lengths and tile sizes are not in PyTorch's arrays, so the file's metadata must hold them. Arrays may lie unaligned in
 * the file and are copied. */
#include "cli/mask_lists.h"
#include "cli/args.h"
#include "core/str.h"
#include <stdio.h>
#include <string.h>

enum { ARRAYS = 8, NUMBERS = 4 };
/* Counts and indices, partial and full, by query tiles; then by key tiles. */
static const char *const names[ARRAYS] = {
    "kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices",
    "q_num_blocks",  "q_indices",  "full_q_num_blocks",  "full_q_indices"};
static const char *const numbers[NUMBERS] = {"q_len", "kv_len", "block_q", "block_kv"};

err mask_lists_write(const block_mask *m, const char *path, arena *a) {
    const int64_t value[NUMBERS] = {m->q_len, m->kv_len, m->tile_q, m->tile_kv};
    char text[NUMBERS][24];
    const char *meta[NUMBERS][2];
    tensor t[ARRAYS];
    blockmask_lists l;
    TRY(blockmask_export(&l, m, a));
    const int32_t *const data[ARRAYS] = {l.kv.count, l.kv.index, l.kv.full_count, l.kv.full_index,
                                         l.q.count,  l.q.index,  l.q.full_count,  l.q.full_index};
    for (int i = 0; i < ARRAYS; i++) {
        int64_t lines = i < 4 ? m->q_tiles : m->kv_tiles, across = i < 4 ? m->kv_tiles : m->q_tiles;
        t[i] = (tensor){.name = names[i],
                        .type = DT_I32,
                        .ndim = 3 + i % 2,
                        .dim = {m->batch, m->heads, lines, across},
                        .data = data[i]};
    }
    for (int i = 0; i < NUMBERS; i++) {
        snprintf(text[i], sizeof text[i], "%lld", (long long)value[i]);
        meta[i][0] = numbers[i], meta[i][1] = text[i];
    }
    return safetensors_write(path, t, ARRAYS, (const char *const(*)[2])meta, NUMBERS);
}

static err read_numbers(const st_file *f, int64_t *value) {
    for (int i = 0; i < NUMBERS; i++) {
        const char *text = safetensors_meta(f, numbers[i]);
        if (!text || !args_parse_int(text, &value[i]) || value[i] < (i < 2 ? 0 : 1) ||
            value[i] > INT32_MAX)
            return err_set(
                ERR_FORMAT,
                "%s: metadata '%s' is %s; a block mask's file says its lengths (q_len, kv_len) and tiles "
                "(block_q, block_kv) there as whole numbers",
                safetensors_path(f), numbers[i], text ? text : "missing");
    }
    return ERR_OK;
}

/* Array i as an aligned copy, or NULL when it is absent. */
static err read_array(const st_file *f, int i, int64_t *entries, int64_t lines, int64_t across,
                      arena *a, const int32_t **out) {
    const tensor *t = safetensors_find(f, names[i]);
    int32_t *copy;
    *out = NULL;
    if (!t) return ERR_OK;
    if (t->type != DT_I32)
        return err_set(ERR_SHAPE, "%s: tensor '%s' is %s; lists of tiles are I32",
                       safetensors_path(f), t->name, dtype_name(t->type));
    if (!*entries && t->ndim >= 2) entries[0] = t->dim[0], entries[1] = t->dim[1];
    const int64_t dim[4] = {entries[0], entries[1], lines, across};
    err e = tensor_expect(t, 3 + i % 2, dim);
    if (e) return err_context(e, "%s: ", safetensors_path(f));
    TRY(arena_alloc_raw(a, tensor_bytes(t), 1, &copy));
    memcpy(copy, t->data, tensor_bytes(t));
    *out = copy;
    return ERR_OK;
}

/* Arrays come in pairs; those of partial tiles by queries are needed. */
static err check_pairs(const st_file *f, const int32_t *const *x) {
    for (int i = 0; i < ARRAYS; i++)
        if (!x[i] && (i < 2 || x[i ^ 1]))
            return err_set(ERR_FORMAT, "%s: tensor '%s' is missing; %s", safetensors_path(f),
                           names[i],
                           i < 2 ? "kv_num_blocks and kv_indices are needed"
                                 : "counts and indices come in pairs");
    return ERR_OK;
}

err mask_lists_read(block_mask *out, const st_file *file, size_t budget, arena *a) {
    const int32_t *x[ARRAYS];
    int64_t v[NUMBERS], entries[2] = {0, 0};
    TRY(read_numbers(file, v));
    int64_t q_tiles = (v[0] + v[2] - 1) / v[2], kv_tiles = (v[1] + v[3] - 1) / v[3];
    for (int i = 0; i < ARRAYS; i++)
        TRY(read_array(file, i, entries, i < 4 ? q_tiles : kv_tiles, i < 4 ? kv_tiles : q_tiles, a,
                       &x[i]));
    TRY(check_pairs(file, x));
    const blockmask_lists l = {.batch = entries[0],
                               .heads = entries[1],
                               .q_len = v[0],
                               .kv_len = v[1],
                               .tile_q = (int32_t)v[2],
                               .tile_kv = (int32_t)v[3],
                               .kv = {x[0], x[1], x[2], x[3]},
                               .q = {x[4], x[5], x[6], x[7]}};
    err e = blockmask_import(out, &l, budget, a);
    return e ? err_context(e, "%s: ", safetensors_path(file)) : ERR_OK;
}
