/* Input of `paceline probe`: see probe_in.h. Everything is checked here (types, extents, ids in the
 * vocabulary, documents and anchors in order), so that the model code may assume it.
 * Positions are derived: they restart with each document. */
#include "cli/probe_in.h"
#include <string.h>

static err load_ints(const st_file *f, const char *name, int64_t n, int64_t min, int64_t max,
                     int32_t *out) {
    const tensor *t = safetensors_find(f, name);
    TRY(err_context(tensor_expect(t, 1, &n), "%s: ", safetensors_path(f)));
    if (t->type != DT_I64)
        return err_set(ERR_SHAPE, "%s: tensor '%s' is %s; I64 is needed", safetensors_path(f), name,
                       dtype_name(t->type));
    for (int64_t i = 0; i < n; i++) {
        int64_t v;
        memcpy(&v, (const char *)t->data + 8 * i, 8);
        if (v < min || v > max)
            return err_set(ERR_RANGE, "%s: %s[%lld] is %lld; it must be between %lld and %lld",
                           safetensors_path(f), name, (long long)i, (long long)v, (long long)min,
                           (long long)max);
        out[i] = (int32_t)v;
    }
    return ERR_OK;
}

static err load_documents(const st_file *f, data_row *r) {
    r->docs = 0;
    if (safetensors_find(f, "document"))
        TRY(load_ints(f, "document", r->n, 0, INT32_MAX, r->document));
    for (int64_t i = 0; i < r->n; i++) {
        int starts = i == 0 || r->document[i] != r->document[i - 1];
        if (i && r->document[i] < r->document[i - 1])
            return err_set(ERR_RANGE,
                           "%s: document[%lld] is smaller than the one before; ids must not fall",
                           safetensors_path(f), (long long)i);
        r->position[i] = starts ? 0 : r->position[i - 1] + 1;
        if (starts) r->doc_start[r->docs++] = i;
    }
    r->doc_start[r->docs] = r->n;
    for (int64_t d = 0; d < r->docs; d++) { /* ids become 0, 1, 2 … within the row */
        r->doc_id[d] = d;
        for (int64_t i = r->doc_start[d]; i < r->doc_start[d + 1]; i++) r->document[i] = (int32_t)d;
    }
    return ERR_OK;
}

static err load_loss(const st_file *f, data_row *r, arena *a) {
    int32_t *values;
    if (!safetensors_find(f, "loss_mask")) return ERR_OK;
    TRY(arena_alloc(a, (size_t)r->n, sizeof *values, &values));
    TRY(load_ints(f, "loss_mask", r->n, 0, 1, values));
    for (int64_t i = 0; i < r->n; i++) r->loss[i] = (uint8_t)values[i];
    return ERR_OK;
}

static err load_anchors(probe_in *in, const st_file *f, arena *a) {
    const tensor *t = safetensors_find(f, "anchors");
    int32_t last = -1;
    if (!t) return ERR_OK;
    if (t->ndim != 1)
        return err_set(ERR_SHAPE, "%s: tensor 'anchors' must have one dimension",
                       safetensors_path(f));
    in->n_anchors = t->dim[0];
    TRY(arena_alloc(a, (size_t)in->n_anchors + 1, sizeof *in->anchor, &in->anchor));
    TRY(load_ints(f, "anchors", in->n_anchors, -1, in->row.n - 1, in->anchor));
    for (int64_t i = 0; i < in->n_anchors; i++) {
        if (in->anchor[i] >= 0 && in->anchor[i] < last)
            return err_set(ERR_RANGE,
                           "%s: anchors[%lld] is smaller than one before it; anchors must ascend",
                           safetensors_path(f), (long long)i);
        if (in->anchor[i] >= 0) last = in->anchor[i];
    }
    return ERR_OK;
}

err probe_in_load(probe_in *in, const st_file *f, int64_t vocab, arena *a) {
    const tensor *t = safetensors_find(f, "tokens");
    data_row *r = &in->row;
    memset(in, 0, sizeof *in);
    if (!t || t->ndim != 1 || t->dim[0] < 1)
        return err_set(ERR_SHAPE,
                       "%s: tensor 'tokens' with one dimension and at least one element is needed",
                       safetensors_path(f));
    r->n = t->dim[0];
    size_t n = (size_t)r->n;
    TRY(arena_alloc(a, n, sizeof *r->tokens, &r->tokens));
    TRY(arena_alloc(a, n, sizeof *r->loss, &r->loss));
    TRY(arena_alloc(a, n, sizeof *r->document, &r->document));
    TRY(arena_alloc(a, n, sizeof *r->position, &r->position));
    TRY(arena_alloc(a, n + 1, sizeof *r->doc_start, &r->doc_start));
    TRY(arena_alloc(a, n, sizeof *r->doc_id, &r->doc_id));
    TRY(load_ints(f, "tokens", r->n, 0, vocab - 1, r->tokens));
    TRY(load_documents(f, r));
    TRY(load_loss(f, r, a));
    return load_anchors(in, f, a);
}
