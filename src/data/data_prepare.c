/* Opening a data set: what a store holds already is taken, the rest of every file is read, and the set is made of both.
 *
 * The order: sizes of all files; the store under its lock and its key against this recipe; every file against what was prepared of it; only
 * then new lines, batch by batch, results taken in order, input let go behind them. The policy for bad lines ends here: strict
 * stops at the first, lenient counts by reason and copies to a side file that appears whole or not at all. A read-only opening takes
 * the index of the store into memory and adds what is new there. It does not shuffle or pack (data_stream.c). */
#include "core/log.h"
#include "data/data_prepare.h"
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { ROOM_EVERY = 256 << 20 }; /* bytes of input between two looks at the free disk */

typedef struct preparer {
    data_set *set;
    const data_config *cfg;
    data__pulse pulse;
    data__store store;
    data__manifest m;      /* of the set that is being made */
    size_t n_old;          /* files of m that the store holds already */
    data__source *sources; /* [set->n_paths] */
    data__lines *lines;
    data__out *out;
    str side_path; /* where bad lines go */
    file_writer *side;
    double written, read, room_at; /* bytes of new documents, of input behind them; next look */
    int published;
    int mixed; /* the set is in memory behind what the store holds of it */
} preparer;

/* ---- side file ---- */

static err add_to_side(preparer *p, const void *line, size_t n) {
    if (p->cfg->read_only) return ERR_OK;
    if (!p->side) TRY(file_writer_open(&p->side, p->side_path.s));
    TRY(file_write(p->side, line, n));
    return file_write(p->side, "\n", 1);
}

/* Lines that were set aside by an earlier preparation, of one file or (-1) of all: a side file is always whole. */
static err restore_side(preparer *p, int64_t only) {
    file_map part, input = {.fd = -1};
    uint64_t open = UINT64_MAX;
    if (!p->n_old || !p->cfg->lenient || p->cfg->read_only) return ERR_OK;
    TRY(data__store_map_part(&p->store, DATA__REJECTED_LINES, &part));
    err e = ERR_OK;
    for (size_t at = 0; at + sizeof(data__rejected) <= part.size && !e;
         at += sizeof(data__rejected)) {
        data__rejected r;
        memcpy(&r, part.data + at, sizeof r);
        if (only >= 0 && r.file != (uint64_t)only) continue;
        if (r.file >= p->n_old) {
            e = err_set(ERR_FORMAT, "%s: a rejected line lies in no file", p->store.dir);
            break;
        }
        if (r.file != open) {
            file_map_close(&input);
            e = file_map_open(&input, p->set->paths[r.file]);
            open = r.file;
        }
        if (!e && (r.offset > input.size || r.bytes > input.size - r.offset))
            e = err_set(ERR_FORMAT, "%s: a rejected line lies in no file", p->store.dir);
        if (!e) e = add_to_side(p, input.data + r.offset, r.bytes);
    }
    file_map_close(&input);
    file_map_close(&part);
    return e;
}

/* A side file of an earlier run would speak of lines that are no longer bad: it becomes empty. */
static err publish_side(preparer *p) {
    if (!p->cfg->lenient || p->cfg->read_only) return ERR_OK;
    if (!p->side && file_exists(p->side_path.s)) TRY(file_writer_open(&p->side, p->side_path.s));
    return p->side ? file_commit(&p->side) : ERR_OK;
}

/* ---- one file ---- */

static err set_aside(preparer *p, size_t file, data_counts *c, const data__result *r,
                     const file_map *map) {
    const data__rejected place = {r->offset, r->bytes, file};
    c->rejected++;
    c->rejected_by_reason[r->reason]++;
    TRY(data__out_rejected(p->out, &place));
    return add_to_side(p, map->data + r->offset, r->bytes);
}

static err take_result(preparer *p, size_t file, const data__task *t, const data__result *r,
                       const file_map *map) {
    data_counts *c = &p->m.files[file].counts;
    c->lines++;
    p->set->work.lines++;
    p->pulse.lines++;
    TRY(data__out_line(p->out, r->hash));
    if (r->kind == DATA__BLANK) c->blank++;
    if (r->kind == DATA__SHORT) c->without_anchor++;
    if (r->kind == DATA__SET_ASIDE) return set_aside(p, file, c, r, map);
    if (r->kind != DATA__DOCUMENT) return ERR_OK;
    data__entry entry = r->entry;
    entry.file = (uint32_t)file;
    entry.offset = r->offset;
    c->documents++;
    c->tokens += entry.n;
    c->supervised += r->supervised;
    c->cut += r->cut;
    c->unspellable += r->unspellable;
    p->set->work.documents++;
    return data__out_document(p->out, entry, t->bytes + r->at);
}

