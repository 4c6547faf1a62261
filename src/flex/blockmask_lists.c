/* Lists to runs and back.
 *
 * Importing goes through one byte per tile of a row: a tile's kind, so duplicates and contradictions show as they are
 * read. Rows become runs at once; columns are transposed from them with one counter per column. Exporting walks the
 * runs. Nothing is sorted, nothing of the size of the mask's cells exists. */
#include "flex/blockmask_lists.h"
#include "core/str.h"
#include <string.h>

enum { NONE, PARTIAL, FULL };
#define DEFAULT_BUDGET ((size_t)256 << 20)

typedef struct reader {
    const blockmask_lists *l;
    const blockmask_side *side;
    const char *rows, *cols; /* "query", "key": what a line and an entry of it count */
    const char *prefix;      /* "kv" or "q" */
    int64_t lines, across;   /* of one entry */
    uint8_t *kind;           /* [across] of the line at hand */
} reader;

static reader reader_of(const blockmask_lists *l, const block_mask *m, int columns, uint8_t *kind) {
    if (columns) return (reader){l, &l->q, "key", "query", "q", m->kv_tiles, m->q_tiles, kind};
    return (reader){l, &l->kv, "query", "key", "kv", m->q_tiles, m->kv_tiles, kind};
}

static err read_list(const reader *r, int64_t line, const int32_t *count, const int32_t *index,
                     uint8_t kind) {
    const char *what = kind == FULL ? "full_" : "";
    long long entry = (long long)(line / r->lines), at = (long long)(line % r->lines);
    if (!count) return ERR_OK;
    if (count[line] < 0 || count[line] > r->across)
        return err_set(
            ERR_RANGE,
            "block mask: %s%s_num_blocks says %d for %s tile %lld of entry %lld; it must be from 0 to %lld",
            what, r->prefix, count[line], r->rows, at, entry, (long long)r->across);
    for (int32_t i = 0; i < count[line]; i++) {
        int32_t tile = index[line * r->across + i];
        if (tile < 0 || tile >= r->across)
            return err_set(
                ERR_RANGE,
                "block mask: %s%s_indices names %s tile %d for %s tile %lld of entry %lld; there are %lld",
                what, r->prefix, r->cols, tile, r->rows, at, entry, (long long)r->across);
        if (r->kind[tile])
            return err_set(
                ERR_RANGE, "block mask: %s tile %d is listed %s for %s tile %lld of entry %lld",
                r->cols, tile, r->kind[tile] == kind ? "twice" : "both as partial and as full",
                r->rows, at, entry);
        r->kind[tile] = kind;
    }
    return ERR_OK;
}

static err read_line(const reader *r, int64_t line) {
    memset(r->kind, NONE, (size_t)r->across);
    TRY(read_list(r, line, r->side->count, r->side->index, PARTIAL));
    return read_list(r, line, r->side->full_count, r->side->full_index, FULL);
}

/* Runs of a line of kinds; written to run where that is not NULL. */
static int64_t runs_of(const uint8_t *kind, int64_t n, block_run *run) {
    int64_t runs = 0;
    for (int64_t i = 0; i < n;) {
        int64_t end = i + 1;
        while (end < n && kind[end] == kind[i]) end++;
        if (kind[i] && run)
            run[runs] = (block_run){(int32_t)i, (int32_t)(end - i), kind[i] == FULL};
        runs += kind[i] != NONE;
        i = end;
    }
    return runs;
}

static err afford(size_t bytes, size_t budget) {
    char need[24], have[24];
    if (bytes <= budget) return ERR_OK;
    return err_set(ERR_REFUSED,
                   "block mask: its runs need %s and the budget is %s; raise the budget",
                   str_bytes((double)bytes, need), str_bytes((double)budget, have));
}

static err import_rows(block_mask *m, const reader *r, size_t budget, arena *a) {
    int64_t lines = m->batch * m->heads * r->lines, *start;
    block_run *run;
    TRY(arena_alloc(a, (size_t)lines + 1, sizeof *start, &start));
    for (int64_t i = 0; i < lines; i++) {
        TRY(read_line(r, i));
        start[i + 1] = start[i] + runs_of(r->kind, r->across, NULL);
    }
    m->bytes += ((size_t)lines + 1) * sizeof *start + (size_t)start[lines] * sizeof *run;
    TRY(afford(m->bytes, budget));
    TRY(arena_alloc_raw(a, (size_t)start[lines], sizeof *run, &run));
    for (int64_t i = 0; i < lines; i++) {
        TRY(read_line(r, i));
        runs_of(r->kind, r->across, run + start[i]);
    }
    m->row_start = start;
    m->row_run = run;
    return ERR_OK;
}

/* One pass over the rows' runs: counts the columns' runs, or writes them where run is not NULL. next[column] is where the
 * column's next run goes, end[column] = 2 * (row behind its last run) + kind. */
