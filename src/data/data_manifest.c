/* A store's manifest as JSON: what the folder holds, under which recipe, and a digest of the manifest itself.
 *
 * The file is {"format", "digest", "store"}; the digest is that of "store" printed compactly with sorted keys, so a flipped
 * byte anywhere in it is found. Formats and keys that are not known are refused, never guessed. It reads and writes the manifest alone:
 * whether other files agree with it is data_store.c's to ask. */
#include "core/arena.h"
#include "data/data_prepare.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const part_keys[DATA__PARTS] = {"documents", "lines", "rejected"};

typedef struct count_field {
    const char *key;
    int64_t *value;
} count_field;
enum { COUNTS = 9 };

static void fields_of(data_counts *c, count_field f[COUNTS]) {
    const count_field list[COUNTS] = {{"lines", &c->lines},
                                      {"documents", &c->documents},
                                      {"tokens", &c->tokens},
                                      {"supervised", &c->supervised},
                                      {"cut", &c->cut},
                                      {"without_anchor", &c->without_anchor},
                                      {"rejected", &c->rejected},
                                      {"blank", &c->blank},
                                      {"unspellable", &c->unspellable}};
    memcpy(f, list, sizeof list);
}

void data__counts_add(data_counts *sum, const data_counts *more) {
    data_counts copy = *more;
    count_field to[COUNTS], from[COUNTS];
    fields_of(sum, to);
    fields_of(&copy, from);
    for (int i = 0; i < COUNTS; i++) *to[i].value += *from[i].value;
    for (int i = 0; i < DATA__REASONS; i++)
        sum->rejected_by_reason[i] += more->rejected_by_reason[i];
}

void data__manifest_free(data__manifest *m) {
    mem_free(m->files);
    mem_free(m->segments);
    mem_free(m->shards);
    *m = (data__manifest){0};
}

err data__manifest_copy(data__manifest *out, const data__manifest *m) {
    *out = *m;
    out->files = NULL;
    out->segments = NULL;
    out->shards = NULL;
    out->files_cap = out->segments_cap = out->shards_cap = 0;
    err e = mem_grow(&out->files, &out->files_cap, m->n_files + 1, sizeof *m->files);
    if (!e)
        e = mem_grow(&out->segments, &out->segments_cap, m->n_segments + 1, sizeof *m->segments);
    if (!e) e = mem_grow(&out->shards, &out->shards_cap, m->n_shards + 1, sizeof *m->shards);
    if (e) {
        data__manifest_free(out);
        return e;
    }
    if (m->n_files) memcpy(out->files, m->files, m->n_files * sizeof *m->files);
    if (m->n_segments) memcpy(out->segments, m->segments, m->n_segments * sizeof *m->segments);
    if (m->n_shards) memcpy(out->shards, m->shards, m->n_shards * sizeof *m->shards);
    return ERR_OK;
}

/* ---- writing ---- */

static json_t *file_json(const data__file *f) {
    data_counts c = f->counts;
    count_field list[COUNTS];
    json_t *o = json_object(), *reasons = json_array();
    fields_of(&c, list);
    json_object_set_new(o, "path", json_string(f->path));
    json_object_set_new(o, "bytes", json_integer(f->bytes));
    json_object_set_new(o, "digest", json_string(f->digest));
    json_object_set_new(o, "open_line", json_boolean(f->open_line));
    for (int i = 0; i < COUNTS; i++)
        json_object_set_new(o, list[i].key, json_integer(*list[i].value));
    for (int i = 0; i < DATA__REASONS; i++)
        json_array_append_new(reasons, json_integer(f->counts.rejected_by_reason[i]));
    json_object_set_new(o, "reasons", reasons);
    return o;
}

static json_t *pair_json(int64_t a, int64_t b) {
    json_t *p = json_array();
    json_array_append_new(p, json_integer(a));
    json_array_append_new(p, json_integer(b));
    return p;
}