/* Bytes of the index and its like, which a new generation copies. */
static double old_parts(const preparer *p) {
    double bytes = 0;
    for (int i = 0; i < DATA__PARTS; i++) bytes += (double)p->m.part[i].bytes;
    return bytes;
}

/* Looks at the disk before the first document is written and now and then, with what documents took so far. */
static err look_at_room(preparer *p, const data__task *tasks, int n, const char *path) {
    const double rest = (double)(p->pulse.bytes_all - p->pulse.bytes_done);
    const double bytes = n ? (double)(tasks[n - 1].end - tasks[0].from) : 0;
    double need = 0;
    for (int i = 0; i < n; i++)
        need += (double)tasks[i].used +
                (double)tasks[i].n * (double)(sizeof(data__entry) + sizeof(uint64_t));
    p->written += need;
    p->read += bytes;
    if (!p->store.dir || p->read < p->room_at) return ERR_OK;
    p->room_at = p->read + ROOM_EVERY;
    if (rest > bytes) need += p->written / p->read * (rest - bytes);
    return data__store_room(p->store.dir, need, path);
}

static err read_lines(preparer *p, size_t file, const file_map *map) {
    data__source *src = &p->sources[file];
    for (uint64_t at = (uint64_t)src->from, end, page; at < map->size; at = end) {
        const data__task *tasks;
        int n;
        TRY(data__lines_read(p->lines, src->path, map, at, src->lines + 1, &tasks, &n));
        TRY(look_at_room(p, tasks, n, src->path));
        end = tasks[n - 1].end;
        for (int i = 0; i < n; i++) {
            for (size_t k = 0; k < tasks[i].n; k++)
                TRY(take_result(p, file, &tasks[i], &tasks[i].results[k], map));
            src->lines += (int64_t)tasks[i].n;
        }
        XXH3_128bits_update(src->hash, map->data + at, end - at);
        page = at / 4096 * 4096; /* whole pages, so that memory does not follow the input */
        madvise((void *)(uintptr_t)(map->data + page), (end - page) / 4096 * 4096, MADV_DONTNEED);
        p->set->work.bytes += (int64_t)(end - at);
        p->pulse.bytes_done += (int64_t)(end - at);
        TRY(data__pulse_beat(&p->pulse));
    }
    return ERR_OK;
}

/* "2 malformed JSON, 1 unknown role" of what came since `before`. */
static err list_reasons(const data_counts *now, const data_counts *before, str *out) {
    for (int i = 0; i < DATA__REASONS; i++) {
        int64_t n = now->rejected_by_reason[i] - before->rejected_by_reason[i];
        if (n > 0)
            TRY(str_printf(out, "%s%" PRId64 " %s", out->n ? ", " : "", n, data_reason_name(i)));
    }
    return ERR_OK;
}

/* The sentence for a file that gave nothing. */
static err refuse_empty(const char *path, const data_counts *c, const char *reasons) {
    if (c->lines == 0) return err_set(ERR_FORMAT, "%s: the file is empty; it holds no rows", path);
    if (c->blank == c->lines)
        return err_set(ERR_FORMAT, "%s: all %" PRId64 " lines are blank; it holds no rows", path,
                       c->lines);
    return err_set(ERR_FORMAT,
                   "%s: none of its %" PRId64 " lines gives a document to train on (%s%s%" PRId64
                   " without two answer tokens in a row)",
                   path, c->lines, reasons, reasons[0] ? ", " : "", c->without_anchor);
}

/* A file without documents is an error; lines set aside are told. */
static err judge_file(const preparer *p, size_t file, const data_counts *before) {
    const data_counts *c = &p->m.files[file].counts;
    const char *path = p->sources[file].path;
    const int64_t rejected = c->rejected - before->rejected;
    str reasons = {0};
    err e = list_reasons(c, before, &reasons);
    const char *text = reasons.n ? reasons.s : "";
    if (!e && c->documents == 0) e = refuse_empty(path, c, text);
    if (!e && rejected > 0)
        log_warn("%s: %" PRId64 " of %" PRId64 " lines set aside (%s)%s%s", path, rejected,
                 c->lines - before->lines, text, p->cfg->read_only ? "" : "; they are in ",
                 p->cfg->read_only ? "" : p->side_path.s);
    str_free(&reasons);
    return e;
}

