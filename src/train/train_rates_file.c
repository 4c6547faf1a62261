/* Tables of rates in a file: one JSON object with machine, program, shapes and a row for each number of threads.
 *
 * Shapes are sentences, compared one by one, so a refusal shows what the table was measured with. Rows of other device kinds are kept
 * as they are read. What is written is what was measured, in units a person can read; nothing is derived. */
#include "io/json.h"
#include "train/train_parts.h"
#include "train/train_rates.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { FORMAT = 1 };

/* ---- shapes ---- */

static err target_shape(const train *t, str *out) {
    char digest[33];
    target_digest(t->t, digest);
    TRY(str_printf(out, "target %s, taps", digest));
    for (int i = 0; i < t->n_taps; i++) TRY(str_printf(out, " %" PRId64, t->taps[i]));
    return str_printf(out, ", rows of %" PRId64 " tokens, documents of %" PRId64, t->tokens_per_row,
                      recipe_int(t->r, RECIPE_data_max_length));
}

static err drafter_shape(const train_drafter *d, str *out) {
    const drafter_config *c = &d->l.cfg;
    TRY(str_printf(out,
                   "drafter %s%s%" PRId64 " layers of %" PRId64 ", MLP %" PRId64 ", heads %" PRId64
                   "/%" PRId64 " of %" PRId64 ", block %" PRId64 ", %" PRId64
                   " anchors a document, taps",
                   d->name, d->name[0] ? ": " : "", c->layers, c->hidden, c->intermediate, c->heads,
                   c->kv_heads, c->head_dim, c->block_size, d->anchor_limit));
    for (int i = 0; i < c->n_taps; i++) TRY(str_printf(out, " %" PRId64, c->taps[i]));
    return ERR_OK;
}

/* Entry 0 is the target's, the others the drafters'. */
static err shape(const train *t, int i, str *out) {
    str_clear(out);
    return i ? drafter_shape(&t->drafter[i - 1], out) : target_shape(t, out);
}

/* ---- writing ---- */

static void set_real(json_t *o, const char *key, double v) {
    json_object_set_new(o, key, json_real(v));
}

static json_t *row_object(const train_rates *r, const train_rates_row *w) {
    json_t *o = json_object(), *list = json_array();
    json_object_set_new(o, "kind", json_string(w->kind));
    json_object_set_new(o, "threads", json_integer(w->threads));
    set_real(o, "target_flops_per_second", w->target_flops_per_second);
    set_real(o, "target_tokens_per_second", w->target_tokens_per_second);
    set_real(o, "copy_bytes_per_second", w->copy_bytes_per_second);
    for (int i = 0; i < r->n_drafters; i++) {
        const train_rates_drafter *d = &w->drafter[i];
        json_t *k = json_object();
        set_real(k, "flops_per_second", d->flops_per_second);
        set_real(k, "tokens_per_second", d->tokens_per_second);
        set_real(k, "update_seconds", d->update_seconds);
        set_real(k, "evaluation_seconds", d->evaluation_seconds);
        json_array_append_new(list, k);
    }
    json_object_set_new(o, "drafters", list);
    return o;
}

static err shapes_array(const train *t, json_t *list) {
    str text = {0};
    err e = ERR_OK;
    for (int i = 0; !e && i <= t->n_drafters; i++) {
        e = shape(t, i, &text);
        if (!e) json_array_append_new(list, json_string(text.s));
    }
    str_free(&text);
    return e;
}

err train_rates_write(const train *t, const train_rates *r, const char *path) {
    json_t *o = json_object(), *shapes = json_array(), *rows = json_array();
    if (!o || !shapes || !rows) return err_set(ERR_MEMORY, "%s: no memory for its text", path);
    json_object_set_new(o, "format", json_integer(FORMAT));
    json_object_set_new(o, "machine", json_string(r->machine));
    json_object_set_new(o, "program", json_string(r->program));
    json_object_set_new(o, "measured", json_string(r->measured));
    set_real(o, "disk_bytes_per_second", r->disk_bytes_per_second);
    json_object_set_new(o, "shapes", shapes);
    json_object_set_new(o, "rows", rows);
    for (int i = 0; i < r->n; i++) json_array_append_new(rows, row_object(r, &r->row[i]));
    err e = shapes_array(t, shapes);
    if (!e) e = json_write_file(o, path);
    json_decref(o);
    return e;
}

/* ---- reading ---- */