static json_t *store_json(const data__manifest *m) {
    json_t *o = json_object(), *key = json_object(), *files = json_array();
    json_t *segments = json_array(), *shards = json_array();
    json_object_set_new(o, "generation", json_integer(m->generation));
    json_object_set_new(o, "next_shard", json_integer(m->next_shard));
    json_object_set_new(key, "rule", json_string(m->rule));
    json_object_set_new(key, "tokenizer", json_string(m->tokenizer));
    json_object_set_new(key, "template", json_string(m->chat));
    json_object_set_new(key, "max_length", json_integer(m->max_length));
    json_object_set_new(key, "lenient", json_boolean(m->lenient));
    json_object_set_new(o, "key", key);
    for (int i = 0; i < DATA__PARTS; i++) {
        json_t *part = json_object();
        json_object_set_new(part, "bytes", json_integer(m->part[i].bytes));
        json_object_set_new(part, "digest", json_string(m->part[i].digest));
        json_object_set_new(o, part_keys[i], part);
    }
    for (size_t i = 0; i < m->n_files; i++) json_array_append_new(files, file_json(&m->files[i]));
    for (size_t i = 0; i < m->n_segments; i++)
        json_array_append_new(segments, pair_json(m->segments[i].file, m->segments[i].lines));
    for (size_t i = 0; i < m->n_shards; i++)
        json_array_append_new(shards, pair_json(m->shards[i].number, m->shards[i].bytes));
    json_object_set_new(o, "files", files);
    json_object_set_new(o, "segments", segments);
    json_object_set_new(o, "shards", shards);
    return o;
}

static err digest_of(const json_t *store, const char *path, char out[33]) {
    char *text = json_dumps(store, JSON_COMPACT | JSON_SORT_KEYS);
    if (!text) return err_set(ERR_MEMORY, "%s: no memory for its text", path);
    file_hash_bytes(text, strlen(text), out);
    free(text);
    return ERR_OK;
}

err data__manifest_write(const data__manifest *m, const char *path) {
    char digest[33];
    json_t *top = json_object(), *store = store_json(m);
    err e = digest_of(store, path, digest);
    json_object_set_new(top, "format", json_integer(DATA__STORE_FORMAT));
    json_object_set_new(top, "digest", json_string(digest));
    json_object_set_new(top, "store", store);
    if (!e) e = json_write_file(top, path);
    json_decref(top);
    return e;
}

/* ---- reading ---- */

static err get_list(const json_t *o, const char *path, const char *key, const json_t **out) {
    *out = json_object_get(o, key);
    if (json_is_array(*out)) return ERR_OK;
    return err_set(ERR_FORMAT, "%s: \"%s\" is no list", path, key);
}

static err get_file(const json_t *o, const char *path, data__file *f) {
    count_field list[COUNTS];
    int n = 0;
    fields_of(&f->counts, list);
    TRY(json_copy_text(o, path, "path", f->path, sizeof f->path));
    TRY(json_get_int(o, path, "bytes", &f->bytes));
    TRY(json_copy_text(o, path, "digest", f->digest, sizeof f->digest));
    TRY(json_get_bool(o, path, "open_line", &f->open_line));
    for (int i = 0; i < COUNTS; i++) TRY(json_get_int(o, path, list[i].key, list[i].value));
    return json_get_ints(o, path, "reasons", f->counts.rejected_by_reason, DATA__REASONS, &n);
}

