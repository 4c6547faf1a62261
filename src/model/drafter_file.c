/* Drafter folders in the z-lab layout: weights out of and into the flat buffer, by name.
 *
 * Reading walks the layout and the file: every tensor of each must be in the other with the same shape, or
 * the whole difference is told and nothing is loaded. Saving publishes a new folder as one, or replaces
 * the two files of an old one, weights first. The target's embedding and head are never written. */
#include "core/file.h"
#include "io/safetensors.h"
#include "model/drafter_parts.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- saving ---- */

static err write_weights(const drafter_layout *l, const float *params, dtype type,
                         const char *dir) {
    char path[4096];
    TRY(file_join(path, sizeof path, dir, "model.safetensors"));
    tensor *t = NULL;
    char *bytes = NULL;
    err e = mem_new((size_t)l->n, sizeof *t, &t);
    if (!e && type != DT_F32) e = mem_new((size_t)l->total, dtype_size(type), &bytes);
    for (int i = 0; !e && i < l->n; i++) {
        const drafter_tensor *d = &l->t[i];
        t[i] =
            (tensor){.name = d->name, .type = type, .ndim = d->ndim, .dim = {d->dim[0], d->dim[1]}};
        t[i].data = params + d->offset;
        if (type != DT_F32) {
            char *to = bytes + (size_t)d->offset * dtype_size(type);
            dtype_from_f32(type, params + d->offset, to, (size_t)d->count);
            t[i].data = to;
        }
    }
    const char *meta[1][2] = {{"format", "pt"}};
    if (!e) e = safetensors_write(path, t, l->n, (const char *const(*)[2])meta, 1);
    mem_free(bytes);
    mem_free(t);
    return e;
}

static err write_config(const drafter_layout *l, dtype type, const char *dir) {
    char path[4096];
    TRY(file_join(path, sizeof path, dir, "config.json"));
    json_t *j = drafter__config_json(&l->cfg, type);
    if (!j) return err_set(ERR_MEMORY, "%s: no memory for its text", path);
    err e = json_write_file(j, path);
    json_decref(j);
    return e;
}

err drafter_save(const drafter_layout *l, const float *params, dtype type, const char *dir) {
    if (type != DT_BF16 && type != DT_F32)
        return err_set(ERR_RANGE, "%s: drafters are stored as BF16 or F32, not %s", dir,
                       dtype_name(type));
    if (file_is_dir(dir)) {
        TRY(write_weights(l, params, type, dir));
        return write_config(l, type, dir);
    }
    char tmp[4096];
    TRY(file_dir_begin(dir, tmp, sizeof tmp));
    err e = write_weights(l, params, type, tmp);
    if (!e) e = write_config(l, type, tmp);
    if (!e) return file_dir_commit(tmp, dir);
    /* The first failure is the one to report; what it left is swept at the next start if it must be. */
    char why[1024];
    snprintf(why, sizeof why, "%s", err_text());
    if (file_remove_tree(tmp)) err_clear();
    return err_set(e, "%s", why);
}

/* ---- reading ---- */

/* Other trainers put everything under "model."; the rest of a name is the same. */
static const tensor *find(const st_set *s, const drafter_tensor *d) {
    const tensor *t = safetensors_set_find(s, d->name);
    if (t) return t;
    char name[80] = "model.";
    strcat(name, d->name);
    return safetensors_set_find(s, name);
}

static err add_difference(const drafter_layout *l, const st_set *s, str *text) {
    for (int i = 0; i < l->n; i++)
        if (!find(s, &l->t[i])) TRY(str_printf(text, " %s is missing;", l->t[i].name));
    for (int i = 0; i < safetensors_set_count(s); i++) {
        const tensor *t = safetensors_set_at(s, i);
        const char *name = strncmp(t->name, "model.", 6) == 0 ? t->name + 6 : t->name;
        const drafter_tensor *d = drafter_find(l, name);
        char have[64], want[64];
        if (!d || find(s, d) != t) {
            TRY(str_printf(text, " %s is not part of this drafter;", t->name));
            continue;
        }
        tensor w = {.ndim = d->ndim, .dim = {d->dim[0], d->dim[1]}};
        int same = t->ndim == d->ndim && t->dim[0] == d->dim[0] &&
                   (d->ndim == 1 || t->dim[1] == d->dim[1]);
        if (!same)
            TRY(str_printf(text, " %s is %s and must be %s;", t->name,
                           tensor_shape_text(t, have, sizeof have),
                           tensor_shape_text(&w, want, sizeof want)));
        else if (!dtype_is_float(t->type) || t->type == DT_F64)
            TRY(str_printf(text, " %s is of type %s and must be BF16, F16 or F32;", t->name,
                           dtype_name(t->type)));
    }
    return ERR_OK;
}

static err check_finite(const drafter_tensor *d, const float *w, const char *dir) {
    for (int64_t i = 0; i < d->count; i++)
        if (!isfinite(w[i]))
            return err_set(ERR_NUMERIC, "%s: element %" PRId64 " of %s is not finite", dir, i,
                           d->name);
    return ERR_OK;
}

static err copy_in(const drafter_layout *l, const st_set *s, const char *dir, float *params,
                   dtype *stored) {
    *stored = DT_BF16;
    memset(params, 0, (size_t)l->total * sizeof *params);
    for (int i = 0; i < l->n; i++) {
        const tensor *t = find(s, &l->t[i]);
        if (t->type != DT_BF16) *stored = DT_F32; /* F16 has bits that bf16 has not */
        dtype_to_f32(t->type, t->data, params + l->t[i].offset, (size_t)l->t[i].count);
        TRY(check_finite(&l->t[i], params + l->t[i].offset, dir));
    }
    return ERR_OK;
}

err drafter_read_params(const drafter_layout *l, const char *dir, float *params, dtype *stored) {
    st_set *s = NULL;
    TRY(safetensors_set_open(&s, dir));
    str difference = {0};
    err e = add_difference(l, s, &difference);
    if (!e && difference.n)
        e = err_set(ERR_FORMAT, "%s: the weights differ from config.json:%.*s", dir,
                    (int)difference.n - 1, difference.s);
    if (!e) e = copy_in(l, s, dir, params, stored);
    str_free(&difference);
    safetensors_set_close(s);
    return e;
}
