/* The proof that no row is empty: by full tiles, by a key that every row of a strip sees, or row by row.
 *
 * Most masks let a position see itself, or its own place among the last keys, or key 0: each is one question about a long
 * strip of rows, asked of the mask along that diagonal or column. A strip that fails is halved down to a row of tiles,
 * where keys are looked up. Nothing is assumed of the mask. */
#include "flex/blockmask_private.h"

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

/* Places that rows may all see: key 0, and key row + shift for the two shifts that people's masks have. The tables of
 * a diagonal are made when they are first needed. */
typedef struct witnesses {
    arena *temp;
    const interval_tables *t[2];
    int64_t shift[2], lead;
    int64_t *line; /* of far arrays: lines that no witness proves, to be asked for */
    size_t n, cap;
} witnesses;

static err diagonal_sees(const blockmask__builder *w, witnesses *x, int i, int64_t q0, int64_t q1,
                         int *yes) {
    if (q0 + x->shift[i] < 0 || q1 + x->shift[i] >= w->out->kv_len) return ERR_OK;
    if (!x->t[i]) {
        interval_tables *t;
        TRY(interval_tables_tie(&t, w->tables, x->shift[i], x->temp));
        x->t[i] = t;
    }
    const interval_box box = {w->b, w->b, w->h, w->h, q0, q1, 0, 0};
    *yes = interval_classify(w->args.mask, w->args.env, x->t[i], &box, NULL) == INTERVAL_ALL;
    return ERR_OK;
}

static err strip_sees(const blockmask__builder *w, witnesses *x, int64_t q0, int64_t q1, int *yes) {
    *yes = all_see(w, q0, q1, 0);
    if (!*yes) TRY(diagonal_sees(w, x, 0, q0, q1, yes));
    if (!*yes && x->shift[1] != x->shift[0]) TRY(diagonal_sees(w, x, 1, q0, q1, yes));
    return ERR_OK;
}

static int has_full(const block_mask *m, int64_t line) {
    for (int64_t r = m->row_start[line]; r < m->row_start[line + 1]; r++)
        if (m->row_run[r].full) return 1;
    return 0;
}

/* Rows of tiles t0.. of the present entry, at most n: how many are proven at once by a witness. */
static err strip(const blockmask__builder *w, witnesses *x, int64_t t0, int64_t n, int64_t *out) {
    const block_mask *m = w->out;
    int yes = 0;
    for (; n > 0 && !yes; n /= 4) {
        int64_t q1 = (t0 + n) * m->tile_q - 1;
        if (q1 >= m->q_len) q1 = m->q_len - 1;
        TRY(strip_sees(w, x, t0 * m->tile_q, q1, &yes));
        *out = n;
    }
    if (!yes) *out = 0;
    return ERR_OK;
}

/* Line t of the present entry, which no witness proves. */
static err line_sees(const blockmask__builder *w, witnesses *x, int64_t line, int64_t t, int *yes) {
    const block_mask *m = w->out;
    const int64_t q0 = t * m->tile_q, q1 = q0 + m->tile_q - 1;
    if (!w->far) {
        *yes = rows_see(w, line, q0, q1 < m->q_len ? q1 : m->q_len - 1, 1, &x->lead);
        return ERR_OK;
    }
    TRY(mem_grow(&x->line, &x->cap, x->n + 1, sizeof *x->line));
    x->line[x->n++] = line;
    return ERR_OK;
}

static err entry_sees(const blockmask__builder *w, witnesses *x, int *all) {
    const block_mask *m = w->out;
    int64_t first = (w->b * w->args.heads + w->h) * m->q_tiles, reach = m->q_tiles, n;
    for (int64_t t = 0; t < m->q_tiles && *all; t += n) {
        int64_t line = first + t;
        n = 1;
        if (m->row_start[line] == m->row_start[line + 1]) *all = 0;
        if (!*all || has_full(m, line)) continue;
        TRY(strip(w, x, t, reach < m->q_tiles - t ? reach : m->q_tiles - t, &n));
        reach = n ? n * 4 : 4; /* a failure teaches to ask for less */
        if (n) continue;
        n = 1;
        TRY(line_sees(w, x, line, t, all));
    }
    return ERR_OK;
}

err blockmask__no_empty_row(blockmask__builder *w, arena *temp) {
    block_mask *m = w->out;
    witnesses x = {.temp = temp, .shift = {0, m->kv_len - m->q_len}};
    err e = ERR_OK;
    int all = 1;
    for (int64_t i = 0; !e && all && i < w->args.batch * w->args.heads; i++) {
        w->b = i / w->args.heads, w->h = i % w->args.heads;
        e = entry_sees(w, &x, &all);
    }
    if (!e && all && x.n) e = blockmask__ask_rows(w, x.line, x.n, &all);
    mem_free(x.line);
    m->no_empty_row = all;
    return e;
}
