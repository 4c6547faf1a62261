/* Layout of maps: caption and legend above, then panels with a kv axis on top and a q axis at the left.
 *
 * Every part is laid out by one function that draws when it has a picture and only measures without one, so
 * sizes and drawing cannot differ. Colours of masks rise in darkness and differ in hue (grey, orange,
 * blue), weights run from dark violet to yellow: both are told apart by colour-blind eyes and in grey. */
#include "report/tile_map.h"
#include "report/glyphs.h"
#include <stdio.h>
#include <string.h>

enum {
    SCALE = 2,
    LETTER = GLYPHS_ADVANCE * SCALE,
    HIGH = GLYPHS_HEIGHT * SCALE,
    LINE = GLYPHS_LINE * SCALE,
    MARGIN = 24,
    TICK = 6,
    GAP = 6,
    MIN_WIDTH = 620,
    MAX_LINES = 10,
    BAR = 400,
    GRID_FROM = 8 /* cells of this many pixels get lines between them */
};
static const picture_colour paper = 0xffffff, ink = 0x202020, grid = 0xd4d4d4;

picture_colour tile_map_colour(const tile_map *m, uint8_t cell) {
    static const picture_colour mask[TILE_MAP_MASK_COLOURS] = {0xececec, 0xf0a020, 0x1b4f8f,
                                                               0xfbe8c6};
    static const uint8_t rise[10][3] = {
        {68, 1, 84},    {72, 40, 120},  {62, 74, 137},  {49, 104, 142}, {38, 130, 142},
        {31, 158, 137}, {53, 183, 121}, {110, 206, 88}, {181, 222, 43}, {253, 231, 37}};
    if (!m->weights) return mask[cell < TILE_MAP_MASK_COLOURS ? cell : 0];
    if (cell == TILE_MAP_HIDDEN) return mask[TILE_MAP_EMPTY];
    int at = (cell - TILE_MAP_LOWEST) * 9, whole = at / 254, rest = at % 254;
    picture_colour c = 0;
    for (int i = 0; i < 3; i++) {
        int from = rise[whole][i], to = whole < 9 ? rise[whole + 1][i] : from;
        c = c << 8 | (picture_colour)(from + (to - from) * rest / 254);
    }
    return c;
}

/* The smallest of 1, 2, 5, 10, 20, 50 ... that spans at least `needed`. */
static int64_t nice_step(double needed) {
    int64_t step = 1;
    for (int i = 0; (double)step < needed && step < INT64_C(1) << 58; i++)
        step = i % 3 == 1 ? step / 2 * 5 : step * 2;
    return step;
}

/* Steps that fall on borders of cells, for maps whose cells are seen one by one. */
static int64_t cell_step(int64_t cell, double needed) {
    while ((double)cell < needed && cell < INT64_C(1) << 58) cell *= 2;
    return cell;
}

static int64_t tick_step(int64_t per_cell, int pixels, double needed) {
    double n = needed / pixels * (double)per_cell;
    return per_cell > 1 && pixels >= GRID_FROM ? cell_step(per_cell, n) : nice_step(n);
}

typedef struct layout {
    const tile_map *m;
    picture *p; /* NULL: only measure */
    int width;  /* of the picture */
    int cell_w, cell_h, plot_w, plot_h;
    int left, top; /* room of the axes beside and above a plot */
    int across;    /* panels in one row */
} layout;

/* Caption, wrapped at blanks; returns the y below it. */
static int draw_caption(const layout *l, int y) {
    int room = (l->width - 2 * MARGIN) / LETTER, lines = 0;
    char line[PICTURE_MAX_EDGE / LETTER + 1];
    for (const char *s = l->m->caption; *s; lines++) {
        int n = (int)strcspn(s, "\n"), cut = n;
        if (n > room) {
            for (cut = room; cut > room / 2 && s[cut] != ' '; cut--) {
            }
            if (cut <= room / 2) cut = room;
        }
        snprintf(line, sizeof line, "%.*s", cut, s);
        int last = lines == MAX_LINES - 1 && s[cut] && s[cut + 1];
        if (last) snprintf(line, sizeof line, "%.*s ...", cut < room - 4 ? cut : room - 4, s);
        if (l->p) picture_text(l->p, MARGIN, y, SCALE, ink, line);
        y += LINE;
        if (last) break;
        s += cut;
        while (*s == ' ') s++;
        if (*s == '\n') s++;
    }
    return y + GAP;
}

static void swatch(const layout *l, int x, int y, picture_colour c) {
    picture_fill(l->p, x, y, HIGH, HIGH, ink);
    picture_fill(l->p, x + 1, y + 1, HIGH - 2, HIGH - 2, c);
}

