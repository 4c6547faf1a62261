/* Preparing rows at scale: the first preparation, growth, a hit, and what a plan walks, with rates, rows counted and peak memory.
 *
 * Rows are made here: a training prompt of the given file (under 1,500 bytes) and an answer put together from sentences of others, of 1,100 to 2,700 bytes, so
 * that documents have some 300 to 700 tokens of SmolLM2's vocabulary (of the test fixture). The first ROWS are prepared in a store, a cursor
 * walks 200 rows, the file grows to GROWN, which are prepared, and the cursor goes on. Memory is the kernel's high-water mark of this
 * process (VmHWM) above what was resident before the step; of it 48 bytes a document are the mapped index. Nothing is left in FOLDER.
 * Usage: bench_data [ROWS GROWN [THREADS [FOLDER [PROMPTS]]]], from the repository's root */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>
#include "core/arena.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include "core/pool.h"
#include "core/rng.h"
#include "data/data.h"
#include "io/json.h"

static void must(err e) {
    if (!e) return;
    fprintf(stderr, "bench_data: %s\n", err_text());
    exit(1);
}
static void need(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "bench_data: %s\n", what);
    exit(1);
}

/* A whole file, decompressed when it is a zstd frame. */
static char *read_text(const char *path, size_t *n) {
    char *raw, *out = NULL;
    size_t raw_n, cap = 0;
    must(file_read(path, &raw, &raw_n));
    *n = raw_n;
    if (raw_n < 4 || memcmp(raw, "\x28\xb5\x2f\xfd", 4) != 0) return raw;
    ZSTD_DStream *s = ZSTD_createDStream();
    ZSTD_inBuffer from = {raw, raw_n, 0};
    *n = 0;
    while (from.pos < from.size) {
        must(mem_grow(&out, &cap, *n + (1 << 20), 1));
        ZSTD_outBuffer to = {out + *n, cap - *n, 0};
        need(!ZSTD_isError(ZSTD_decompressStream(s, &to, &from)), path);
        *n += to.pos;
    }
    ZSTD_freeDStream(s);
    mem_free(raw);
    return out;
}

/* ---- rows ---- */

typedef struct texts {
    char **prompt; /* [n] */
    char **piece;  /* [n_pieces] sentences of them */
    size_t n, cap, n_pieces, pieces_cap;
} texts;

static char *copy(const char *s, size_t n) {
    char *out;
    must(mem_new(n + 1, 1, &out));
    memcpy(out, s, n);
    return out;
}

static void add_prompt(texts *t, const char *s) {
    must(mem_grow(&t->prompt, &t->cap, t->n + 1, sizeof *t->prompt));
    t->prompt[t->n++] = copy(s, strlen(s));
    while (*s) { /* a piece ends behind ". " or at the end */
        const char *end = strstr(s, ". ");
        const size_t n = end ? (size_t)(end - s) + 2 : strlen(s);
        must(mem_grow(&t->piece, &t->pieces_cap, t->n_pieces + 1, sizeof *t->piece));
        if (n > 8 && n < 400) t->piece[t->n_pieces++] = copy(s, n);
        s += n;
    }
}

static void load_prompts(texts *t, const char *path) {
    size_t n;
    char *text = read_text(path, &n), *end;
    for (char *at = text; at < text + n; at = end + 1) {
        json_t *o;
        end = memchr(at, '\n', (size_t)(text + n - at));
        if (!end) end = text + n;
        if (end == at) continue;
        must(json_parse(&o, path, at, (size_t)(end - at)));
        const char *split = json_string_value(json_object_get(o, "split"));
        const json_t *p = json_object_get(o, "prompt");
        if (!p) p = json_array_get(json_object_get(o, "turns"), 0);
        if (json_is_string(p) && split && strcmp(split, "train") == 0 &&
            json_string_length(p) < 1500)
            add_prompt(t, json_string_value(p));
        json_decref(o);
    }
    mem_free(text);
    need(t->n > 0 && t->n_pieces > 0, "the file of prompts holds no training prompt");
}

