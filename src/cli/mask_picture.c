/* From a block mask's runs to cells of a picture. A cell joins k x k tiles where there are more tiles than the picture
 * has room for: it is empty or full only when all of them are. Small masks are evaluated one cell at a
 * time, so that what the expression says is seen and not only its tiles; without an expression tiles are all there is. */
#include "cli/mask_picture.h"
#include "report/tile_map.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>

static int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }

static void mark(uint8_t *row, int64_t from, int64_t to, int64_t join, uint8_t bit) {
    if (from >= to) return;
    for (int64_t c = from / join; c <= (to - 1) / join; c++) row[c] |= bit;
}

/* Kinds of one batch and head as cells of join_q x join_kv tiles; cell: [rows, cols]. */
static void tiles(const block_mask *m, int64_t panel, int64_t join_q, int64_t join_kv, int64_t cols,
                  uint8_t *cell) {
    int64_t rows = ceil_div(m->q_tiles, join_q);
    memset(cell, 0, (size_t)(rows * cols));
    for (int64_t t = 0; t < m->q_tiles; t++) {
        const int64_t *start = m->row_start + panel * m->q_tiles + t;
        uint8_t *row = cell + t / join_q * cols;
        int64_t at = 0;
        for (int64_t i = start[0]; i < start[1]; i++) {
            const block_run *r = &m->row_run[i];
            mark(row, at, r->start, join_kv, 1 << TILE_MAP_EMPTY);
            at = (int64_t)r->start + r->length;
            mark(row, r->start, at, join_kv, r->full ? 1 << TILE_MAP_FULL : 1 << TILE_MAP_PARTIAL);
        }
        mark(row, at, m->kv_tiles, join_kv, 1 << TILE_MAP_EMPTY);
    }
    for (int64_t i = 0; i < rows * cols; i++)
        cell[i] = cell[i] == 1 << TILE_MAP_FULL    ? TILE_MAP_FULL
                  : cell[i] == 1 << TILE_MAP_EMPTY ? TILE_MAP_EMPTY
                                                   : TILE_MAP_PARTIAL;
}

/* The mask itself; cell: [q_len, kv_len]. With kinds [q_tiles, kv_tiles] a cell also tells its tile's kind. */
static err elements(const block_mask *m, const captures *c, int64_t panel, const uint8_t *kinds,
                    arena *mem, uint8_t *cell) {
    arena_mark start = arena_get_mark(mem);
    void *scratch; /* for one row: it grows with cells and with the expression */
    int flag = 0;
    TRY(arena_alloc(mem, expr_tile_scratch(c->program, 1, m->kv_len), 1, &scratch));
    for (int64_t q = 0; q < m->q_len; q++)
        expr_tile_mask(c->program, &c->env, panel / m->heads, panel % m->heads, q, 1, 0, m->kv_len,
                       cell + q * m->kv_len, m->kv_len, scratch, &flag);
    arena_reset(mem, start);
    for (int64_t q = 0; q < m->q_len; q++)
        for (int64_t k = 0; k < m->kv_len; k++) {
            uint8_t *at = cell + q * m->kv_len + k;
            int partial =
                kinds && kinds[q / m->tile_q * m->kv_tiles + k / m->tile_kv] == TILE_MAP_PARTIAL;
            *at = *at ? (partial ? TILE_MAP_PARTIAL : TILE_MAP_FULL)
                      : (partial ? TILE_MAP_HOLE : TILE_MAP_EMPTY);
        }
    return ERR_OK;
}

err mask_picture_caption(const captures *c, str *out) {
    const char *sep = "with ";
    int blank = 1;
    for (const char *s = expr_source(c->program); *s; s++) {
        if (*s == '#') { /* a comment says nothing once its line is joined with the next */
            while (s[1] && s[1] != '\n') s++;
            continue;
        }
        int space = isspace((unsigned char)*s);
        if (!(space && blank)) TRY(str_add(out, space ? " " : s, 1));
        blank = space;
    }
    TRY(str_printf(out, "\n"));
    for (int i = 0; i < c->n; i++) {
        if (c->decl[i].ndim) continue;
        TRY(str_printf(out, "%s%s = ", sep, c->decl[i].name));
        if (c->decl[i].type == EXPR_FLOAT)
            TRY(str_printf(out, "%g", (double)c->value[i].scalar.f));
        else
            TRY(str_printf(out, "%lld", (long long)c->value[i].scalar.i));
        sep = ", ";
    }
    return sep[0] == ',' ? str_printf(out, "\n") : ERR_OK;
}