static void transpose(const block_mask *m, int64_t entry, int64_t *next, int64_t *end,
                      block_run *run) {
    for (int64_t c = 0; c < m->kv_tiles; c++) end[c] = -1;
    for (int64_t q = 0; q < m->q_tiles; q++) {
        int64_t line = entry * m->q_tiles + q;
        for (int64_t r = m->row_start[line]; r < m->row_start[line + 1]; r++) {
            const block_run *x = &m->row_run[r];
            for (int64_t c = x->start; c < x->start + (int64_t)x->length; c++) {
                int joins = end[c] == 2 * q + x->full;
                if (run && joins) run[next[c] - 1].length++;
                if (run && !joins) run[next[c]] = (block_run){(int32_t)q, 1, x->full};
                next[c] += !joins;
                end[c] = 2 * (q + 1) + x->full;
            }
        }
    }
}

static err transpose_all(block_mask *m, int64_t *next, int64_t *end, size_t budget, arena *a) {
    int64_t entries = m->batch * m->heads, lines = entries * m->kv_tiles, *start;
    block_run *run;
    TRY(arena_alloc(a, (size_t)lines + 1, sizeof *start, &start));
    for (int64_t e = 0; e < entries; e++) {
        memset(next, 0, (size_t)m->kv_tiles * sizeof *next);
        transpose(m, e, next, end, NULL);
        for (int64_t c = 0; c < m->kv_tiles; c++) start[e * m->kv_tiles + c + 1] = next[c];
    }
    for (int64_t i = 0; i < lines; i++) start[i + 1] += start[i];
    m->bytes += ((size_t)lines + 1) * sizeof *start + (size_t)start[lines] * sizeof *run;
    TRY(afford(m->bytes, budget));
    TRY(arena_alloc_raw(a, (size_t)start[lines], sizeof *run, &run));
    for (int64_t e = 0; e < entries; e++) {
        memcpy(next, start + e * m->kv_tiles, (size_t)m->kv_tiles * sizeof *next);
        transpose(m, e, next, end, run);
    }
    m->col_start = start;
    m->col_run = run;
    return ERR_OK;
}

/* The lists by key tiles say what the runs say. */
static err check_columns(const block_mask *m, const reader *r) {
    for (int64_t line = 0; line < m->batch * m->heads * r->lines; line++) {
        TRY(read_line(r, line));
        int64_t at = 0;
        for (int64_t i = m->col_start[line]; i <= m->col_start[line + 1]; i++) {
            int last = i == m->col_start[line + 1];
            const block_run *x = &m->col_run[i];
            int64_t from = last ? r->across : x->start, to = last ? from : from + x->length;
            for (; at < to || at < from; at++) {
                int want = at < from ? NONE : x->full ? FULL : PARTIAL;
                if (r->kind[at] == want) continue;
                static const char *const names[] = {"empty", "partial", "full"};
                return err_set(
                    ERR_RANGE,
                    "block mask: tile (query %lld, key %lld) of entry %lld is %s by the lists of query tiles and %s "
                    "by those of key tiles",
                    (long long)at, (long long)(line % r->lines), (long long)(line / r->lines),
                    names[want], names[r->kind[at]]);
            }
        }
    }
    return ERR_OK;
}

static void count_tiles(block_mask *m) {
    int64_t lines = m->batch * m->heads * m->q_tiles;
    for (int64_t r = 0; r < m->row_start[lines]; r++)
        *(m->row_run[r].full ? &m->full : &m->partial) += m->row_run[r].length;
    m->empty = lines * m->kv_tiles - m->full - m->partial;
}

static err start_import(const blockmask_lists *l, block_mask *m) {
    if (l->q_len < 0 || l->kv_len < 0 || l->batch < 1 || l->heads < 1 || l->tile_q < 1 ||
        l->tile_kv < 1)
        return err_set(
            ERR_RANGE,
            "block mask: batch and heads must be at least 1, lengths not negative, tiles at least 1");
    if (!l->kv.count || !l->kv.index || !l->kv.full_count != !l->kv.full_index ||
        !l->q.count != !l->q.index || !l->q.full_count != !l->q.full_index)
        return err_set(
            ERR_USAGE,
            "block mask: lists come in pairs, counts (num_blocks) and indices; one of a pair is missing");
    if (l->q.count && !l->q.full_count != !l->kv.full_count)
        return err_set(
            ERR_USAGE,
            "block mask: full lists are given for one direction only; give both or none");
    *m = (block_mask){.batch = l->batch,
                      .heads = l->heads,
                      .q_len = l->q_len,
                      .kv_len = l->kv_len,
                      .tile_q = l->tile_q,
                      .tile_kv = l->tile_kv};
    m->q_tiles = (l->q_len + l->tile_q - 1) / l->tile_q;
    m->kv_tiles = (l->kv_len + l->tile_kv - 1) / l->tile_kv;
    m->given = m->may_leave = 1;
    m->proofs.by_batch = m->proofs.by_head = 1;
    if (m->q_tiles <= INT32_MAX / 2 && m->kv_tiles <= INT32_MAX / 2) return ERR_OK;
    return err_set(ERR_REFUSED, "block mask: %lld x %lld tiles are more than 2^30 along one side",
                   (long long)m->q_tiles, (long long)m->kv_tiles);
}

