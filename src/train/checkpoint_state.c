/* A run's state as JSON, and whether a run may continue from it.
 *
 * The whole canonical recipe is kept, so a difference is told key by key. Keys that change neither weights nor their order of
 * computation may differ; files named by path are compared by the digest of what they hold instead. It touches no
 * weights. */
#include "core/file.h"
#include "core/log.h"
#include "io/json.h"
#include "train/checkpoint_parts.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void checkpoint_state_free(checkpoint_state *s) { str_free(&s->recipe); }

/* ---- JSON ---- */

typedef struct field {
    const char *key;
    int64_t *value;
} field;

enum { FIELDS = 13 };
static void fields_of(checkpoint_state *s, field f[FIELDS]) {
    const field list[FIELDS] = {{"update", &s->update},
                                {"updates", &s->updates},
                                {"adam_steps", &s->adam_steps},
                                {"bad_in_row", &s->bad_in_row},
                                {"bad_total", &s->bad_total},
                                {"best_update", &s->best_update},
                                {"cursor_epoch", &s->cursor.epoch},
                                {"cursor_next", &s->cursor.next},
                                {"cursor_rows", &s->cursor.rows},
                                {"cursor_tokens", &s->cursor.tokens},
                                {"cursor_docs", &s->cursor.docs},
                                {"data_docs", &s->data_docs},
                                {"ranks", &s->ranks}};
    memcpy(f, list, sizeof list);
}

static json_t *real_or_null(double v) { return isnan(v) ? json_null() : json_real(v); }

/* Pairs of the first epoch and its documents. */
static json_t *epochs_json(const data_epochs *e) {
    json_t *list = json_array();
    for (int64_t i = 0; i < e->n; i++)
        json_array_append_new(list,
                              json_pack("[II]", (json_int_t)e->first[i], (json_int_t)e->docs[i]));
    return list;
}

err checkpoint__write_state(const char *path, const checkpoint_state *s) {
    char digest[33];
    field f[FIELDS];
    checkpoint_state copy = *s;
    fields_of(&copy, f);
    json_t *o = json_object();
    if (!o) return err_set(ERR_MEMORY, "%s: no memory for its text", path);
    json_object_set_new(o, "format", json_integer(CHECKPOINT_FORMAT));
    for (int i = 0; i < FIELDS; i++) json_object_set_new(o, f[i].key, json_integer(*f[i].value));
    json_object_set_new(o, "epochs", epochs_json(&s->epochs));
    json_object_set_new(o, "tau", real_or_null(s->tau));
    json_object_set_new(o, "best_tau", real_or_null(s->best_tau));
    json_object_set_new(o, "finished", json_boolean(s->finished));
    json_object_set_new(o, "target_digest", json_string(s->target_digest));
    json_object_set_new(o, "data_digest", json_string(s->data_digest));
    json_object_set_new(o, "held_digest", json_string(s->held_digest));
    json_object_set_new(o, "blas", json_string(s->blas));
    file_hash_bytes(s->recipe.s, s->recipe.n, digest);
    json_object_set_new(o, "recipe_digest", json_string(digest));
    json_object_set_new(o, "recipe", json_stringn(s->recipe.s, s->recipe.n));
    err e = json_write_file(o, path);
    json_decref(o);
    return e;
}

static err get_real_or_nan(const json_t *o, const char *path, const char *key, double *out) {
    if (!json_object_get(o, key)) return err_set(ERR_FORMAT, "%s: \"%s\" is missing", path, key);
    return json_get_real_or(o, path, key, NAN, out);
}