static err caption(const block_mask *m, const captures *c, int64_t join_q, int64_t join_kv,
                   int by_cell, int panels, str *out) {
    char n[3][32];
    int64_t all = m->batch * m->heads;
    if (c->program)
        TRY(mask_picture_caption(c, out));
    else
        TRY(str_printf(out, "tiles from a file\n"));
    TRY(str_printf(out, "%s queries x %s keys, tiles of %d x %d\n", str_thousands(m->q_len, n[0]),
                   str_thousands(m->kv_len, n[1]), m->tile_q, m->tile_kv));
    TRY(str_printf(out, "%s empty, %s partial, %s full tiles%s\n", str_thousands(m->empty, n[0]),
                   str_thousands(m->partial, n[1]), str_thousands(m->full, n[2]),
                   all > 1 ? " in all" : ""));
    if (panels < all)
        TRY(str_printf(out, "the first %d of %s batches x heads are shown\n", panels,
                       str_thousands(all, n[0])));
    if (by_cell) return str_printf(out, "one square is one query and one key");
    if (join_q == 1 && join_kv == 1) return str_printf(out, "one square is one tile");
    return str_printf(out, "one square joins %lld x %lld tiles", (long long)join_q,
                      (long long)join_kv);
}

/* Keys of the kinds that occur. */
static int legend(const uint8_t *cell, size_t n, int by_cell, tile_map_key *key) {
    static const char *const name[2][TILE_MAP_MASK_COLOURS] = {
        {"empty", "partial", "full", ""},
        {"hidden, empty tile", "visible, partial tile", "visible, full tile",
         "hidden, partial tile"}};
    static const uint8_t order[] = {TILE_MAP_EMPTY, TILE_MAP_HOLE, TILE_MAP_PARTIAL, TILE_MAP_FULL};
    int keys = 0;
    for (size_t i = 0; i < sizeof order; i++)
        if (n && memchr(cell, order[i], n))
            key[keys++] = (tile_map_key){order[i], name[by_cell][order[i]]};
    return keys;
}

static err titles(const block_mask *m, int panels, arena *mem, const char ***out) {
    const char **title;
    TRY(arena_alloc(mem, (size_t)panels, sizeof *title, &title));
    for (int i = 0; i < panels; i++) {
        char s[64], *copy;
        long long b = i / m->heads, h = i % m->heads;
        if (m->batch > 1 && m->heads > 1)
            snprintf(s, sizeof s, "b = %lld, h = %lld", b, h);
        else
            snprintf(s, sizeof s, "%s = %lld", m->batch > 1 ? "b" : "h", m->batch > 1 ? b : h);
        TRY(arena_strdup(mem, s, &copy));
        title[i] = copy;
    }
    *out = title;
    return ERR_OK;
}

/* Fills map with panels of at most max_q x max_kv cells: the mask's own where it is small enough, else tiles. */
static err make_map(const block_mask *m, const captures *c, int64_t by_cell, int64_t join_q,
                    int64_t join_kv, int panels, int kinds_too, arena *mem, tile_map *map) {
    int64_t rows = by_cell ? m->q_len : ceil_div(m->q_tiles, join_q),
            cols = by_cell ? m->kv_len : ceil_div(m->kv_tiles, join_kv);
    uint8_t *cell, *kinds = NULL;
    const char **title = NULL;
    TRY(arena_alloc(mem, (size_t)(rows * cols) * (size_t)panels, 1, &cell));
    if (by_cell && kinds_too) TRY(arena_alloc(mem, (size_t)(m->q_tiles * m->kv_tiles), 1, &kinds));
    for (int i = 0; i < panels && rows && cols; i++) {
        uint8_t *at = cell + (size_t)(rows * cols) * (size_t)i;
        if (kinds) tiles(m, i, 1, 1, m->kv_tiles, kinds);
        if (by_cell)
            TRY(elements(m, c, i, kinds, mem, at));
        else
            tiles(m, i, join_q, join_kv, cols, at);
    }
    if (m->batch * m->heads > 1) TRY(titles(m, panels, mem, &title));
    *map = (tile_map){.q_len = m->q_len,
                      .kv_len = m->kv_len,
                      .q0 = c->env.q0,
                      .kv0 = c->env.kv0,
                      .q_step = by_cell ? 1 : join_q * m->tile_q,
                      .kv_step = by_cell ? 1 : join_kv * m->tile_kv,
                      .rows = (int)rows,
                      .cols = (int)cols,
                      .panels = panels,
                      .title = title,
                      .cell = cell};
    return ERR_OK;
}