static void free_texts(texts *t) {
    for (size_t i = 0; i < t->n; i++) mem_free(t->prompt[i]);
    for (size_t i = 0; i < t->n_pieces; i++) mem_free(t->piece[i]);
    mem_free(t->prompt);
    mem_free(t->piece);
}

/* Rows first .. last - 1 at the end of the file; row i depends on i alone. */
static double append_rows(const texts *t, const char *path, int64_t first, int64_t last) {
    FILE *f = fopen(path, "ab");
    str answer = {0};
    need(f != NULL, path);
    for (int64_t i = first; i < last; i++) {
        const uint64_t row = (uint64_t)i;
        const size_t want = 1100 + (size_t)rng_below(1, RNG_TEST, row, 0, 1600);
        str_clear(&answer);
        for (uint64_t k = 2; answer.n < want; k++) {
            const char *s = t->piece[rng_below(1, RNG_TEST, row, k, t->n_pieces)];
            must(str_add(&answer, s, strlen(s)));
        }
        json_t *o =
            json_pack("{s:I, s:s, s:s}", "id", (json_int_t)i, "prompt",
                      t->prompt[rng_below(1, RNG_TEST, row, 1, t->n)], "response", answer.s);
        need(o && json_dumpf(o, f, JSON_COMPACT) == 0 && fputc('\n', f) == '\n', path);
        json_decref(o);
    }
    const double bytes = (double)ftell(f);
    need(fclose(f) == 0, path);
    str_free(&answer);
    return bytes;
}

/* ---- measuring ---- */

static void reset_peak(void) {
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f) return;
    fputs("5", f);
    fclose(f);
}
static double peak_bytes(void) {
    char line[256];
    double kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    need(f != NULL, "/proc/self/status cannot be read");
    while (fgets(line, sizeof line, f))
        if (strncmp(line, "VmHWM:", 6) == 0) kb = atof(line + 6);
    fclose(f);
    return kb * 1024;
}

enum { PARTS = 10 };
typedef struct progress { /* rate of each tenth of the bytes: is the time linear? */
    double part_start, rate[PARTS], longest_wait, last;
    double hashed; /* when the bytes that were prepared before had been hashed */
    int64_t part_lines;
    int parts;
    int64_t beats;
} progress;

static void beat(void *ctx, int64_t lines, int64_t done, int64_t all) {
    progress *p = ctx;
    const double now = clock_seconds();
    if (p->beats++ && now - p->last > p->longest_wait) p->longest_wait = now - p->last;
    p->last = now;
    if (lines == 0) p->part_start = p->hashed = now;
    while (p->parts < PARTS && all && done * PARTS >= all * (p->parts + 1)) {
        if (now > p->part_start && lines > p->part_lines)
            p->rate[p->parts] = (double)(lines - p->part_lines) / (now - p->part_start);
        p->parts++;
        p->part_start = now;
        p->part_lines = lines;
    }
}

static data_set *prepare(const char *what, const char *path, data_config cfg) {
    char a[32], b[32], d[24];
    progress p = {0};
    data_set *s;
    cfg.beat = beat;
    cfg.beat_ctx = &p;
    reset_peak();
    const double before = peak_bytes(), start = clock_seconds();
    must(data_open(&s, &path, 1, &cfg));
    const double end = clock_seconds(), hashing = p.hashed - start;
    const data_work *w = data_get_work(s);
    printf(
        "%-8s %10s rows prepared of %10s in %7.1f s, %8.0f rows/s after %.1f s of hashing, memory +%s at "
        "most, %" PRId64 " beats, longest wait %.2f s\n",
        what, str_thousands(w->lines, a), str_thousands(data_get_counts(s)->lines, b), end - start,
        (double)w->lines / (end - start - hashing), hashing, str_bytes(peak_bytes() - before, d),
        p.beats, p.longest_wait);
    if (w->lines) printf("         rows/s by tenth of the bytes:");
    for (int i = 0; i < PARTS && w->lines; i++)
        if (p.rate[i] > 0) printf(" %.0f", p.rate[i]);
    if (w->lines) printf("\n");
    fflush(stdout);
    return s;
}