err blockmask_import(block_mask *out, const blockmask_lists *lists, size_t budget, arena *a) {
    int64_t *next = NULL, *end = NULL;
    uint8_t *kind = NULL;
    TRY(start_import(lists, out));
    if (!budget) budget = DEFAULT_BUDGET;
    int64_t longest = out->q_tiles > out->kv_tiles ? out->q_tiles : out->kv_tiles;
    err e = mem_new((size_t)longest + 1, sizeof *kind, &kind);
    if (!e) e = mem_new((size_t)out->kv_tiles + 1, sizeof *next, &next);
    if (!e) e = mem_new((size_t)out->kv_tiles + 1, sizeof *end, &end);
    const reader rows = reader_of(lists, out, 0, kind), cols = reader_of(lists, out, 1, kind);
    if (!e) e = import_rows(out, &rows, budget, a);
    if (!e) e = transpose_all(out, next, end, budget, a);
    if (!e && lists->q.count) e = check_columns(out, &cols);
    if (!e) count_tiles(out);
    out->peak_bytes = out->bytes + (size_t)longest + 2 * (size_t)out->kv_tiles * sizeof *next;
    mem_free(kind), mem_free(next), mem_free(end);
    return e;
}

/* ---- export ---- */

static err export_side(blockmask_side *out, const int64_t *start, const block_run *run,
                       int64_t lines, int64_t across, arena *a) {
    int32_t *count[2], *index[2];
    for (int f = 0; f < 2; f++) {
        TRY(arena_alloc(a, (size_t)lines, sizeof *count[f], &count[f]));
        TRY(arena_alloc_raw(a, (size_t)lines * (size_t)across, sizeof *index[f], &index[f]));
        memset(index[f], 0xff, (size_t)lines * (size_t)across * sizeof *index[f]);
    }
    for (int64_t line = 0; line < lines; line++) {
        for (int64_t r = start[line]; r < start[line + 1]; r++) {
            int f = run[r].full != 0;
            for (int32_t i = 0; i < run[r].length; i++)
                index[f][line * across + count[f][line]++] = run[r].start + i;
        }
    }
    *out = (blockmask_side){count[0], index[0], count[1], index[1]};
    return ERR_OK;
}

err blockmask_export(blockmask_lists *out, const block_mask *m, arena *a) {
    int64_t entries = m->batch * m->heads;
    *out = (blockmask_lists){.batch = m->batch,
                             .heads = m->heads,
                             .q_len = m->q_len,
                             .kv_len = m->kv_len,
                             .tile_q = m->tile_q,
                             .tile_kv = m->tile_kv};
    TRY(export_side(&out->kv, m->row_start, m->row_run, entries * m->q_tiles, m->kv_tiles, a));
    return export_side(&out->q, m->col_start, m->col_run, entries * m->kv_tiles, m->q_tiles, a);
}

/* ---- given masks ---- */

static int64_t entry_of(const block_mask *m, int64_t b, int64_t h) {
    return (m->batch == 1 ? 0 : b) * m->heads + (m->heads == 1 ? 0 : h);
}

typedef struct one_side {
    const int64_t *start;
    const block_run *run;
    int64_t n; /* lines of an entry */
} one_side;

static int64_t runs_of_entry(const one_side *x, int64_t entry) {
    return x->start[(entry + 1) * x->n] - x->start[entry * x->n];
}

/* Runs of all entries of `to`; adds their bytes to to->bytes. */
static err spread_side(block_mask *to, const block_mask *from, const one_side *x, size_t budget,
                       const int64_t **start, const block_run **run, arena *a) {
    const int64_t entries = to->batch * to->heads;
    int64_t runs = 0, *s, at = 0;
    block_run *r;
    for (int64_t e = 0; e < entries; e++)
        runs += runs_of_entry(x, entry_of(from, e / to->heads, e % to->heads));
    to->bytes += ((size_t)(entries * x->n) + 1) * sizeof *s + (size_t)runs * sizeof *r;
    TRY(afford(to->bytes, budget));
    TRY(arena_alloc_raw(a, (size_t)(entries * x->n) + 1, sizeof *s, &s));
    TRY(arena_alloc_raw(a, (size_t)runs, sizeof *r, &r));
    for (int64_t e = 0; e < entries; e++) {
        const int64_t old = entry_of(from, e / to->heads, e % to->heads),
                      first = x->start[old * x->n], n = runs_of_entry(x, old);
        for (int64_t i = 0; i < x->n; i++) s[e * x->n + i] = at + x->start[old * x->n + i] - first;
        if (n) memcpy(r + at, x->run + first, (size_t)n * sizeof *r);
        at += n;
    }
    s[entries * x->n] = at;
    *start = s;
    *run = r;
    return ERR_OK;
}

