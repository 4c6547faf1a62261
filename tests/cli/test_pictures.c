/* Pictures from the program: `mask --map`, `mask --png` and `attend --png`, decoded and compared with plain definitions.
 *
 * Masks are compared cell by cell with the same formula in C, weights with a softmax in double over fresh random inputs.
 * The plot is found in the picture by the lines between its cells. */
#include "io/safetensors.h"
#include "report/tile_map.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "support/files.h"
#include "support/numbers.h"
#include "support/png_back.h"
#include "support/run.h"

enum { GRID = 0xd4d4d4 };
static files_dir dir;
static run_result r;
static char png[600];

#define RUN(...) run_program(&r, NULL, (const char *const[]){__VA_ARGS__, NULL})

static int begin(void **state) {
    (void)state;
    dir = files_begin();
    snprintf(png, sizeof png, "%s", files_at(&dir, "a.png"));
    return 0;
}

static int end(void **state) {
    (void)state;
    files_end(&dir);
    return 0;
}

static void expect(int code, const char *text) {
    if (r.code != code || !strstr(r.text, text))
        fail_msg("exit %d, wanted %d and '%s':\n%s", r.code, code, text, r.text);
}

/* The colour in the middle of a cell of a plot of rows x cols. */
static uint32_t cell_at(const png_back *b, png_box plot, int rows, int cols, int i, int j) {
    int w = (plot.x1 - plot.x0 + 1) / cols, h = (plot.y1 - plot.y0 + 1) / rows;
    assert_true(w >= 8 && h >= 8);
    return png_back_at(b, plot.x0 + j * w + w / 2, plot.y0 + i * h + h / 2);
}

static void small_masks_are_drawn_by_cells(void **state) {
    (void)state;
    enum { L = 37, S = 29, T = 8 };
    tile_map m = {0};
    RUN("mask", "q >= kv && (q * kv + c) % 5 < 3 || kv > 19", "--q", "37", "--kv", "29", "--tile",
        "8", "--let", "c=3", "--png", png);
    expect(0, "tiles");
    png_back b = png_back_open(png);
    png_box plot = png_back_box(&b, GRID);
    int seen[TILE_MAP_MASK_COLOURS] = {0};
    for (int q = 0; q < L; q++)
        for (int k = 0; k < S; k++) {
            int n = 0, all = 0, visible = 0;
            for (int i = q / T * T; i < L && i < q / T * T + T; i++)
                for (int j = k / T * T; j < S && j < k / T * T + T; j++, all++) {
                    int v = (i >= j && (i * j + 3) % 5 < 3) || j > 19;
                    n += v;
                    if (i == q && j == k) visible = v;
                }
            int partial = n > 0 && n < all;
            int kind = visible ? (partial ? TILE_MAP_PARTIAL : TILE_MAP_FULL)
                               : (partial ? TILE_MAP_HOLE : TILE_MAP_EMPTY);
            seen[kind]++;
            assert_int_equal(cell_at(&b, plot, L, S, q, k), tile_map_colour(&m, (uint8_t)kind));
        }
    for (int i = 0; i < TILE_MAP_MASK_COLOURS; i++) assert_true(seen[i] > 0);
    free(b.rgb);
}

static void larger_masks_are_drawn_by_tiles(void **state) {
    (void)state;
    tile_map m = {0};
    RUN("mask", "q >= kv", "--q", "1300", "--kv", "1024", "--png", png, "--json");
    expect(0, "\"partial\": 8");
    png_back b = png_back_open(png);
    png_box plot = png_back_box(&b, GRID);
    for (int i = 0; i < 11; i++)
        for (int j = 0; j < 8; j++)
            assert_int_equal(cell_at(&b, plot, 11, 8, i, j),
                             tile_map_colour(&m, i < j    ? TILE_MAP_EMPTY
                                                 : i == j ? TILE_MAP_PARTIAL
                                                          : TILE_MAP_FULL));
    free(b.rgb);
    RUN("mask", "q >= kv", "--q", "100000", "--kv", "100000", "--tile", "16", "--png", png);
    expect(0, "tiles");
    b = png_back_open(png);
    assert_true(b.width < 1400 && b.height < 1400);
    /* 6,250 tiles, 7 joined to a pixel: a diagonal of 893, in a legend's swatch of 12 x 12 once more. */
    assert_int_equal(png_back_box(&b, tile_map_colour(&m, TILE_MAP_PARTIAL)).n, 893 + 12 * 12);
    free(b.rgb);
}

static void heads_become_panels(void **state) {
    (void)state;
    tile_map m = {0};
    RUN("mask", "q >= kv + 8 * h", "--q", "16", "--kv", "16", "--tile", "8", "--heads", "9",
        "--png", png, "--map");
    expect(0, "h = 0");
    expect(0, "the first of 9 batches x heads");
    png_back b = png_back_open(png);
    /* Of heads 0 to 5, head 0 alone has a full tile; cells are 20 pixels with a line. */
    assert_int_equal(png_back_box(&b, tile_map_colour(&m, TILE_MAP_FULL)).n,
                     64 * 19 * 19 + 12 * 12);
    free(b.rgb);
}

