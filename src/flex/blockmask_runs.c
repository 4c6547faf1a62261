/* Runs out of boxes, in both directions, and the proof that no row is empty.
 *
 * In Z order the boxes over any row come with rising start, and over any column too, so a line's runs are made by
 * appending and joining with the last one: one pass to count, one to write, no sorting and no transposing. */
#include "core/str.h"
#include "flex/blockmask_private.h"
#include <string.h>

/* A box seen from one side: the lines it covers and its extent along them. */
typedef struct side {
    int32_t line, lines, start, length;
} side;

static side seen_from(const blockmask__box *x, int columns) {
    return columns ? (side){x->k, x->nk, x->q, x->nq} : (side){x->q, x->nq, x->k, x->nk};
}

/* Counts the runs of each line into start[1 + line]. end[line]: 2 * (one past the last run) + its kind. */
static void count_runs(const blockmask__builder *w, int columns, int64_t lines, int64_t *start,
                       int64_t *end) {
    int64_t entries = w->args.batch * w->args.heads;
    for (int64_t e = 0; e < entries; e++) {
        for (int64_t i = 0; i < lines; i++) end[i] = -1;
        for (int64_t i = w->first[e]; i < w->first[e + 1]; i++) {
            side s = seen_from(&w->box[i], columns);
            int64_t from = 2 * (int64_t)s.start + w->box[i].full, to = from + 2 * (int64_t)s.length;
            for (int32_t l = s.line; l < s.line + s.lines; l++) {
                start[1 + e * lines + l] += end[l] != from;
                end[l] = to;
            }
        }
    }
    for (int64_t i = 0; i < entries * lines; i++) start[i + 1] += start[i];
}

/* Writes the runs; next[line] is where the line's next run goes. */
static void write_runs(const blockmask__builder *w, int columns, int64_t lines,
                       const int64_t *start, int64_t *next, block_run *run) {
    for (int64_t e = 0; e < w->args.batch * w->args.heads; e++) {
        for (int64_t i = 0; i < lines; i++) next[i] = start[e * lines + i];
        for (int64_t i = w->first[e]; i < w->first[e + 1]; i++) {
            side s = seen_from(&w->box[i], columns);
            int32_t full = w->box[i].full;
            for (int32_t l = s.line; l < s.line + s.lines; l++) {
                block_run *last = run + next[l] - 1;
                int joins = next[l] > start[e * lines + l] && last->full == full &&
                            last->start + last->length == s.start;
                if (joins)
                    last->length += s.length;
                else
                    run[next[l]++] = (block_run){s.start, s.length, full};
            }
        }
    }
}

static err one_side(blockmask__builder *w, arena *a, int columns, const int64_t **out_start,
                    const block_run **out_run) {
    int64_t lines = columns ? w->out->kv_tiles : w->out->q_tiles,
            entries = w->args.batch * w->args.heads;
    size_t n = (size_t)(entries * lines) + 1, boxes = w->cap * sizeof *w->box;
    int64_t *start, *line;
    block_run *run;
    TRY(blockmask__afford(w, boxes + w->out->bytes + (n + (size_t)lines) * sizeof *start));
    TRY(arena_alloc(a, n, sizeof *start, &start));
    TRY(mem_new((size_t)lines + 1, sizeof *line, &line));
    count_runs(w, columns, lines, start, line);
    size_t runs = (size_t)start[n - 1];
    err e = blockmask__afford(w, boxes + w->out->bytes + (n + (size_t)lines) * sizeof *start +
                                     runs * sizeof *run);
    if (!e) e = arena_alloc_raw(a, runs, sizeof *run, &run);
    if (!e) {
        write_runs(w, columns, lines, start, line, run);
        *out_start = start;
        *out_run = run;
        w->out->bytes += n * sizeof *start + runs * sizeof *run;
    }
    mem_free(line);
    return e;
}

err blockmask__runs(blockmask__builder *w, arena *a) {
    TRY(one_side(w, a, 0, &w->out->row_start, &w->out->row_run));
    return one_side(w, a, 1, &w->out->col_start, &w->out->col_run);
}

/* ---- no empty row ---- */

/* First (or last) key that row q sees among the tiles of the line's runs, -1 when none. */
static int64_t seen_key(const blockmask__builder *w, int64_t line, int64_t q, int last) {
    const block_mask *m = w->out;
    int64_t r0 = m->row_start[line], r1 = m->row_start[line + 1];
    for (int64_t r = last ? r1 - 1 : r0; last ? r >= r0 : r < r1; r += last ? -1 : 1) {
        const block_run *run = &m->row_run[r];
        for (int32_t i = 0; i < run->length; i++) {
            int64_t k0 =
                (int64_t)(last ? run->start + run->length - 1 - i : run->start + i) * m->tile_kv;
            int64_t nk = m->kv_len - k0 < m->tile_kv ? m->kv_len - k0 : m->tile_kv;
            int flag = 0;
            expr_tile_mask(w->args.mask, w->args.env, w->b, w->h, q, 1, k0, nk, w->cells, nk,
                           w->scratch, &flag);
            for (int64_t j = 0; j < nk; j++) {
                int64_t at = last ? nk - 1 - j : j;
                if (w->cells[at]) return k0 + at;
            }
        }
    }
    return -1;
}

static int all_see(const blockmask__builder *w, int64_t q0, int64_t q1, int64_t key) {
    const interval_box box = {w->b, w->b, w->h, w->h, q0, q1, key, key};
    return interval_classify(w->args.mask, w->args.env, w->tables, &box, NULL) == INTERVAL_ALL;
}

/* Rows q0..q1: one key seen by all of them proves it; else each half apart. Keys near the diagonal are tried first, and
 * *lead, how far the last such key lay from its first row; rows are looked at when guessing failed for the whole
 * tile and for one row. */
static int rows_see(const blockmask__builder *w, int64_t line, int64_t q0, int64_t q1, int whole,
                    int64_t *lead) {
    const int64_t guess[2] = {q0 + *lead, q1};
    for (int i = 0; i < 2; i++) {
        if (guess[i] >= 0 && guess[i] < w->out->kv_len && all_see(w, q0, q1, guess[i])) return 1;
    }
    for (int last = 0; (whole || q0 == q1) && last < 2; last++) {
        int64_t key = seen_key(w, line, last ? q0 : q1, last);
        if (key < 0) return 0;
        if (q0 < q1 && !all_see(w, q0, q1, key)) continue;
        *lead = key - q0;
        return 1;
    }
    int64_t mid = (q0 + q1) / 2;
    return rows_see(w, line, q0, mid, 0, lead) && rows_see(w, line, mid + 1, q1, 0, lead);
}

int blockmask__no_empty_row(blockmask__builder *w) {
    const block_mask *m = w->out;
    int64_t lead = 0;
    for (int64_t line = 0; line < w->args.batch * w->args.heads * m->q_tiles; line++) {
        int full = 0;
        for (int64_t r = m->row_start[line]; r < m->row_start[line + 1] && !full; r++)
            full = m->row_run[r].full;
        if (full) continue;
        if (m->row_start[line] == m->row_start[line + 1]) return 0;
        int64_t entry = line / m->q_tiles, q0 = line % m->q_tiles * m->tile_q,
                q1 = q0 + m->tile_q - 1;
        w->b = entry / w->args.heads, w->h = entry % w->args.heads;
        if (!rows_see(w, line, q0, q1 < m->q_len ? q1 : m->q_len - 1, 1, &lead)) return 0;
    }
    return 1;
}