/* Without the list only the epoch of the cursor is known. */
static err get_epochs(const json_t *o, const char *path, checkpoint_state *s) {
    const json_t *list = json_object_get(o, "epochs"), *pair;
    size_t i;
    s->epochs.n = 0;
    if (!list && s->cursor.docs) data_epochs_add(&s->epochs, s->cursor.epoch, s->cursor.docs);
    if (!list) return ERR_OK;
    if (!json_is_array(list) || json_array_size(list) > DATA_EPOCHS)
        return err_set(ERR_FORMAT, "%s: \"epochs\" must be a list of %d pairs at most", path,
                       DATA_EPOCHS);
    json_array_foreach(list, i, pair) {
        const json_t *first = json_array_get(pair, 0), *docs = json_array_get(pair, 1);
        const int64_t before = i ? s->epochs.first[i - 1] : -1;
        if (!json_is_integer(first) || !json_is_integer(docs) ||
            json_integer_value(first) <= before || json_integer_value(docs) < 1)
            return err_set(ERR_FORMAT,
                           "%s: entry %zu of \"epochs\" is not an epoch later than the one before "
                           "and its number of documents",
                           path, i + 1);
        s->epochs.first[i] = json_integer_value(first);
        s->epochs.docs[i] = json_integer_value(docs);
        s->epochs.n++;
    }
    return ERR_OK;
}

static err parse(const json_t *o, const char *path, checkpoint_state *s) {
    field f[FIELDS];
    int64_t format = 0;
    const char *recipe_text = NULL;
    TRY(json_get_int(o, path, "format", &format));
    if (format != CHECKPOINT_FORMAT)
        return err_set(ERR_REFUSED, "%s: format %" PRId64 " is not known to this program", path,
                       format);
    fields_of(s, f);
    for (int i = 0; i < FIELDS; i++) TRY(json_get_int(o, path, f[i].key, f[i].value));
    TRY(get_epochs(o, path, s));
    TRY(get_real_or_nan(o, path, "tau", &s->tau));
    TRY(get_real_or_nan(o, path, "best_tau", &s->best_tau));
    TRY(json_get_bool(o, path, "finished", &s->finished));
    TRY(json_copy_text(o, path, "target_digest", s->target_digest, sizeof s->target_digest));
    TRY(json_copy_text(o, path, "data_digest", s->data_digest, sizeof s->data_digest));
    TRY(json_copy_text(o, path, "held_digest", s->held_digest, sizeof s->held_digest));
    TRY(json_copy_text(o, path, "blas", s->blas, sizeof s->blas));
    TRY(json_get_text(o, path, "recipe", &recipe_text));
    return str_add(&s->recipe, recipe_text, strlen(recipe_text));
}

err checkpoint__read_state(const char *path, checkpoint_state *s) {
    json_t *o = NULL;
    *s = (checkpoint_state){0};
    TRY(json_read_file(&o, path));
    err e = parse(o, path, s);
    json_decref(o);
    if (e) checkpoint_state_free(s);
    return e;
}

/* ---- comparing ---- */

static int is_empty(const char *canonical) { return strcmp(canonical, "\"\"") == 0; }

/* What may change between two parts of one run. Paths of files: their digests are compared. Kept taps are
 * rounded to bf16, so their folder may change and whether there is one may not. */
static int may_change(const char *key, const char *saved, const char *now) {
    static const char *const keys[] = {
        "run.checkpoint_every", "run.keep",        "run.out",           "run.on_drafter_error",
        "run.stall_seconds",    "run.end_seconds", "target.path",       "data.path",
        "data.validation",      "data.store",      "devices.target",    "devices.drafter",
        "devices.threads",      "devices.ring",    "data.allow_changed"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0) return 1;
    return strcmp(key, "features.store") == 0 && is_empty(saved) == is_empty(now);
}

/* Next "  key: value" line of canonical text, with its section. Returns 0 at the end. */
typedef struct walk {
    const char *at;
    char section[64];
    char key[160];
    char value[512];
} walk;