static void record_file(data__file *f, const data__source *src, const file_map *map) {
    const XXH128_hash_t h = XXH3_128bits_digest(src->hash);
    snprintf(f->path, sizeof f->path, "%s", src->path);
    snprintf(f->digest, sizeof f->digest, "%016" PRIx64 "%016" PRIx64, h.high64, h.low64);
    f->bytes = (int64_t)map->size;
    f->open_line = map->size > 0 && map->data[map->size - 1] != '\n';
}

/* Lines that follow others of their file join their segment. */
static err add_segment(data__manifest *m, int64_t file, int64_t lines) {
    data__segment *last = m->n_segments ? &m->segments[m->n_segments - 1] : NULL;
    if (last && last->file == file) {
        last->lines += lines;
        return ERR_OK;
    }
    TRY(mem_grow(&m->segments, &m->segments_cap, m->n_segments + 1, sizeof *m->segments));
    m->segments[m->n_segments++] = (data__segment){.file = file, .lines = lines};
    return ERR_OK;
}

static err prepare_file(preparer *p, size_t file) {
    data__source *src = &p->sources[file];
    data__manifest *m = &p->m;
    data__file *f = &m->files[file];
    file_map map;
    if (file >= p->n_old) *f = (data__file){0};
    const data_counts before = f->counts;
    if (!p->cfg->side_path) {
        str_clear(&p->side_path);
        TRY(str_printf(&p->side_path, "%s.rejected.jsonl", src->path));
        if (file < p->n_old) TRY(restore_side(p, (int64_t)file));
    }
    TRY(file_map_open(&map, src->path));
    err e = ERR_OK;
    if ((int64_t)map.size < src->bytes)
        e = err_set(ERR_IO, "%s became shorter while it was read; prepare it when nobody writes it",
                    src->path);
    file_map part = map; /* what is appended meanwhile waits for the next time */
    part.size = (size_t)src->bytes;
    if (!e) e = read_lines(p, file, &part);
    if (!e) record_file(f, src, &part);
    file_map_close(&map);
    TRY(e);
    TRY(add_segment(m, (int64_t)file, f->counts.lines - before.lines));
    TRY(judge_file(p, file, &before));
    return p->cfg->side_path ? ERR_OK : publish_side(p);
}

/* ---- the store against this recipe ---- */

/* What makes a store's documents others than this recipe's; empty when nothing does. */
static void find_difference(const data__manifest *m, const data__manifest *now, char *out,
                            size_t n) {
    out[0] = 0;
    if (strcmp(m->rule, now->rule) != 0)
        snprintf(out, n, "they were prepared by other rules (%s, now %s)", m->rule, now->rule);
    else if (strcmp(m->tokenizer, now->tokenizer) != 0)
        snprintf(out, n, "the tokenizer is another");
    else if (strcmp(m->chat, now->chat) != 0)
        snprintf(out, n, "the chat template is another");
    else if (m->max_length != now->max_length)
        snprintf(out, n, "max_length was %" PRId64 " and is %" PRId64, m->max_length,
                 now->max_length);
    else if (m->lenient != now->lenient)
        snprintf(out, n, "bad lines %s", now->lenient ? "are set aside now" : "stop it now");
}

/* Forgets what the store holds; its files stay until the new generation is published. */
static void forget(preparer *p) {
    p->n_old = p->m.n_files = p->m.n_segments = p->m.n_shards = 0;
    memset(p->m.part, 0, sizeof p->m.part);
    for (int i = 0; i < p->set->n_paths; i++) {
        p->sources[i].from = p->sources[i].lines = 0;
        XXH3_128bits_reset(p->sources[i].hash);
    }
    p->pulse.bytes_done = 0;
}

static err compare_files(preparer *p, int *changed) {
    if (p->n_old > (size_t)p->set->n_paths) {
        *changed = 1;
        return err_set(ERR_REFUSED,
                       "%s was prepared from %zu files and %d are named now: %s is missing",
                       p->store.dir, p->n_old, p->set->n_paths, p->m.files[p->set->n_paths].path);
    }
    for (size_t i = 0; i < p->n_old; i++)
        TRY(data__growth_check(&p->store, i, &p->sources[i], &p->pulse, changed));
    return ERR_OK;
}

static const char *verb(const preparer *p) { return p->cfg->read_only ? "counted" : "prepared"; }