static void the_map_is_text(void **state) {
    (void)state;
    RUN("mask", "q >= kv", "--q", "3", "--kv", "4", "--map");
    expect(0, "q  0│██      │\n    │████    │\n");
    RUN("mask", "q >= kv", "--q", "256", "--kv", "256", "--map");
    expect(0, "q    0│░░  │\n      │██░░│\n");
    RUN("mask", "q >= kv", "--q", "256", "--kv", "256");
    assert_null(strstr(r.text, "│")); /* not on a terminal */
    RUN("mask", "q >= kv", "--q", "0", "--kv", "256", "--map", "--png", png);
    expect(0, "0 partial");
    RUN("mask", "q >= kv", "--q", "3", "--kv", "4", "--map", "--json");
    expect(2, "choose one");
    /* Axes of a slice tell what the expression sees: by tiles from its first position on, by cells at round numbers. */
    RUN("mask", "q >= kv", "--q", "256", "--kv", "256", "--map", "--q0", "5000", "--kv0", "4990");
    expect(0, "         4,990\n        ┌────┐\nq  5,000│░░░░│\n        │██░░│\n");
    RUN("mask", "q >= kv", "--q", "3", "--kv", "4", "--map", "--q0", "9", "--kv0", "8");
    expect(0, "        10\n     ┌────────┐\nq    │████    │\n   10│██████  │\n");
    RUN("mask", "q >= kv", "--q", "1", "--kv", "300", "--map");
    expect(0, "a square is 1 x 128 cells");
    /* No more than 40 lines of cells, and 80 columns of three bytes at most. */
    RUN("mask", "q >= kv", "--q", "1000000", "--kv", "5000", "--map");
    expect(0, "a square is ");
    int lines = 0;
    for (const char *s = r.text; (s = strchr(s, '\n')); s++) lines++;
    assert_in_range(lines, 20, 52);
}

/* The width of a map's widest line, from its frame on. */
static int widest(const char *text) {
    int most = 0, n = 0, in_map = 0;
    for (const char *s = strstr(text, "\n\n"); s && *s; s++) {
        in_map |= *s != '\n';
        n = *s == '\n' ? 0 : n + (((unsigned char)*s & 0xc0) != 0x80);
        if (n > most) most = n;
    }
    assert_true(in_map);
    return most;
}

/* Nothing of a map is wider than 80 columns where no terminal says its width, and remarks are not broken without need. */
static void maps_fit_their_width(void **state) {
    (void)state;
    RUN("mask", "q >= kv + h", "--q", "200000", "--kv", "300000", "--heads", "12", "--map");
    expect(0, "the first of 12 batches x heads; --png draws up to 6\n");
    expect(0, "full, \u2591 partial, blank empty; a square is ");
    assert_true(widest(r.text) <= 80);
    RUN("mask", "q >= kv", "--q", "2000000000", "--kv", "3000000000", "--map", "--tile", "4096");
    expect(0, "full, \u2591 partial, blank empty\na square is ");
    assert_true(widest(r.text) <= 80);
}

/* Tiles from a file are drawn without an expression: as tiles, also where the mask is small. */
static void tiles_from_a_file_are_drawn(void **state) {
    (void)state;
    tile_map m = {0};
    char file[600];
    snprintf(file, sizeof file, "%s", files_at(&dir, "tiles.safetensors"));
    RUN("mask", "q >= kv", "--q", "40", "--kv", "24", "--tile", "8", "--export", file);
    expect(0, "tiles");
    RUN("mask", "--import", file, "--map", "--png", png, "--explain");
    expect(0, "q   0│░░    │\n     │██░░  │\n     │████░░│\n     │██████│\n");
    expect(0,
           "read from lists: rows that see nothing, loads and what it changes with are not known");
    png_back b = png_back_open(png);
    png_box plot = png_back_box(&b, GRID);
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 3; j++)
            assert_int_equal(cell_at(&b, plot, 5, 3, i, j),
                             tile_map_colour(&m, i < j    ? TILE_MAP_EMPTY
                                                 : i == j ? TILE_MAP_PARTIAL
                                                          : TILE_MAP_FULL));
    free(b.rgb);
}