static int next(walk *w) {
    while (*w->at) {
        const char *end = strchr(w->at, '\n');
        const int n = (int)(end ? end - w->at : (long)strlen(w->at));
        const char *line = w->at;
        w->at += end ? n + 1 : n;
        const char *colon = memchr(line, ':', (size_t)n);
        if (!colon) continue;
        if (line[0] != ' ') {
            snprintf(w->section, sizeof w->section, "%.*s", (int)(colon - line), line);
            continue;
        }
        while (*line == ' ') line++;
        snprintf(w->key, sizeof w->key, "%s.%.*s", w->section, (int)(colon - line), line);
        const char *value = colon + 1 < w->at && colon[1] == ' ' ? colon + 2 : colon + 1;
        const long left = (end ? end : w->at) - value;
        snprintf(w->value, sizeof w->value, "%.*s", (int)(left > 0 ? left : 0), value);
        return 1;
    }
    return 0;
}

/* With the flag: what the weights' shapes and their meaning in decoding do not depend on. */
static int may_be_allowed(const char *key) { return strncmp(key, "drafter.", 8) != 0; }

static err compare_value(const char *path, const walk *a, const walk *b, int allow) {
    if (strcmp(a->value, b->value) == 0 || may_change(a->key, a->value, b->value)) return ERR_OK;
    if (allow && may_be_allowed(a->key)) {
        log_warn("%s: %s was %s and is %s from here on", path, a->key, a->value, b->value);
        return ERR_OK;
    }
    return err_set(ERR_REFUSED,
                   "%s was made with %s: %s and the recipe now says %s; change it back, %sstart "
                   "fresh or choose another run.out",
                   path, a->key, a->value, b->value,
                   may_be_allowed(a->key) ? "allow it with --allow-change, " : "");
}

static err compare_recipes(const char *path, const char *saved, const char *now, int allow) {
    walk a = {.at = saved}, b = {.at = now};
    for (;;) {
        const int more_a = next(&a), more_b = next(&b);
        if (!more_a && !more_b) return ERR_OK;
        if (more_a != more_b || strcmp(a.key, b.key) != 0)
            return err_set(ERR_REFUSED,
                           "%s was made by another version of this program: its recipe has other "
                           "keys (%s); start fresh or choose another run.out",
                           path, more_a ? a.key : b.key);
        TRY(compare_value(path, &a, &b, allow));
    }
}

/* changed NULL: never allowed. */
static err compare_digest(const char *path, const char *what, const char *saved, const char *now,
                          int allow, int *changed) {
    if (strcmp(saved, now) == 0) return ERR_OK;
    if (allow && changed) {
        log_warn("%s was made with %s; the run goes on with those of the recipe", path, what);
        *changed = 1;
        return ERR_OK;
    }
    return err_set(ERR_REFUSED,
                   "%s was made with %s (digest %s, now %s); bring it back, %sstart fresh or "
                   "choose another run.out",
                   path, what, saved, now, changed ? "allow it with --allow-change, " : "");
}

err checkpoint_compare_recipe(const char *path, const checkpoint_state *saved,
                              const checkpoint_state *now, int allow) {
    TRY(compare_digest(path, "another target", saved->target_digest, now->target_digest, 0, NULL));
    return compare_recipes(path, saved->recipe.s, now->recipe.s, allow);
}

err checkpoint_compare_rows(const char *path, const checkpoint_state *saved,
                            const checkpoint_state *now, int allow, checkpoint_changes *out) {
    *out = (checkpoint_changes){0};
    TRY(compare_digest(path, "other training data", saved->data_digest, now->data_digest, allow,
                       &out->rows));
    TRY(compare_digest(path, "other validation data", saved->held_digest, now->held_digest, allow,
                       &out->held));
    if (saved->ranks != now->ranks)
        log_warn(
            "%s was computed by %lld drafter ranks and this process has %lld: what follows is right, "
            "but its last bits will differ from an unstopped run",
            path, (long long)saved->ranks, (long long)now->ranks);
    if (strcmp(saved->blas, now->blas) != 0)
        log_warn("%s was computed with %s and this process uses %s: what follows is right, but its "
                 "last bits will differ from an unstopped run",
                 path, saved->blas, now->blas);
    return ERR_OK;
}