/* A cursor's next rows, and epochs as a plan walks them. */
static data_cursor read_rows(const data_set *s, data_cursor from, int rows) {
    data_stream *st;
    const data_row *row;
    must(data_stream_open(&st, s, 1, 8192));
    must(data_stream_seek(st, from));
    for (int i = 0; i < rows; i++) must(data_stream_next(st, &row));
    const data_cursor c = data_stream_tell(st);
    data_stream_close(st);
    return c;
}

static void walk(const data_set *s, int epochs) {
    data_stream *st;
    data_row_size size;
    int64_t rows = 0, anchors = 0, tokens = 0;
    reset_peak();
    const double before = peak_bytes(), start = clock_seconds();
    must(data_stream_open(&st, s, 1, 8192));
    for (; data_stream_tell(st).epoch < epochs; rows++) {
        data_stream_skip(st, 256, &size);
        anchors += size.anchors;
        tokens += size.n;
    }
    data_stream_close(st);
    char a[32], b[32], d[24];
    printf("plan     %d epochs walked by size in %.2f s: %s rows of up to 8192 tokens, %s tokens, "
           "%.3g anchors, memory +%s at most\n",
           epochs, clock_seconds() - start, str_thousands(rows, a), str_thousands(tokens, b),
           (double)anchors, str_bytes(peak_bytes() - before, d));
}

static tokenizer *open_tokenizer(const char *dir) {
    char path[4096];
    size_t n;
    char *bytes = read_text("tests/fixtures/text/smollm2_tokenizer.gguf.zst", &n);
    file_writer *w;
    gguf *g;
    tokenizer *t;
    must(file_join(path, sizeof path, dir, "tokenizer.gguf"));
    must(file_writer_open(&w, path));
    must(file_write(w, bytes, n));
    must(file_commit(&w));
    must(gguf_open(&g, path));
    must(tokenizer_load_gguf(&t, g));
    gguf_close(g);
    mem_free(bytes);
    return t;
}

int main(int argc, char **argv) {
    const int64_t first = argc > 2 ? atoll(argv[1]) : 20000,
                  last = argc > 2 ? atoll(argv[2]) : 24000;
    const int threads = argc > 3 ? atoi(argv[3]) : pool_cpus();
    const char *folder = argc > 4 ? argv[4] : "/tmp";
    char dir[4096], path[4096], store[4096], size[24];
    texts t = {0};
    chat_template *chat;
    log_set_level(LOG_WARN);
    snprintf(dir, sizeof dir, "%s/paceline-bench-data-%ld", folder, (long)getpid());
    must(file_make_dirs(dir));
    must(file_join(path, sizeof path, dir, "rows.jsonl"));
    must(file_join(store, sizeof store, dir, "store"));
    tokenizer *tok = open_tokenizer(dir);
    must(chat_template_open(&chat, "auto", tok));
    load_prompts(&t, argc > 5 ? argv[5] : "demo/prompts.jsonl");
    data_config cfg = {.tok = tok, .chat = chat, .max_length = 2048, .threads = threads};
    double bytes = append_rows(&t, path, 0, first);
    cfg.store = store;
    printf("%d threads, %zu prompts; rows.jsonl has %s\n", threads, t.n, str_bytes(bytes, size));
    data_set *s = prepare("first", path, cfg);
    const data_counts *c = data_get_counts(s);
    printf("         %.0f tokens a document, %.0f supervised\n",
           (double)c->tokens / (double)c->documents, (double)c->supervised / (double)c->documents);
    const data_cursor at = read_rows(s, (data_cursor){0}, 200);
    data_close(s);
    bytes = append_rows(&t, path, first, last);
    s = prepare("growth", path, cfg);
    need(data_get_work(s)->lines == last - first, "other rows than the new ones were prepared");
    const data_cursor on = read_rows(s, at, 200);
    need(on.docs == first && on.rows == 400, "the cursor did not go on in its epoch");
    walk(s, 6);
    data_close(s);
    data_close(prepare("again", path, cfg));
    free_texts(&t);
    chat_template_free(chat);
    tokenizer_free(tok);
    must(file_remove_tree(dir));
    return 0;
}