/* A list of pairs of integers, into an array of structs of two. */
static err get_pairs(const json_t *o, const char *path, const char *key, void *out /* T** */,
                     size_t *cap, size_t *n) {
    const json_t *list;
    int64_t *pairs = NULL;
    size_t pairs_cap = 0;
    TRY(get_list(o, path, key, &list));
    *n = json_array_size(list);
    TRY(mem_grow(out, cap, *n + 1, sizeof(data__segment)));
    TRY(mem_grow(&pairs, &pairs_cap, *n + 1, sizeof(data__segment)));
    err e = ERR_OK;
    for (size_t i = 0; i < 2 * *n && !e; i++) {
        const json_t *v = json_array_get(json_array_get(list, i / 2), i % 2);
        pairs[i] = json_integer_value(v);
        if (!json_is_integer(v) || pairs[i] < 0)
            e = err_set(ERR_FORMAT, "%s: \"%s\" holds no pairs of integers", path, key);
    }
    void *to;
    memcpy(&to, out, sizeof to);
    memcpy(to, pairs, *n * sizeof(data__segment));
    mem_free(pairs);
    return e;
}
_Static_assert(sizeof(data__segment) == 2 * sizeof(int64_t), "two integers");
_Static_assert(sizeof(data__shard) == 2 * sizeof(int64_t), "two integers");

static err get_key(const json_t *store, const char *path, data__manifest *m) {
    const json_t *key = json_object_get(store, "key");
    if (!json_is_object(key))
        return err_set(ERR_REFUSED,
                       "%s records no key, so what its folder was prepared from is unknown; remove "
                       "the folder or choose another store",
                       path);
    TRY(json_copy_text(key, path, "rule", m->rule, sizeof m->rule));
    TRY(json_copy_text(key, path, "tokenizer", m->tokenizer, sizeof m->tokenizer));
    TRY(json_copy_text(key, path, "template", m->chat, sizeof m->chat));
    TRY(json_get_int(key, path, "max_length", &m->max_length));
    return json_get_bool(key, path, "lenient", &m->lenient);
}

static err get_store(const json_t *o, const char *path, data__manifest *m) {
    const json_t *files;
    TRY(json_get_int(o, path, "generation", &m->generation));
    TRY(json_get_int(o, path, "next_shard", &m->next_shard));
    for (int i = 0; i < DATA__PARTS; i++) {
        const json_t *part = json_object_get(o, part_keys[i]);
        if (!json_is_object(part))
            return err_set(ERR_FORMAT, "%s: \"%s\" is missing", path, part_keys[i]);
        TRY(json_get_int(part, path, "bytes", &m->part[i].bytes));
        TRY(json_copy_text(part, path, "digest", m->part[i].digest, sizeof m->part[i].digest));
    }
    TRY(get_list(o, path, "files", &files));
    m->n_files = json_array_size(files);
    TRY(mem_grow(&m->files, &m->files_cap, m->n_files + 1, sizeof *m->files));
    memset(m->files, 0, m->n_files * sizeof *m->files);
    for (size_t i = 0; i < m->n_files; i++)
        TRY(get_file(json_array_get(files, i), path, &m->files[i]));
    TRY(get_pairs(o, path, "segments", &m->segments, &m->segments_cap, &m->n_segments));
    return get_pairs(o, path, "shards", &m->shards, &m->shards_cap, &m->n_shards);
}

static err parse(const json_t *top, const char *path, data__manifest *m) {
    char digest[33], own[33];
    int64_t format = 0;
    const json_t *store = json_object_get(top, "store");
    TRY(json_get_int(top, path, "format", &format));
    if (format != DATA__STORE_FORMAT)
        return err_set(ERR_REFUSED,
                       "%s: format %" PRId64
                       " is not known to this program; remove the folder or choose another store",
                       path, format);
    TRY(json_copy_text(top, path, "digest", digest, sizeof digest));
    if (!json_is_object(store)) return err_set(ERR_FORMAT, "%s: \"store\" is missing", path);
    TRY(get_key(store, path, m));
    TRY(digest_of(store, path, own));
    if (strcmp(digest, own) != 0)
        return err_set(ERR_FORMAT,
                       "%s is damaged (digest %s, found %s); remove its folder to prepare anew",
                       path, digest, own);
    return get_store(store, path, m);
}

err data__manifest_read(data__manifest *out, const char *path) {
    json_t *top = NULL;
    *out = (data__manifest){0};
    TRY(json_read_file(&top, path));
    err e = parse(top, path, out);
    json_decref(top);
    if (e) data__manifest_free(out);
    return e;
}