err blockmask_spread(block_mask *out, const block_mask *m, int64_t batch, int64_t heads,
                     size_t budget, arena *a) {
    const one_side rows = {m->row_start, m->row_run, m->q_tiles},
                   columns = {m->col_start, m->col_run, m->kv_tiles};
    const double least =
        (double)batch * (double)heads * (double)(m->q_tiles + m->kv_tiles) * sizeof *m->row_start;
    block_mask x = *m;
    if (!budget) budget = DEFAULT_BUDGET;
    if (least > (double)budget) return afford(least < 0x1p62 ? (size_t)least : SIZE_MAX, budget);
    x.batch = batch, x.heads = heads;
    x.bytes = 0, x.full = x.partial = 0;
    TRY(spread_side(&x, m, &rows, budget, &x.row_start, &x.row_run, a));
    TRY(spread_side(&x, m, &columns, budget, &x.col_start, &x.col_run, a));
    x.peak_bytes = x.bytes;
    count_tiles(&x);
    *out = x;
    return ERR_OK;
}

/* Kind of tile k at or behind run *r of a line; moves *r on. */
static int kind_at(const block_mask *m, int64_t line, int64_t *r, int64_t k) {
    while (*r < m->row_start[line + 1] && m->row_run[*r].start + m->row_run[*r].length <= k) ++*r;
    if (*r == m->row_start[line + 1] || m->row_run[*r].start > k) return NONE;
    return m->row_run[*r].full ? FULL : PARTIAL;
}

static err compare_line(const block_mask *given, const block_mask *real, int64_t b, int64_t h,
                        int64_t q, int64_t *loose) {
    static const char *const names[] = {"empty", "partial", "full"};
    int64_t x = entry_of(given, b, h) * given->q_tiles + q,
            y = entry_of(real, b, h) * real->q_tiles + q;
    int64_t r = given->row_start[x], s = real->row_start[y];
    for (int64_t k = 0; k < given->kv_tiles; k++) {
        int have = kind_at(given, x, &r, k), want = kind_at(real, y, &s, k);
        if (have == want) continue;
        if (have != PARTIAL)
            return err_set(
                ERR_RANGE,
                "block mask: tile (query %lld, key %lld) of batch %lld, head %lld is given as %s; by the expression it is %s",
                (long long)q, (long long)k, (long long)b, (long long)h, names[have], names[want]);
        ++*loose;
    }
    return ERR_OK;
}

err blockmask_check(const block_mask *given, const block_mask_args *args, int64_t *loose) {
    block_mask_args own = *args;
    int64_t extra = 0;
    block_mask real;
    arena *a;
    own.tile_q = given->tile_q, own.tile_kv = given->tile_kv;
    TRY(blockmask_fits(given, args->batch, args->heads, args->q_len, args->kv_len));
    TRY(arena_create(&a, "mask check", 0));
    err e = blockmask_build(&real, &own, a, NULL);
    const int64_t batch = e                           ? 0
                          : given->batch > real.batch ? given->batch
                                                      : real.batch,
                  heads = e                           ? 0
                          : given->heads > real.heads ? given->heads
                                                      : real.heads;
    for (int64_t b = 0; !e && b < batch; b++)
        for (int64_t h = 0; !e && h < heads; h++)
            for (int64_t q = 0; !e && q < given->q_tiles; q++)
                e = compare_line(given, &real, b, h, q, &extra);
    arena_destroy(a);
    if (loose) *loose = extra;
    return e;
}

err blockmask_fits(const block_mask *m, int64_t batch, int64_t heads, int64_t q_len,
                   int64_t kv_len) {
    if (m->q_len != q_len || m->kv_len != kv_len)
        return err_set(
            ERR_SHAPE,
            "block mask: it was made for %lld queries and %lld keys, the tensors have %lld and %lld; build it for these "
            "lengths",
            (long long)m->q_len, (long long)m->kv_len, (long long)q_len, (long long)kv_len);
    if ((m->batch != 1 && m->batch != batch) || (m->heads != 1 && m->heads != heads))
        return err_set(
            ERR_SHAPE,
            "block mask: it was made for batch %lld and %lld heads, the tensors have batch %lld and %lld heads; build "
            "it for these, or with 1 for all",
            (long long)m->batch, (long long)m->heads, (long long)batch, (long long)heads);
    return ERR_OK;
}