static int draw_legend(const layout *l, int y) {
    int x = MARGIN;
    for (int i = 0; i < l->m->n_keys; i++) {
        const tile_map_key *k = &l->m->key[i];
        int w = HIGH + GAP + picture_text_width(SCALE, k->text);
        if (x > MARGIN && x + w > l->width - MARGIN) {
            x = MARGIN;
            y += LINE + GAP;
        }
        if (l->p) {
            swatch(l, x, y, tile_map_colour(l->m, k->cell));
            picture_text(l->p, x + HIGH + GAP, y, SCALE, ink, k->text);
        }
        x += w + MARGIN;
    }
    return y + LINE + 2 * GAP;
}

static int draw_bar(const layout *l, int y) {
    const tile_map *m = l->m;
    if (!m->weights) return y;
    if (l->p) {
        picture_fill(l->p, MARGIN, y, BAR + 2, HIGH, ink);
        for (int i = 0; i < BAR; i++)
            picture_fill(l->p, MARGIN + 1 + i, y + 1, 1, HIGH - 2,
                         tile_map_colour(m, (uint8_t)(TILE_MAP_LOWEST + i * 254 / (BAR - 1))));
        picture_text(l->p, MARGIN, y + LINE, SCALE, ink, m->bar_low);
        picture_text(l->p, MARGIN + (BAR - picture_text_width(SCALE, m->bar_mid)) / 2, y + LINE,
                     SCALE, ink, m->bar_mid);
        picture_text(l->p, MARGIN + BAR - picture_text_width(SCALE, m->bar_high), y + LINE, SCALE,
                     ink, m->bar_high);
    }
    return y + 2 * LINE + GAP;
}

/* The first index of an axis that is labelled: the first cell, or the first multiple of a step that does not follow cells. */
static int64_t first_tick(int64_t from, int64_t per_cell, int64_t step) {
    return step % per_cell == 0 && per_cell > 1 ? 0 : (step - from % step) % step;
}

/* Pixels from the plot's edge to index i: the middle of a cell that is one index and wide enough to show it. */
static int place(int64_t i, int64_t step, int cell) {
    return (int)((double)i * cell / (double)step) + (step == 1 && cell >= GRID_FROM ? cell / 2 : 0);
}

static void draw_axes(const layout *l, int x, int y) {
    const tile_map *m = l->m;
    char s[32];
    int widest = picture_text_width(SCALE, str_thousands(m->kv0 + m->kv_len, s));
    int64_t step = tick_step(m->kv_step, l->cell_w, widest + 2 * LETTER);
    for (int64_t i = first_tick(m->kv0, m->kv_step, step); i < m->kv_len; i += step) {
        int at = x + place(i, m->kv_step, l->cell_w);
        picture_fill(l->p, at, y - TICK, 1, TICK, ink);
        str_thousands(m->kv0 + i, s);
        picture_text(l->p, at - picture_text_width(SCALE, s) / 2, y - TICK - 2 - HIGH, SCALE, ink,
                     s);
    }
    step = tick_step(m->q_step, l->cell_h, 1.7 * LINE);
    for (int64_t i = first_tick(m->q0, m->q_step, step); i < m->q_len; i += step) {
        int at = y + place(i, m->q_step, l->cell_h);
        picture_fill(l->p, x - TICK, at, TICK, 1, ink);
        str_thousands(m->q0 + i, s);
        picture_text(l->p, x - TICK - 4 - picture_text_width(SCALE, s), at - HIGH / 2, SCALE, ink,
                     s);
    }
    picture_text(l->p, x + (l->plot_w - picture_text_width(SCALE, "kv")) / 2, y - l->top + LINE,
                 SCALE, ink, "kv");
    picture_text(l->p, x - l->left, y + (l->plot_h - HIGH) / 2, SCALE, ink, "q");
}

static void draw_panel(const layout *l, int panel, int x, int y) {
    const tile_map *m = l->m;
    const uint8_t *cell = m->cell + (size_t)panel * (size_t)m->rows * (size_t)m->cols;
    int lines = l->cell_w >= GRID_FROM && l->cell_h >= GRID_FROM;
    if (m->title && m->title[panel]) picture_text(l->p, x, y - l->top, SCALE, ink, m->title[panel]);
    picture_fill(l->p, x - 1, y - 1, l->plot_w + 2, l->plot_h + 2, ink);
    picture_fill(l->p, x, y, l->plot_w, l->plot_h, grid);
    for (int i = 0; i < m->rows; i++)
        for (int j = 0; j < m->cols; j++)
            picture_fill(l->p, x + j * l->cell_w, y + i * l->cell_h, l->cell_w - lines,
                         l->cell_h - lines,
                         tile_map_colour(m, cell[(size_t)i * (size_t)m->cols + (size_t)j]));
    draw_axes(l, x, y);
}

static int draw_panels(const layout *l, int y) {
    const tile_map *m = l->m;
    int slot_w = l->left + l->plot_w + MARGIN, slot_h = l->top + l->plot_h + MARGIN;
    if (m->rows && m->cols && l->p)
        for (int i = 0; i < m->panels; i++)
            draw_panel(l, i, MARGIN + i % l->across * slot_w + l->left,
                       y + i / l->across * slot_h + l->top);
    return m->rows && m->cols ? y + (m->panels + l->across - 1) / l->across * slot_h : y;
}

