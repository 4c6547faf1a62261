/* The JSON object of `paceline plan`: see plan_json.h.
 *
 * Bytes and counts are integers, rates and shares reals. Text of the data may hold any bytes: what is not UTF-8 is left out of
 * the preview rather than failing the whole object. */
#include "cli/plan_json.h"

static void set_count(json_t *o, const char *key, int64_t v) {
    json_object_set_new(o, key, json_integer(v));
}
static void set_real(json_t *o, const char *key, double v) {
    json_object_set_new(o, key, json_real(v));
}
static void set_text(json_t *o, const char *key, const char *v) {
    json_t *text = json_string(v);
    if (text) json_object_set_new(o, key, text);
}

static json_t *lines(const train_plan *p) {
    json_t *list = json_array();
    for (int i = 0; i < p->n_lines; i++) {
        json_t *o = json_object();
        set_text(o, "device", p->lines[i].device);
        set_text(o, "role", p->lines[i].role);
        set_text(o, "name", p->lines[i].name);
        set_count(o, "bytes", (int64_t)p->lines[i].bytes);
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *files(const train_plan *p) {
    json_t *list = json_array();
    for (int i = 0; i < p->n_files; i++) {
        const train_plan_file *f = &p->files[i];
        json_t *o = json_object();
        set_text(o, "name", f->name);
        set_text(o, "folder", f->folder);
        set_count(o, "bytes", (int64_t)f->bytes);
        set_count(o, "there", (int64_t)f->there);
        set_count(o, "free", (int64_t)f->room);
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *drafters(const train_plan *p) {
    json_t *list = json_array();
    for (int i = 0; i < p->n_drafters; i++) {
        const train_plan_drafter *d = &p->drafters[i];
        json_t *o = json_object();
        set_text(o, "name", d->name);
        set_count(o, "params", d->params);
        set_count(o, "ranks", d->ranks);
        set_count(o, "anchors_per_row", d->anchors_per_row);
        set_count(o, "anchors_per_epoch", d->anchors_per_epoch);
        set_real(o, "flops_per_epoch", d->flops_per_epoch);
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *fits(const train_plan *p) {
    json_t *list = json_array();
    for (int i = 0; i < p->n_fits; i++) {
        json_t *o = json_object();
        set_text(o, "set", p->fits[i].set);
        set_count(o, "bytes", (int64_t)p->fits[i].bytes);
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *plan_object(const train_plan *p) {
    json_t *o = json_object();
    set_count(o, "documents", p->documents);
    set_count(o, "tokens", p->tokens);
    set_count(o, "supervised", p->supervised);
    set_count(o, "rows_per_epoch", p->rows_per_epoch);
    set_count(o, "tokens_per_epoch", p->tokens_per_epoch);
    set_count(o, "max_row_tokens", p->max_row_tokens);
    set_count(o, "max_row_documents", p->max_row_docs);
    set_count(o, "max_row_anchors", p->max_row_anchors);
    set_count(o, "updates", p->updates);
    set_count(o, "updates_done", p->from_update);
    set_count(o, "drafter_params", p->drafter_params);
    set_count(o, "target_params", p->target_params);
    set_real(o, "flops_per_epoch", p->flops_per_epoch);
    set_real(o, "target_flops_per_epoch", p->target_flops_per_epoch);
    json_object_set_new(o, "drafters", drafters(p));
    set_text(o, "placement", p->placement);
    json_object_set_new(o, "arenas", lines(p));
    set_count(o, "total_bytes", (int64_t)p->total_bytes);
    set_count(o, "allowance", (int64_t)p->allowance);
    set_count(o, "memory_available", (int64_t)p->memory_room);
    json_object_set_new(o, "files", files(p));
    json_object_set_new(o, "fits", json_boolean(!p->refused[0]));
    set_text(o, "refused", p->refused);
    json_object_set_new(o, "would_fit", fits(p));
    set_text(o, "preview", p->preview);
    return o;
}

static json_t *rates_object(const train_rates *r) {
    json_t *o = json_object(), *list = json_array();
    set_text(o, "machine", r->machine);
    set_text(o, "program", r->program);
    set_text(o, "measured", r->measured);
    set_real(o, "disk_bytes_per_second", r->disk_bytes_per_second);
    for (int i = 0; i < r->n; i++) {
        const train_rates_row *w = &r->row[i];
        json_t *row = json_object(), *d = json_array();
        set_text(row, "kind", w->kind);
        set_count(row, "threads", w->threads);
        set_real(row, "target_tokens_per_second", w->target_tokens_per_second);
        set_real(row, "copy_bytes_per_second", w->copy_bytes_per_second);
        for (int k = 0; k < r->n_drafters; k++) {
            json_t *one = json_object();
            set_real(one, "tokens_per_second", w->drafter[k].tokens_per_second);
            set_real(one, "update_seconds", w->drafter[k].update_seconds);
            set_real(one, "evaluation_seconds", w->drafter[k].evaluation_seconds);
            json_array_append_new(d, one);
        }
        json_object_set_new(row, "drafters", d);
        json_array_append_new(list, row);
    }
    json_object_set_new(o, "rows", list);
    return o;
}

static json_t *shares(const double *v, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, json_real(v[i]));
    return list;
}

static json_t *run_object(const train_plan *p, const train_forecast_run *r) {
    json_t *o = json_object();
    set_real(o, "tokens_per_second", r->tokens_per_second);
    set_real(o, "seconds", r->seconds);
    set_real(o, "target_share", r->target_share);
    json_object_set_new(o, "drafter_shares", shares(r->drafter_share, p->n_drafters));
    return o;
}

static json_t *split_object(const train_plan *p, const train_forecast_split *s) {
    static const char *const bounds[] = {"target", "drafter", "link", "cores", "turns"};
    json_t *o = json_object(), *ranks = json_array();
    for (int i = 0; i < p->n_drafters; i++) json_array_append_new(ranks, json_integer(s->ranks[i]));
    set_count(o, "target_devices", s->targets);
    json_object_set_new(o, "drafter_devices", ranks);
    json_object_set_new(o, "in_turns", json_boolean(s->turns));
    set_real(o, "tokens_per_second", s->tokens_per_second);
    set_real(o, "target_share", s->target_share);
    json_object_set_new(o, "drafter_shares", shares(s->drafter_share, p->n_drafters));
    set_real(o, "link_share", s->link_share);
    set_count(o, "spare_devices", s->spare);
    set_text(o, "slowest", bounds[s->bound]);
    return o;
}

static json_t *splits_object(const train_plan *p, const plan_json_splits *k) {
    json_t *o = json_object(), *list = json_array(), *scale = json_array();
    set_count(o, "devices", k->devices);
    set_real(o, "link_bytes_per_second", k->link);
    set_real(o, "rows_per_update", k->rows);
    json_object_set_new(o, "link_stated", json_boolean(k->stated));
    for (int i = 0; i < k->n; i++) json_array_append_new(list, split_object(p, &k->split[i]));
    json_object_set_new(o, "splits", list);
    set_count(o, "best", k->best);
    for (int i = 0; i < k->n_scale; i++) {
        json_t *one = split_object(p, &k->scale[i]);
        set_count(one, "devices", k->scale_devices[i]);
        json_array_append_new(scale, one);
    }
    json_object_set_new(o, "best_by_devices", scale);
    return o;
}

json_t *plan_json(const train_plan *p, const train_rates *rates, const train_forecast_run *run,
                  const plan_json_splits *splits) {
    json_t *o = plan_object(p);
    if (rates) json_object_set_new(o, "rates", rates_object(rates));
    if (run) json_object_set_new(o, "forecast", run_object(p, run));
    if (splits) json_object_set_new(o, "scaling", splits_object(p, splits));
    return o;
}
