/* The live record as JSON: see live.h.
 *
 * One table of fields per kind of object serves writing and reading: key, kind, place in the struct. NaN is null. Reading takes what
 * another version left out as zero, and refuses wrong types by key. Files are replaced as a whole but not synced: after a crash of
 * the machine the record means nothing anyway. It decides nothing about a run. */
#include "train/live.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FORMAT = 1 };

/* ---- one table per object ---- */

typedef enum field_kind { TEXT, INT, UINT, REAL, FLAG } field_kind;
typedef struct field {
    const char *key;
    field_kind kind;
    size_t at, size;
} field;

#define FIELD(type, name, kind)                                                                    \
    { #name, kind, offsetof(type, name), sizeof(((type *)0)->name) }

static const field process_fields[] = {
    FIELD(process_id, pid, INT),    FIELD(process_id, start, UINT), FIELD(process_id, boot, TEXT),
    FIELD(process_id, space, TEXT), FIELD(process_id, host, TEXT),  {0},
};
static const field record_fields[] = {
    FIELD(live_record, version, TEXT), FIELD(live_record, state, TEXT),
    FIELD(live_record, doing, TEXT),   FIELD(live_record, started, TEXT),
    FIELD(live_record, written, TEXT), FIELD(live_record, uptime, REAL),
    FIELD(live_record, stamp, REAL),   {0},
};
static const field drafter_fields[] = {
    FIELD(live_drafter, name, TEXT),
    FIELD(live_drafter, state, TEXT),
    FIELD(live_drafter, update, INT),
    FIELD(live_drafter, updates, INT),
    FIELD(live_drafter, epoch, INT),
    FIELD(live_drafter, saved, INT),
    FIELD(live_drafter, loss, REAL),
    FIELD(live_drafter, tau, REAL),
    FIELD(live_drafter, tokens_per_second, REAL),
    FIELD(live_drafter, seconds_left, REAL),
    {0},
};
static const field role_fields[] = {
    FIELD(live_role, name, TEXT),   FIELD(live_role, phase, TEXT), FIELD(live_role, waiting, FLAG),
    FIELD(live_role, left, FLAG),   FIELD(live_role, step, INT),   FIELD(live_role, age, REAL),
    FIELD(live_role, waited, REAL), FIELD(live_role, lived, REAL), {0},
};
static const field ring_fields[] = {
    FIELD(live_ring, name, TEXT),
    FIELD(live_ring, fill, INT),
    FIELD(live_ring, capacity, INT),
    FIELD(live_ring, passed, INT),
    FIELD(live_ring, producer_wait, REAL),
    FIELD(live_ring, consumer_wait, REAL),
    {0},
};
static const field arena_fields[] = {
    FIELD(live_arena, name, TEXT), FIELD(live_arena, bytes, INT), {0}};
static const field device_fields[] = {
    FIELD(live_device, name, TEXT),
    FIELD(live_device, roles, TEXT),
    FIELD(live_device, threads, INT),
    FIELD(live_device, bytes, INT),
    {0},
};
static const field end_fields[] = {
    FIELD(live_end, how, TEXT),    FIELD(live_end, text, TEXT),
    FIELD(live_end, at, TEXT),     FIELD(live_end, pid, INT),
    FIELD(live_end, host, TEXT),   FIELD(live_end, update, INT),
    FIELD(live_end, updates, INT), {0},
};

/* The lists of a record. */
typedef struct list {
    const char *key;
    const field *fields;
    size_t n_at, at, size;
    int cap;
} list;
#define LIST(name, fields, cap)                                                                    \
    {                                                                                              \
#name, fields, offsetof(live_record, n_##name), offsetof(live_record, name),               \
            sizeof(((live_record *)0)->name[0]), cap                                               \
    }
static const list lists[] = {
    LIST(drafters, drafter_fields, LIVE_DRAFTERS), LIST(roles, role_fields, LIVE_ROLES),
    LIST(rings, ring_fields, LIVE_RINGS),          LIST(arenas, arena_fields, LIVE_ARENAS),
    LIST(devices, device_fields, LIVE_DEVICES),
};
enum { LISTS = sizeof lists / sizeof *lists };

/* ---- writing ---- */

static json_t *value_of(const field *f, const char *base) {
    const void *p = base + f->at;
    switch (f->kind) {
    case TEXT: {
        json_t *text = json_string(p);
        return text ? text : json_string("?"); /* a name that is no UTF-8 */
    }
    case INT: return json_integer(*(const int64_t *)p);
    case UINT: return json_integer((json_int_t) * (const uint64_t *)p);
    case REAL: return isfinite(*(const double *)p) ? json_real(*(const double *)p) : json_null();
    case FLAG: return json_boolean(*(const int *)p);
    }
    return NULL;
}

static json_t *object_of(const field *f, const void *base) {
    json_t *o = json_object();
    for (; f->key; f++) json_object_set_new(o, f->key, value_of(f, base));
    return o;
}

json_t *live_json(const live_record *r) {
    json_t *o = object_of(record_fields, r);
    json_object_set_new(o, "format", json_integer(FORMAT));
    json_object_set_new(o, "process", object_of(process_fields, &r->process));
    if (r->supervisor.pid)
        json_object_set_new(o, "supervisor", object_of(process_fields, &r->supervisor));
    for (int i = 0; i < LISTS; i++) {
        const list *l = &lists[i];
        const char *item = (const char *)r + l->at;
        json_t *array = json_array();
        for (int k = *(const int *)((const char *)r + l->n_at); k > 0; k--, item += l->size)
            json_array_append_new(array, object_of(l->fields, item));
        json_object_set_new(o, l->key, array);
    }
    return o;
}

/* Writes o as RUN/name; takes o over. */
static err put(const char *run, const char *name, json_t *o) {
    char path[PATH_MAX];
    err e = file_join(path, sizeof path, run, name);
    char *text = e ? NULL : json_dumps(o, JSON_INDENT(1));
    json_decref(o);
    if (!e && !text) e = err_set(ERR_MEMORY, "%s: no memory for its text", path);
    if (!e) e = file_put(path, text, strlen(text));
    free(text);
    return e;
}

/* ---- reading ---- */

static err read_field(const json_t *o, const char *where, const field *f, char *base) {
    void *p = base + f->at;
    const char *text;
    int64_t whole = 0;
    switch (f->kind) {
    case TEXT:
        TRY(json_get_text_or(o, where, f->key, "", &text));
        snprintf(p, f->size, "%s", text);
        return ERR_OK;
    case INT: return json_get_int_or(o, where, f->key, 0, p);
    case UINT:
        TRY(json_get_int_or(o, where, f->key, 0, &whole));
        *(uint64_t *)p = (uint64_t)whole;
        return ERR_OK;
    case REAL: return json_get_real_or(o, where, f->key, NAN, p);
    case FLAG: return json_get_bool_or(o, where, f->key, 0, p);
    }
    return ERR_OK;
}

static err read_object(const json_t *o, const char *where, const field *f, void *base) {
    if (!json_is_object(o)) return err_set(ERR_FORMAT, "%s: an object was expected", where);
    for (; f->key; f++) TRY(read_field(o, where, f, base));
    return ERR_OK;
}

static err read_list(const json_t *o, const char *where, const list *l, live_record *r) {
    const json_t *array = json_object_get(o, l->key);
    char *item = (char *)r + l->at;
    int n = 0;
    for (size_t i = 0; i < json_array_size(array) && n < l->cap; i++, n++, item += l->size)
        TRY(read_object(json_array_get(array, i), where, l->fields, item));
    *(int *)((char *)r + l->n_at) = n;
    return ERR_OK;
}

static err read_record(const json_t *o, const char *where, live_record *r) {
    int64_t format;
    TRY(json_get_int(o, where, "format", &format));
    if (format != FORMAT)
        return err_set(ERR_FORMAT, "%s has format %lld and this program knows %d", where,
                       (long long)format, FORMAT);
    TRY(read_object(o, where, record_fields, r));
    TRY(read_object(json_object_get(o, "process"), where, process_fields, &r->process));
    const json_t *supervisor = json_object_get(o, "supervisor");
    if (supervisor) TRY(read_object(supervisor, where, process_fields, &r->supervisor));
    for (int i = 0; i < LISTS; i++) TRY(read_list(o, where, &lists[i], r));
    return ERR_OK;
}

/* RUN/name as JSON; *out NULL when there is no such file. path receives its name. */
static err get(const char *run, const char *name, char path[PATH_MAX], json_t **out) {
    *out = NULL;
    TRY(file_join(path, PATH_MAX, run, name));
    if (!file_exists(path)) return ERR_OK;
    err e = json_read_file(out, path);
    return e && !file_exists(path) ? ERR_OK : e; /* a run may end while one looks */
}

/* ---- the record ---- */

err live_create(live_record **out) { return mem_new(1, sizeof **out, out); }
void live_free(live_record *r) { mem_free(r); }

err live_begin(live_record *r, const char *version, int64_t supervisor) {
    TRY(process_self(&r->process));
    if (supervisor) TRY(process_identify(supervisor, &r->supervisor));
    snprintf(r->version, sizeof r->version, "%s", version);
    snprintf(r->state, sizeof r->state, "preparing");
    clock_utc(r->started);
    r->begun = clock_seconds();
    return ERR_OK;
}

void live_set_roles(live_record *r, const heart *h) {
    heart_view v[LIVE_ROLES];
    r->n_roles = heart_snapshot(h, v, LIVE_ROLES);
    for (int i = 0; i < r->n_roles; i++) {
        live_role *x = &r->roles[i];
        snprintf(x->name, sizeof x->name, "%.*s", LIVE_NAME - 1, v[i].name);
        snprintf(x->phase, sizeof x->phase, "%.*s", LIVE_NAME - 1, v[i].phase);
        x->waiting = v[i].waiting;
        x->left = v[i].left;
        x->step = v[i].step;
        x->age = v[i].age;
        x->waited = v[i].waited;
        x->lived = v[i].lived;
    }
}

err live_write(const char *run, live_record *r) {
    clock_utc(r->written);
    r->stamp = (double)time(NULL);
    r->uptime = clock_seconds() - r->begun;
    return put(run, "live.json", live_json(r));
}

err live_read(const char *run, live_record *r, int *found) {
    char path[PATH_MAX];
    json_t *o;
    memset(r, 0, sizeof *r);
    TRY(get(run, "live.json", path, &o));
    *found = o != NULL;
    err e = o ? read_record(o, path, r) : ERR_OK;
    json_decref(o);
    return e;
}

int live_is_running(const live_record *r) { return process_look(&r->process) == PROCESS_RUNS; }

live_where live_locate(const char *run, const live_record *r) {
    char path[PATH_MAX];
    process_id here;
    const process_state seen = process_look(&r->process);
    if (seen != PROCESS_UNSEEN) return seen == PROCESS_RUNS ? LIVE_RUNS : LIVE_GONE;
    /* Another container of this machine: both hold locks of one kernel. */
    if (process_self(&here) || strcmp(here.boot, r->process.boot) != 0) return LIVE_UNSEEN;
    if (file_join(path, sizeof path, run, "lock")) return LIVE_UNSEEN;
    return file_lock_is_free(path) ? LIVE_GONE : LIVE_UNSEEN;
}

/* ---- the end ---- */

err live_read_end(const char *run, live_end *end, int *found) {
    char path[PATH_MAX];
    json_t *o;
    memset(end, 0, sizeof *end);
    TRY(get(run, "last_end.json", path, &o));
    *found = o != NULL;
    err e = o ? read_object(o, path, end_fields, end) : ERR_OK;
    json_decref(o);
    return e;
}

/* How far the drafter is that is least far. */
static void least(const live_record *r, int64_t *update, int64_t *updates) {
    *update = *updates = -1;
    for (int i = 0; i < r->n_drafters; i++) {
        if (i && r->drafters[i].update >= *update) continue;
        *update = r->drafters[i].update;
        *updates = r->drafters[i].updates;
    }
}

/* last_end.json from the record, and the record removed. */
static err conclude(const char *run, const live_record *r, const char *how, const char *text) {
    char path[PATH_MAX];
    live_end end = {.pid = r->process.pid};
    snprintf(end.how, sizeof end.how, "%s", how);
    snprintf(end.text, sizeof end.text, "%s", text);
    snprintf(end.host, sizeof end.host, "%s", r->process.host);
    least(r, &end.update, &end.updates);
    clock_utc(end.at);
    TRY(put(run, "last_end.json", object_of(end_fields, &end)));
    TRY(file_join(path, sizeof path, run, "live.json"));
    return file_remove_tree(path);
}

/* What was read or asked for is not accepted: the same start would end in the same way. A disk, memory and our own mistakes
 * may behave otherwise next time. */
static const char *how_of(err e) {
    switch (e) {
    case ERR_OK: return "finished";
    case ERR_STOPPED: return "stopped";
    case ERR_IO:
    case ERR_MEMORY:
    case ERR_NUMERIC:
    case ERR_INTERNAL: return "failed";
    default: return "refused";
    }
}

err live_finish(const char *run, live_record *r, err e) {
    char text[sizeof((live_end *)0)->text];
    snprintf(text, sizeof text, "%s", e ? err_text() : "");
    if (conclude(run, r, how_of(e), text))
        log_warn("the end of the run could not be noted: %s", err_text());
    return e ? err_set(e, "%s", text) : ERR_OK;
}

err live_bury(const char *run, const process_id *dead, const char *text) {
    live_record *r;
    int found;
    TRY(live_create(&r));
    err e = live_read(run, r, &found);
    if (!e && found && r->process.pid == dead->pid && r->process.start == dead->start)
        e = conclude(run, r, "killed", text);
    live_free(r);
    return e;
}