static void weights_are_those_of_the_softmax(void **state) {
    (void)state;
    enum { L = 9, S = 13, D = 8 };
    float q[2 * L * D], k[S * D], v[S * D] = {0};
    uint64_t seed = numbers_seed();
    for (int i = 0; i < 2 * L * D; i++) q[i] = (float)rng_normal(seed, RNG_TEST, 0, (uint64_t)i);
    for (int i = 0; i < S * D; i++) k[i] = (float)rng_normal(seed, RNG_TEST, 1, (uint64_t)i);
    tensor t[3] = {{"q", DT_F32, 4, {1, 2, L, D}, q},
                   {"k", DT_F32, 4, {1, 1, S, D}, k},
                   {"v", DT_F32, 4, {1, 1, S, D}, v}};
    char in[600];
    tile_map m = {.weights = 1};
    snprintf(in, sizeof in, "%s", files_at(&dir, "in.safetensors"));
    assert_int_equal(safetensors_write(in, t, 3, NULL, 0), ERR_OK);
    RUN("attend", "--in", in, "--mask", "kv <= q && q != 4", "--png", png, "--png-head", "1");
    expect(0, "rows that see nothing 2");
    png_back b = png_back_open(png);
    png_box plot = png_back_box(&b, GRID);
    for (int i = 0; i < L; i++) {
        double p[S], sum = 0;
        for (int j = 0; j < S; j++) {
            double dot = 0;
            for (int d = 0; d < D; d++) dot += (double)q[(L + i) * D + d] * (double)k[j * D + d];
            p[j] = j <= i && i != 4 ? exp(dot / sqrt(D)) : 0;
            sum += p[j];
        }
        for (int j = 0; j < S; j++) {
            uint32_t got = cell_at(&b, plot, L, S, i, j);
            if (p[j] == 0) {
                assert_int_equal(got, tile_map_colour(&m, TILE_MAP_HIDDEN));
                continue;
            }
            double part = fmax(0, 1 + log10(p[j] / sum) / 4);
            int level = TILE_MAP_LOWEST + (int)lround(254 * part), near = 0;
            for (int d = -1; d <= 1; d++)
                if (level + d >= TILE_MAP_LOWEST && level + d <= TILE_MAP_HIGHEST)
                    near |= got == tile_map_colour(&m, (uint8_t)(level + d));
            if (!near) fail_msg("cell %d, %d is %06x, weight %g", i, j, got, p[j] / sum);
        }
    }
    free(b.rgb);
}

static void long_rows_are_averaged(void **state) {
    (void)state;
    tile_map m = {.weights = 1};
    RUN("attend", "--random", "1,1,1,1500,1100,8", "--scale", "0", "--type", "bf16", "--png", png);
    expect(0, "forward");
    png_back b = png_back_open(png);
    int level = TILE_MAP_LOWEST + (int)lround(254 * (1 + log10(1.0 / 1100) / 4));
    png_box box = png_back_box(&b, tile_map_colour(&m, (uint8_t)level));
    assert_in_range(box.n, 750 * 550, 750 * 550 + 100); /* the bar has the colour too */
    free(b.rgb);
}

static void bad_requests_are_sentences(void **state) {
    (void)state;
    char absent[700];
    snprintf(absent, sizeof absent, "%s", files_at(&dir, "absent/x.png"));
    RUN("mask", "q >= kv", "--q", "8", "--kv", "8", "--png", absent);
    expect(1, "absent/x.png");
    RUN("attend", "--random", "1,2,1,8,8,8", "--png", absent);
    expect(1, "absent/x.png");
    RUN("attend", "--random", "1,2,1,8,8,8", "--png", png, "--png-head", "2");
    expect(2, "there are 2 query heads");
    RUN("attend", "--random", "1,2,1,8,8,8", "--png-head", "1");
    expect(2, "without --png");
    RUN("attend", "--random", "0,2,1,8,8,8", "--png", png);
    expect(2, "batch of at least 1");
    RUN("attend", "--random", "1,1,1,100000,100000,8", "--png", png);
    expect(1, "too many for a picture");
}

static void a_failed_write_leaves_the_older_picture(void **state) {
    (void)state;
    char before[33], after[33];
    RUN("mask", "q >= kv", "--q", "8", "--kv", "8", "--png", png);
    expect(0, "tiles");
    assert_int_equal(file_hash(png, before), ERR_OK);
    run_program(
        &r, (const char *const[]){"PACELINE_FAIL_WRITE=1", NULL},
        (const char *const[]){"mask", "q < kv", "--q", "9", "--kv", "9", "--png", png, NULL});
    expect(1, png);
    assert_int_equal(file_hash(png, after), ERR_OK);
    assert_string_equal(before, after);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_masks_are_drawn_by_cells),
        cmocka_unit_test(larger_masks_are_drawn_by_tiles),
        cmocka_unit_test(heads_become_panels),
        cmocka_unit_test(the_map_is_text),
        cmocka_unit_test(maps_fit_their_width),
        cmocka_unit_test(tiles_from_a_file_are_drawn),
        cmocka_unit_test(weights_are_those_of_the_softmax),
        cmocka_unit_test(long_rows_are_averaged),
        cmocka_unit_test(bad_requests_are_sentences),
        cmocka_unit_test(a_failed_write_leaves_the_older_picture),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