static err use_store(preparer *p) {
    char why[160];
    data__manifest now = p->m; /* this recipe's key */
    TRY(data__store_open(&p->store, p->cfg->store, &p->pulse));
    TRY(data__manifest_copy(&p->m, &p->store.m));
    find_difference(&p->m, &now, why, sizeof why);
    if (p->m.generation > 0 && why[0])
        log_info("%s: all rows are %s anew: %s", p->store.dir, verb(p), why);
    memcpy(p->m.rule, now.rule, sizeof now.rule);
    memcpy(p->m.tokenizer, now.tokenizer, sizeof now.tokenizer);
    memcpy(p->m.chat, now.chat, sizeof now.chat);
    p->m.max_length = now.max_length;
    p->m.lenient = now.lenient;
    p->n_old = p->m.n_files;
    if (why[0]) {
        forget(p);
        return ERR_OK;
    }
    int changed = 0;
    err e = compare_files(p, &changed);
    if (!changed) return e;
    char what[1024];
    snprintf(what, sizeof what, "%s", err_text());
    if (!p->cfg->allow_changed)
        return err_set(e, "%s; bring it back, or %s to prepare everything anew", what,
                       p->cfg->allow_by ? p->cfg->allow_by : "say data.allow_changed: true");
    log_warn("%s; this is allowed, so everything is %s anew", what, verb(p));
    forget(p);
    return ERR_OK;
}

/* ---- the whole ---- */

static err check_config(const data_config *cfg, const char *const *paths, int n_paths) {
    if (n_paths < 1) return err_set(ERR_USAGE, "no file of training rows was named");
    if (cfg->max_length < 1)
        return err_set(ERR_RANGE, "max_length is %" PRId64 "; it must be 1 or more",
                       cfg->max_length);
    for (int i = 0; i < n_paths; i++)
        if (cfg->side_path && strcmp(cfg->side_path, paths[i]) == 0)
            return err_set(ERR_USAGE, "%s: bad lines cannot be copied over the file they come from",
                           paths[i]);
    return ERR_OK;
}

/* Every file can be opened, and its size is noted, before anything long begins. */
static err open_sources(preparer *p, const char *const *paths, int n_paths) {
    data_set *s = p->set;
    TRY(arena_create(&s->mem, "documents", 0));
    TRY(arena_alloc(s->mem, (size_t)n_paths, sizeof *s->paths, &s->paths));
    TRY(arena_alloc(s->mem, (size_t)n_paths, sizeof *p->sources, &p->sources));
    for (int i = 0; i < n_paths; i++) {
        char *own;
        file_map map;
        TRY(arena_strdup(s->mem, paths[i], &own));
        s->paths[i] = own;
        TRY(file_map_open(&map, own));
        p->sources[i] = (data__source){.path = own, .bytes = (int64_t)map.size};
        p->pulse.bytes_all += (int64_t)map.size;
        file_map_close(&map);
        p->sources[i].hash = XXH3_createState();
        s->n_paths++;
        if (!p->sources[i].hash) return err_set(ERR_MEMORY, "no memory to read training rows");
        XXH3_128bits_reset(p->sources[i].hash);
    }
    return ERR_OK;
}

static err set_key(preparer *p) {
    data_set *s = p->set;
    data__manifest *m = &p->m;
    tokenizer_digest(p->cfg->tok, s->tokenizer);
    chat_template_digest(p->cfg->chat, s->chat);
    s->max_length = p->cfg->max_length;
    snprintf(m->rule, sizeof m->rule, "%s", DATA__RULE);
    memcpy(m->tokenizer, s->tokenizer, sizeof s->tokenizer);
    memcpy(m->chat, s->chat, sizeof s->chat);
    m->max_length = s->max_length;
    m->lenient = p->cfg->lenient;
    if (!p->cfg->store) return ERR_OK;
    char *own;
    TRY(arena_strdup(s->mem, p->cfg->store, &own));
    TRY(use_store(p));
    s->store = p->store.dir = own;
    return ERR_OK;
}

/* The first shard to be written again, by what the new lines will take if their documents are as large as the old ones'. */
static size_t find_merge(const preparer *p) {
    double read = 0, coming = 0;
    for (size_t i = 0; i < p->n_old; i++) read += (double)p->m.files[i].bytes;
    for (int i = 0; i < p->set->n_paths; i++)
        coming += (double)(p->sources[i].bytes - p->sources[i].from);
    if (read > 0) coming *= (double)data__merge_bytes(&p->m, 0) / read;
    return data__merge_from(&p->m, coming, data__shard_most(p->cfg));
}

static int is_new(const preparer *p, size_t file) {
    return file >= p->n_old || p->sources[file].from < p->sources[file].bytes;
}