static void lay_out(layout *l, const tile_map *m) {
    char s[32];
    int target = m->panels == 1 ? 640 : 320, most = m->rows > m->cols ? m->rows : m->cols;
    int cell = most ? target / most : 1, width;
    cell = cell < 1 ? 1 : cell > 40 ? 40 : cell;
    *l = (layout){.m = m, .cell_w = cell, .cell_h = cell};
    /* A map of very few rows or columns is a stripe that still has to be seen. */
    if (m->rows && cell * m->rows < LINE) l->cell_h = (LINE + m->rows - 1) / m->rows;
    if (m->cols && cell * m->cols < LINE) l->cell_w = (LINE + m->cols - 1) / m->cols;
    l->plot_w = l->cell_w * m->cols;
    l->plot_h = l->cell_h * m->rows;
    l->left =
        HIGH + LETTER + picture_text_width(SCALE, str_thousands(m->q0 + m->q_len, s)) + TICK + 4;
    l->top = 3 * LINE + TICK;
    l->across = m->panels <= 3 ? m->panels : (m->panels + 1) / 2;
    if (l->across < 1) l->across = 1;
    width = MARGIN + l->across * (l->left + l->plot_w + MARGIN);
    l->width = width < MIN_WIDTH ? MIN_WIDTH : width;
}

static int draw(const layout *l) {
    return draw_panels(l, draw_bar(l, draw_legend(l, draw_caption(l, MARGIN)))) + MARGIN / 2;
}

err tile_map_png(const tile_map *m, const char *path) {
    layout l;
    picture p = {0};
    err e = ERR_OK;
    lay_out(&l, m);
    TRY(picture_open(&p, l.width, draw(&l), paper));
    l.p = &p;
    (void)draw(&l);
    e = picture_write(&p, path);
    picture_close(&p);
    return e;
}

/* ---- in a terminal ------------------------------------------------------------------------------ */

static int64_t text_step(int64_t per_cell, double cells) {
    double n = cells * (double)per_cell;
    return per_cell > 1 ? cell_step(per_cell, n) : nice_step(n);
}

/* Labels of the kv axis above the columns that hold their index. */
static err text_axis(const tile_map *m, int left, int repeat, str *out) {
    char s[32];
    int used = 0, widest = (int)strlen(str_thousands(m->kv0 + m->kv_len, s));
    int64_t step = text_step(m->kv_step, (double)(widest + 3) / repeat);
    TRY(str_printf(out, "%*s kv\n%*s ", left, "", left, ""));
    for (int64_t i = first_tick(m->kv0, m->kv_step, step); i < m->kv_len; i += step) {
        int at = (int)(i / m->kv_step) * repeat;
        if (at + (int)strlen(str_thousands(m->kv0 + i, s)) > m->cols * repeat && i) break;
        TRY(str_printf(out, "%*s%s", at - used, "", s));
        used = at + (int)strlen(s);
    }
    return str_printf(out, "\n");
}

static err text_rule(int left, const char *from, int n, const char *to, str *out) {
    TRY(str_printf(out, "%*s%s", left, "", from));
    for (int i = 0; i < n; i++) TRY(str_printf(out, "\u2500"));
    return str_printf(out, "%s\n", to);
}

err tile_map_text(const tile_map *m, int panel, int width, str *out) {
    static const char *const shade[TILE_MAP_MASK_COLOURS] = {" ", "\u2591", "\u2588", " "};
    const uint8_t *cell = m->cell + (size_t)panel * (size_t)m->rows * (size_t)m->cols;
    char s[32];
    int left = (int)strlen(str_thousands(m->q0 + m->q_len, s)) + 3;
    int repeat = m->cols * 2 + left + 2 <= width ? 2 : 1; /* two columns are about one line high */
    int64_t step = text_step(m->q_step, 4), next = first_tick(m->q0, m->q_step, step);
    if (!m->rows || !m->cols) return ERR_OK;
    if (m->title && m->title[panel]) TRY(str_printf(out, "%s\n", m->title[panel]));
    TRY(text_axis(m, left, repeat, out));
    TRY(text_rule(left, "\u250c", m->cols * repeat, "\u2510", out));
    for (int i = 0; i < m->rows; i++) {
        int named = next < m->q_len && next < (i + 1) * m->q_step;
        TRY(str_printf(out, "%-2s%*s\u2502", i == 0 ? "q" : "", left - 2,
                       named ? str_thousands(m->q0 + next, s) : ""));
        if (named) next += step;
        for (int j = 0; j < m->cols; j++)
            for (int k = 0; k < repeat; k++) {
                uint8_t c = cell[(size_t)i * (size_t)m->cols + (size_t)j];
                TRY(str_printf(out, "%s", shade[c < TILE_MAP_MASK_COLOURS ? c : 0]));
            }
        TRY(str_printf(out, "\u2502\n"));
    }
    return text_rule(left, "\u2514", m->cols * repeat, "\u2518", out);
}
