/* Maps of queries against keys: a grid of cells with axes, caption and legend, as PNG or as text.
 *
 * The caller says what each cell is by a number, and what the numbers look like; this file knows layout only.
 * Cells cover a fixed number of queries and keys, so axes are exact; queries go down, keys to the right.
 * Several panels of one shape (heads, batches) stand side by side under one caption. */
#ifndef REPORT_TILE_MAP_H
#define REPORT_TILE_MAP_H
#include "core/str.h"
#include "report/picture.h"

/* Cells of masks; the palettes below know them by these numbers. */
enum { TILE_MAP_EMPTY, TILE_MAP_PARTIAL, TILE_MAP_FULL, TILE_MAP_HOLE, TILE_MAP_MASK_COLOURS };
/* Cells of weights: 0 is hidden, 1..255 rise with the weight. */
enum { TILE_MAP_HIDDEN = 0, TILE_MAP_LOWEST = 1, TILE_MAP_HIGHEST = 255 };

/* Most cells a side that a PNG shows; more are the caller's to join. */
enum { TILE_MAP_MAX_CELLS = 1024, TILE_MAP_MAX_PANELS = 6 };

typedef struct tile_map_key {
    uint8_t cell; /* its colour */
    const char *text;
} tile_map_key;

typedef struct tile_map {
    const char *caption; /* lines; long ones are wrapped */
    int64_t q_len, kv_len;
    int64_t q0, kv0;          /* what the axes begin with */
    int64_t q_step, kv_step;  /* queries and keys per cell */
    int rows, cols, panels;   /* rows = ceil(q_len / q_step), cols alike */
    const uint8_t *cell;      /* [panels, rows, cols] */
    const char *const *title; /* per panel, or NULL */
    const tile_map_key *key;  /* legend */
    int n_keys;
    int weights;                              /* 1: colours of weights, and a bar of them */
    const char *bar_low, *bar_mid, *bar_high; /* what the bar's ends and middle stand for */
} tile_map;

picture_colour tile_map_colour(const tile_map *m, uint8_t cell);
MUST_CHECK err tile_map_png(const tile_map *m, const char *path);
/* UTF-8 lines of at most `width` columns, one character (or more, where cells are few) per cell: a blank, a light and a
 * full block. rows and cols must fit. */
MUST_CHECK err tile_map_text(const tile_map *m, int panel, int width, str *out);

#endif