/* Documents that the store holds come first, and the index goes on in memory. */
static err add_to_store_in_memory(preparer *p) {
    static const data__store none = {.lock = -1};
    data_set *s = p->set;
    p->mixed = 1;
    if (p->n_old) {
        TRY(data__store_map(&p->store, s));
        const size_t n = (size_t)s->counts.documents;
        TRY(mem_grow(&s->own_docs, &s->docs_cap, n + 1, sizeof *s->own_docs));
        if (n) memcpy(s->own_docs, s->docs, n * sizeof *s->docs);
        s->docs = s->own_docs;
    } else {
        s->store = NULL;
    }
    return data__out_open(&p->out, s, &none, &p->m, p->m.n_shards, &p->pulse);
}

static err add_to_store_on_disk(preparer *p) {
    data__manifest *m = &p->m;
    const size_t keep = find_merge(p);
    const double again = old_parts(p) + (double)data__merge_bytes(m, keep);
    m->generation++;
    if (p->store.dir) TRY(data__store_room(p->store.dir, again, p->set->paths[0]));
    return data__out_open(&p->out, p->set, &p->store, m, keep, &p->pulse);
}

static err prepare_new(preparer *p) {
    data__manifest *m = &p->m;
    const size_t n = (size_t)p->set->n_paths;
    if (p->n_old)
        log_info("%s: the store's rows are kept and only what is new is %s", p->store.dir, verb(p));
    TRY(p->cfg->read_only ? add_to_store_in_memory(p) : add_to_store_on_disk(p));
    TRY(data__lines_open(&p->lines, p->cfg, &p->pulse));
    TRY(mem_grow(&m->files, &m->files_cap, n, sizeof *m->files));
    m->n_files = n;
    if (p->cfg->side_path) {
        TRY(str_printf(&p->side_path, "%s", p->cfg->side_path));
        TRY(restore_side(p, -1));
    }
    for (size_t i = 0; i < n; i++)
        if (is_new(p, i)) TRY(prepare_file(p, i));
    if (p->cfg->side_path) TRY(publish_side(p));
    TRY(data__out_finish(p->out));
    if (!p->store.dir || p->mixed) return ERR_OK;
    p->published = 1; /* or half so: from here on only the next opening may judge */
    return data__store_publish(&p->store, m);
}

static void log_losses(const data_counts *c, const data_config *cfg) {
    if (c->cut)
        log_warn("%" PRId64 " of %" PRId64 " documents are longer than max_length %" PRId64
                 " and were cut at their end",
                 c->cut, c->documents, cfg->max_length);
    if (c->without_anchor)
        log_warn("%" PRId64 " conversations have no two answer tokens in a row and were left out",
                 c->without_anchor);
    if (c->unspellable)
        log_warn("%" PRId64 " bytes of text have no token in the model's vocabulary and are lost",
                 c->unspellable);
}

static err prepare(preparer *p, const char *const *paths, int n_paths) {
    data_set *s = p->set;
    int any = 0;
    TRY(check_config(p->cfg, paths, n_paths));
    TRY(open_sources(p, paths, n_paths));
    TRY(set_key(p));
    for (size_t i = 0; i < (size_t)n_paths; i++) any |= is_new(p, i);
    if (any) TRY(prepare_new(p));
    if (s->store && !p->mixed) {
        TRY(data__store_map(&p->store, s));
    } else {
        s->counts = (data_counts){0};
        for (int i = 0; i < n_paths; i++) data__counts_add(&s->counts, &p->m.files[i].counts);
    }
    log_losses(&s->counts, p->cfg);
    return data_digest_at(s, s->counts.documents, s->digest);
}

/* Shards that a failed preparation completed go at once; the error that led here stays the one told. */
static void sweep_after(preparer *p, err e) {
    char text[2048];
    snprintf(text, sizeof text, "%s", err_text());
    if (p->store.dir && p->store.lock >= 0 && !p->published && data__store_sweep(&p->store))
        err_set(e, "%s", text);
}

err data_open(data_set **out, const char *const *paths, int n_paths, const data_config *cfg) {
    *out = NULL;
    preparer p = {.cfg = cfg, .pulse = {.cfg = cfg}, .store = {.lock = -1}};
    TRY(mem_new(1, sizeof *p.set, &p.set));
    err e = cfg->let_go || cfg->read_only ? data__again_open(&p.set->again, cfg) : ERR_OK;
    if (!e) e = prepare(&p, paths, n_paths);
    file_abort(&p.side);
    data__out_close(p.out);
    if (e) sweep_after(&p, e);
    data__lines_close(p.lines);
    for (int i = 0; i < p.set->n_paths; i++) XXH3_freeState(p.sources[i].hash);
    data__store_close(&p.store);
    data__manifest_free(&p.m);
    str_free(&p.side_path);
    if (e) {
        data_close(p.set);
        return e;
    }
    *out = p.set;
    return ERR_OK;
}
