/* Lines to documents, many at a time: parsed, rendered, tokenized, cut to length, judged.
 *
 * A batch is a number of tasks, each a few neighbouring lines; the pool works on them and the caller takes the results in order, so documents do
 * not depend on the number of threads. Buffers are kept from batch to batch unless one line made them large. Policy
 * for bad lines: strict returns the first (lowest task first), lenient marks it. A document that was let go is made again here, from
 * its line and as strictly as before. It writes nothing. */
#include "core/clock.h"
#include "data/data_prepare.h"
#include <inttypes.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { LEAST_TASKS = 64, TASKS_PER_THREAD = 4, TASK_BYTES = 16 << 10, KEEP_BYTES = 1 << 20 };
#define BEAT_SECONDS 0.25

typedef struct scratch { /* of one thread */
    data__chat chat;
    chat_tokens tokens;
} scratch;

struct data__lines {
    const data_config *cfg;
    data__pulse *pulse;
    pool *pool;
    scratch *scratch; /* [threads] */
    const char *path; /* of the present call */
    const char *data;
    data__task *tasks; /* [n_tasks] */
    int n_tasks;
};

err data__pulse_beat(data__pulse *p) {
    if (p->cfg->stop && *p->cfg->stop)
        return err_set(ERR_STOPPED, "stopped while training rows were prepared; nothing was kept");
    const double now = clock_seconds();
    if (!p->cfg->beat || now - p->last < BEAT_SECONDS) return ERR_OK;
    p->last = now;
    p->cfg->beat(p->cfg->beat_ctx, p->lines, p->bytes_done, p->bytes_all);
    return ERR_OK;
}

uint64_t data__growth_line(const char *s, size_t n) { return XXH3_64bits(s, n); }

int64_t data_candidates(const uint8_t *loss, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i + 1 < n; i++) count += loss[i] && loss[i + 1];
    return count;
}

/* ---- one line ---- */

static err keep(data__task *t, data__result *r, const chat_tokens *c, size_t n) {
    const size_t bytes = data__document_bytes(n);
    TRY(mem_grow(&t->bytes, &t->bytes_cap, t->used + bytes, 1));
    uint8_t *at = t->bytes + t->used;
    memset(at + bytes - 4, 0, 4);
    memcpy(at, c->ids, n * sizeof *c->ids);
    memcpy(at + n * sizeof *c->ids, c->loss, n);
    const XXH128_hash_t h = XXH3_128bits(at, bytes);
    r->kind = DATA__DOCUMENT;
    r->at = t->used;
    r->entry.n = (uint32_t)n;
    r->entry.hash[0] = h.low64;
    r->entry.hash[1] = h.high64;
    t->used += bytes;
    return ERR_OK;
}

/* A line that is not blank. ERR_FORMAT comes with a reason and may be set aside; other errors may not. */
static err take_line(const data_config *cfg, scratch *s, const data__line *l, data__task *t,
                     data__result *r) {
    TRY(data__parse_line(l, &s->chat, &r->reason));
    err e = chat_encode(cfg->chat, s->chat.m, s->chat.n, &s->tokens);
    if (e == ERR_FORMAT) return data__bad(l, DATA__NO_ANSWER, &r->reason, "%s", err_text());
    TRY(e);
    size_t n = s->tokens.n;
    if (n > (size_t)cfg->max_length) n = (size_t)cfg->max_length;
    r->supervised = 0;
    for (size_t i = 0; i < n; i++) r->supervised += s->tokens.loss[i];
    if (r->supervised == 0)
        return data__bad(l, DATA__CUT_AWAY, &r->reason,
                         "has %zu tokens and its first answer begins beyond max_length %" PRId64
                         "; raise data.max_length or drop the row",
                         s->tokens.n, cfg->max_length);
    r->entry.candidates = (uint32_t)data_candidates(s->tokens.loss, (int64_t)n);
    r->kind = DATA__SHORT;
    if (r->entry.candidates == 0) return ERR_OK;
    r->cut = n < s->tokens.n;
    for (int i = 0; i < s->chat.n; i++)
        r->unspellable += (int64_t)tokenizer_unspellable(cfg->tok, s->chat.m[i].content,
                                                         s->chat.m[i].content_len);
    return keep(t, r, &s->tokens, n);
}

static err read_task(void *ctx, int64_t index, int thread) {
    data__lines *b = ctx;
    data__task *t = &b->tasks[index];
    data__line l = {.path = b->path, .number = t->line - 1};
    t->n = t->used = 0;
    for (uint64_t at = t->from; at < t->end; at += l.n + 1) {
        const char *newline = memchr(b->data + at, '\n', t->end - at);
        l.s = b->data + at;
        l.n = newline ? (size_t)(newline - l.s) : t->end - at;
        l.offset = at;
        l.number++;
        TRY(mem_grow(&t->results, &t->results_cap, t->n + 1, sizeof *t->results));
        data__result *r = &t->results[t->n++];
        *r = (data__result){.kind = DATA__BLANK, .offset = at, .bytes = l.n};
        r->entry.line = l.number;
        r->hash = data__growth_line(l.s, l.n);
        if (data__blank(&l)) continue;
        err e = take_line(b->cfg, &b->scratch[thread], &l, t, r);
        if (e == ERR_FORMAT && b->cfg->lenient) {
            r->kind = DATA__SET_ASIDE;
            e = ERR_OK;
        }
        TRY(e);
        if (thread == 0) TRY(data__pulse_beat(b->pulse)); /* the caller's own thread */
    }
    return ERR_OK;
}