err mask_picture_png(const block_mask *m, const captures *c, const char *path, arena *mem) {
    int by_cell = c->program && m->q_len <= MASK_PICTURE_CELLS && m->kv_len <= MASK_PICTURE_CELLS;
    int64_t all = m->batch * m->heads;
    int panels = all < TILE_MAP_MAX_PANELS ? (int)all : TILE_MAP_MAX_PANELS;
    int64_t most = panels > 1 ? TILE_MAP_MAX_CELLS / 2 : TILE_MAP_MAX_CELLS;
    int64_t longest = m->q_tiles > m->kv_tiles ? m->q_tiles : m->kv_tiles,
            join = longest > most ? ceil_div(longest, most) : 1;
    tile_map_key key[TILE_MAP_MASK_COLOURS];
    tile_map map;
    str text = {0};
    err e;
    TRY(make_map(m, c, by_cell, join, join, panels, 1, mem, &map));
    map.key = key;
    map.n_keys =
        legend(map.cell, (size_t)map.rows * (size_t)map.cols * (size_t)panels, by_cell, key);
    e = caption(m, c, join, join, by_cell, panels, &text);
    map.caption = text.s;
    if (!e) e = tile_map_png(&map, path);
    str_free(&text);
    return e;
}

static int64_t columns(const char *s) { /* of UTF-8 */
    int64_t n = 0;
    for (; *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

/* Two remarks below a map: on one line where that is wide enough. */
static err remark(str *out, int width, const char *first, const char *second) {
    const char *between = columns(first) + 2 + columns(second) <= width ? "; " : "\n";
    return str_printf(out, "%s%s%s\n", first, between, second);
}

err mask_picture_text(const block_mask *m, const captures *c, int width, arena *mem, str *out) {
    char s[32], n[2][32], line[2][96];
    int64_t room = width - 5 - (int64_t)strlen(str_thousands(c->env.q0 + m->q_len, s));
    if (room < 8) room = 8;
    int by_cell = c->program && m->q_len <= MASK_PICTURE_LINES && m->kv_len <= room;
    int64_t join_q = ceil_div(m->q_tiles, MASK_PICTURE_LINES),
            join_kv = ceil_div(m->kv_tiles, room);
    tile_map map;
    if (join_q < 1) join_q = 1;
    if (join_kv < 1) join_kv = 1;
    /* A line is about as high as two columns are wide: joined alike, so that shapes keep their form. */
    if (join_q > 1 && join_kv < join_q / 2) join_kv = join_q / 2;
    if (join_kv > 2 * join_q) join_q = join_kv / 2;
    TRY(make_map(m, c, by_cell, join_q, join_kv, 1, 0, mem, &map));
    TRY(tile_map_text(&map, 0, width, out));
    if (!map.rows || !map.cols) return ERR_OK;
    if (m->batch * m->heads > 1) {
        snprintf(line[0], sizeof line[0], "the first of %s batches x heads",
                 str_thousands(m->batch * m->heads, n[0]));
        snprintf(line[1], sizeof line[1], "--png draws up to %d", TILE_MAP_MAX_PANELS);
        TRY(remark(out, width, line[0], line[1]));
    }
    if (by_cell) return str_printf(out, "\u2588 visible, blank hidden\n");
    snprintf(line[0], sizeof line[0], "a square is %s x %s cells (q x kv)",
             str_thousands(map.q_step < m->q_len ? map.q_step : m->q_len, n[0]),
             str_thousands(map.kv_step < m->kv_len ? map.kv_step : m->kv_len, n[1]));
    return remark(out, width, "\u2588 full, \u2591 partial, blank empty", line[0]);
}