static err check_shapes(const train *t, const json_t *o, const char *path) {
    const json_t *list = json_object_get(o, "shapes");
    str text = {0};
    err e = ERR_OK;
    if (!json_is_array(list)) return err_set(ERR_FORMAT, "%s: shapes is missing", path);
    if ((int)json_array_size(list) != t->n_drafters + 1)
        return err_set(ERR_REFUSED,
                       "%s: its rates are of %d drafters, and this recipe has %d; measure anew "
                       "into another file",
                       path, (int)json_array_size(list) - 1, t->n_drafters);
    for (int i = 0; !e && i <= t->n_drafters; i++) {
        const char *was = json_string_value(json_array_get(list, (size_t)i));
        e = shape(t, i, &text);
        if (!e && (!was || strcmp(was, text.s) != 0))
            e = err_set(ERR_REFUSED,
                        "%s: its rates are of \"%s\", and this recipe has \"%s\"; measure anew "
                        "into another file",
                        path, was ? was : "nothing", text.s);
    }
    str_free(&text);
    return e;
}

/* A rate is a positive number, a time may be 0. */
static err get(const json_t *o, const char *path, const char *key, int positive, double *out) {
    TRY(json_get_real(o, path, key, out));
    if (isfinite(*out) && (positive ? *out > 0 : *out >= 0)) return ERR_OK;
    return err_set(ERR_FORMAT, "%s: %s is %g, which is no rate or time", path, key, *out);
}

static err read_row(const json_t *o, const char *path, int n_drafters, train_rates_row *w) {
    const json_t *list = json_object_get(o, "drafters");
    const char *kind = NULL;
    int64_t threads = 0;
    TRY(json_get_text(o, path, "kind", &kind));
    if (strlen(kind) >= sizeof w->kind)
        return err_set(ERR_FORMAT, "%s: kind %.40s is no kind of device", path, kind);
    memcpy(w->kind, kind, strlen(kind) + 1);
    TRY(json_get_int(o, path, "threads", &threads));
    if (threads < 1 || threads > 1024)
        return err_set(ERR_FORMAT, "%s: threads is %" PRId64, path, threads);
    w->threads = (int)threads;
    TRY(get(o, path, "target_flops_per_second", 1, &w->target_flops_per_second));
    TRY(get(o, path, "target_tokens_per_second", 1, &w->target_tokens_per_second));
    TRY(get(o, path, "copy_bytes_per_second", 1, &w->copy_bytes_per_second));
    if (!json_is_array(list) || (int)json_array_size(list) != n_drafters)
        return err_set(ERR_FORMAT, "%s: a row's drafters are not %d", path, n_drafters);
    for (int i = 0; i < n_drafters; i++) {
        const json_t *k = json_array_get(list, (size_t)i);
        train_rates_drafter *d = &w->drafter[i];
        TRY(get(k, path, "flops_per_second", 1, &d->flops_per_second));
        TRY(get(k, path, "tokens_per_second", 1, &d->tokens_per_second));
        TRY(get(k, path, "update_seconds", 0, &d->update_seconds));
        TRY(get(k, path, "evaluation_seconds", 0, &d->evaluation_seconds));
    }
    return ERR_OK;
}

static err read_table(const train *t, const json_t *o, const char *path, train_rates *r) {
    const json_t *rows = json_object_get(o, "rows");
    int64_t format = 0;
    TRY(json_get_int(o, path, "format", &format));
    if (format != FORMAT)
        return err_set(ERR_REFUSED, "%s: format %" PRId64 " of rates is not known here", path,
                       format);
    TRY(check_shapes(t, o, path));
    TRY(json_copy_text(o, path, "machine", r->machine, sizeof r->machine));
    TRY(json_copy_text(o, path, "program", r->program, sizeof r->program));
    TRY(json_copy_text(o, path, "measured", r->measured, sizeof r->measured));
    TRY(get(o, path, "disk_bytes_per_second", 0, &r->disk_bytes_per_second));
    if (!json_is_array(rows) || !json_array_size(rows) || json_array_size(rows) > TRAIN_RATES_ROWS)
        return err_set(ERR_FORMAT, "%s: rows are not 1 to %d", path, TRAIN_RATES_ROWS);
    r->n_drafters = t->n_drafters;
    for (; r->n < (int)json_array_size(rows); r->n++)
        TRY(read_row(json_array_get(rows, (size_t)r->n), path, t->n_drafters, &r->row[r->n]));
    return ERR_OK;
}

err train_rates_read(const train *t, train_rates *r, const char *path) {
    json_t *o = NULL;
    *r = (train_rates){0};
    TRY(json_read_file(&o, path));
    err e = read_table(t, o, path, r);
    json_decref(o);
    return e;
}