/* ---- batches ---- */

err data__lines_open(data__lines **out, const data_config *cfg, data__pulse *p) {
    const int threads = cfg->threads ? cfg->threads : 1;
    data__lines *b;
    *out = NULL;
    TRY(mem_new(1, sizeof *b, &b));
    b->cfg = cfg;
    b->pulse = p;
    b->n_tasks =
        threads * TASKS_PER_THREAD > LEAST_TASKS ? threads * TASKS_PER_THREAD : LEAST_TASKS;
    err e = pool_create(&b->pool, threads);
    if (!e) e = mem_new((size_t)b->n_tasks, sizeof *b->tasks, &b->tasks);
    if (!e) e = mem_new((size_t)threads, sizeof *b->scratch, &b->scratch);
    if (e)
        data__lines_close(b);
    else
        *out = b;
    return e;
}

void data__lines_close(data__lines *b) {
    if (!b) return;
    for (int i = 0; b->scratch && i < pool_threads(b->pool); i++) {
        data__chat_free(&b->scratch[i].chat);
        chat_tokens_free(&b->scratch[i].tokens);
    }
    for (int i = 0; b->tasks && i < b->n_tasks; i++) {
        mem_free(b->tasks[i].results);
        mem_free(b->tasks[i].bytes);
    }
    pool_destroy(b->pool);
    mem_free(b->scratch);
    mem_free(b->tasks);
    mem_free(b);
}

/* What one very long line made of the buffers does not stay. */
static void drop_large(data__lines *b) {
    for (int i = 0; i < b->n_tasks; i++) {
        if (b->tasks[i].bytes_cap <= KEEP_BYTES) continue;
        mem_free(b->tasks[i].bytes);
        b->tasks[i].bytes = NULL;
        b->tasks[i].bytes_cap = 0;
    }
    for (int i = 0; i < pool_threads(b->pool); i++)
        if (b->scratch[i].tokens.cap > KEEP_BYTES) chat_tokens_free(&b->scratch[i].tokens);
}

/* Whole lines from byte `at`, about TASK_BYTES of them. */
static void cut_task(data__task *t, const file_map *map, uint64_t at, int64_t *line) {
    t->from = at;
    t->line = *line;
    while (at < map->size && at - t->from < TASK_BYTES) {
        const uint8_t *newline = memchr(map->data + at, '\n', map->size - at);
        at = newline ? (uint64_t)(newline - map->data) + 1 : map->size;
        ++*line;
    }
    t->end = at;
}

err data__lines_read(data__lines *b, const char *path, const file_map *map, uint64_t from,
                     int64_t line, const data__task **tasks, int *n) {
    drop_large(b);
    b->path = path;
    b->data = (const char *)map->data;
    *tasks = b->tasks;
    *n = 0;
    /* A task beyond one long line ends the batch, so that what is held follows that line alone. */
    const uint64_t most = (uint64_t)b->n_tasks * TASK_BYTES;
    for (uint64_t at = from; *n < b->n_tasks && at < map->size && at - from < most;
         at = b->tasks[*n - 1].end)
        cut_task(&b->tasks[(*n)++], map, at, &line);
    return pool_run(b->pool, *n, read_task, b);
}

/* ---- one line again ---- */

struct data__again {
    data_config cfg;
    scratch scratch;
    data__task task;
};

err data__again_open(data__again **out, const data_config *cfg) {
    TRY(mem_new(1, sizeof **out, out));
    (*out)->cfg = *cfg;
    return ERR_OK;
}

void data__again_close(data__again *a) {
    if (!a) return;
    data__chat_free(&a->scratch.chat);
    chat_tokens_free(&a->scratch.tokens);
    mem_free(a->task.bytes);
    mem_free(a);
}

/* Whether the line that begins there makes the document that the entry describes; its bytes are the task's. */
static int make_again(data__again *a, const char *path, const file_map *map, const data__entry *e) {
    data__result r = {0};
    if (e->offset >= map->size) return 0;
    const char *text = (const char *)map->data + e->offset;
    const char *newline = memchr(text, '\n', map->size - e->offset);
    const data__line l = {.path = path,
                          .s = text,
                          .n = newline ? (size_t)(newline - text) : map->size - e->offset,
                          .number = e->line,
                          .offset = e->offset};
    a->task.used = 0;
    if (data__blank(&l) || take_line(&a->cfg, &a->scratch, &l, &a->task, &r)) return 0;
    return r.kind == DATA__DOCUMENT && r.entry.n == e->n && r.entry.hash[0] == e->hash[0] &&
           r.entry.hash[1] == e->hash[1];
}

err data__again_read(data__again *a, const char *path, const data__entry *e,
                     const uint8_t **bytes) {
    file_map map;
    TRY(file_map_open(&map, path));
    const int same = make_again(a, path, &map, e);
    file_map_close(&map);
    *bytes = a->task.bytes;
    if (same) return ERR_OK;
    return err_set(ERR_IO,
                   "%s: line %" PRId64
                   " changed after its rows were counted; begin again when nobody writes the file",
                   path, e->line);
}
