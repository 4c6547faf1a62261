/* Pictures and maps: what is drawn comes back from the file, by size and by colour at known cells.
 *
 * Files are decoded by libpng. Maps are found in the decoded picture by the lines between their cells, so that the
 * test knows no margins. */
#include "report/glyphs.h"
#include "report/tile_map.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <unistd.h>
#include "support/files.h"
#include "support/png_back.h"

enum { GRID = 0xd4d4d4 };
static files_dir dir;

static int begin(void **state) {
    (void)state;
    dir = files_begin();
    return 0;
}

static int end(void **state) {
    (void)state;
    files_end(&dir);
    return 0;
}

static void every_pixel_comes_back(void **state) {
    (void)state;
    picture p;
    assert_int_equal(picture_open(&p, 37, 11, 0x123456), ERR_OK);
    uint32_t x = (uint32_t)getpid() * 2654435761u | 1;
    for (int i = 0; i < 37 * 11 * 3; i++)
        p.rgb[i] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24);
    const char *path = files_at(&dir, "random.png");
    assert_int_equal(picture_write(&p, path), ERR_OK);
    png_back b = png_back_open(path);
    assert_int_equal(b.width, 37);
    assert_int_equal(b.height, 11);
    assert_memory_equal(b.rgb, p.rgb, 37 * 11 * 3);
    free(b.rgb);
    picture_close(&p);
}

static void what_leaves_the_picture_is_cut_off(void **state) {
    (void)state;
    picture p;
    assert_int_equal(picture_open(&p, 20, 10, 0xffffff), ERR_OK);
    picture_fill(&p, -5, -5, 8, 7, 0xff0000);
    picture_fill(&p, 18, 8, 100, 100, 0x00ff00);
    picture_text(&p, -3, 6, 2, 0, "cut");
    png_back b = {p.width, p.height, p.rgb};
    png_box red = png_back_box(&b, 0xff0000);
    assert_int_equal(red.n, 6);
    assert_int_equal(red.x1, 2);
    assert_int_equal(red.y1, 1);
    picture_close(&p);
    assert_int_equal(picture_open(&p, 0, 5, 0), ERR_RANGE);
    assert_int_equal(picture_open(&p, 5, PICTURE_MAX_EDGE + 1, 0), ERR_RANGE);
    picture_close(&p);
}

/* Every printable character has dots, no two have the same, and text is drawn dot by dot. */
static void glyphs_differ(void **state) {
    (void)state;
    for (int a = 33; a < 127; a++)
        for (int b = 32; b < a; b++)
            if (!memcmp(glyphs_of((unsigned char)a), glyphs_of((unsigned char)b), GLYPHS_WIDTH))
                fail_msg("'%c' looks like '%c'", a, b);
    assert_memory_equal(glyphs_of(200), glyphs_of(10), GLYPHS_WIDTH);
    picture p;
    assert_int_equal(picture_open(&p, 12, 20, 0xffffff), ERR_OK);
    picture_text(&p, 0, 0, 2, 0, "T");
    png_back b = {p.width, p.height, p.rgb};
    png_box box = png_back_box(&b, 0);
    assert_int_equal(box.n, 4 * (5 + 6));
    assert_int_equal(box.x1, 9);
    assert_int_equal(box.y1, 13);
    assert_int_equal(picture_text_width(2, "T"), 10);
    picture_close(&p);
}

static const uint8_t cells[2 * 3] = {TILE_MAP_FULL, TILE_MAP_PARTIAL, TILE_MAP_EMPTY,
                                     TILE_MAP_HOLE, TILE_MAP_FULL,    TILE_MAP_FULL};

static tile_map small_map(void) {
    return (tile_map){.caption = "kv <= q",
                      .q_len = 200,
                      .kv_len = 300,
                      .q_step = 128,
                      .kv_step = 128,
                      .rows = 2,
                      .cols = 3,
                      .panels = 1,
                      .cell = cells};
}

static void cells_have_their_colours(void **state) {
    (void)state;
    const char *path = files_at(&dir, "map.png");
    tile_map m = small_map();
    assert_int_equal(tile_map_png(&m, path), ERR_OK);
    png_back b = png_back_open(path);
    png_box plot = png_back_box(&b, GRID);
    int w = (plot.x1 - plot.x0 + 1) / 3, h = (plot.y1 - plot.y0 + 1) / 2;
    assert_true(w >= 8 && h >= 8);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++)
            assert_int_equal(png_back_at(&b, plot.x0 + j * w + w / 2, plot.y0 + i * h + h / 2),
                             tile_map_colour(&m, cells[i * 3 + j]));
    assert_int_equal(png_back_box(&b, tile_map_colour(&m, TILE_MAP_FULL)).n, 3 * (w - 1) * (h - 1));
    for (uint8_t x = 0; x < TILE_MAP_MASK_COLOURS; x++)
        for (uint8_t y = 0; y < x; y++)
            assert_int_not_equal(tile_map_colour(&m, x), tile_map_colour(&m, y));
    free(b.rgb);
}

static void panels_stand_apart(void **state) {
    (void)state;
    static const char *const title[5] = {"h = 0", "h = 1", "h = 2", "h = 3", "h = 4"};
    uint8_t five[5 * 6];
    const char *path = files_at(&dir, "panels.png");
    tile_map m = small_map();
    for (int i = 0; i < 5; i++) memcpy(five + i * 6, cells, 6);
    m.cell = five;
    m.panels = 5;
    m.title = title;
    assert_int_equal(tile_map_png(&m, path), ERR_OK);
    png_back b = png_back_open(path);
    assert_int_equal(png_back_box(&b, tile_map_colour(&m, TILE_MAP_HOLE)).n % 5, 0);
    assert_int_equal(png_back_box(&b, tile_map_colour(&m, TILE_MAP_FULL)).n,
                     3 * png_back_box(&b, tile_map_colour(&m, TILE_MAP_HOLE)).n);
    free(b.rgb);
}

/* A caption of any length is wrapped and cut; letters stay inside the picture's edge. */
static void long_captions_are_wrapped(void **state) {
    (void)state;
    char *long_text = malloc(20001);
    const char *path = files_at(&dir, "long.png");
    tile_map m = small_map();
    assert_non_null(long_text);
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i < 20000; i++) long_text[i] = kind && i % 9 == 0 ? ' ' : 'x';
        long_text[20000] = 0;
        m.caption = long_text;
        assert_int_equal(tile_map_png(&m, path), ERR_OK);
        png_back b = png_back_open(path);
        assert_true(b.height < 1200);
        assert_true(png_back_box(&b, 0x202020).x1 < b.width - 8);
        free(b.rgb);
    }
    m.rows = m.cols = 0;
    m.q_len = m.kv_len = 0;
    assert_int_equal(tile_map_png(&m, path), ERR_OK);
    free(long_text);
}

static void weights_rise_in_brightness(void **state) {
    (void)state;
    tile_map m = {.weights = 1};
    int before = -1;
    for (int i = TILE_MAP_LOWEST; i <= TILE_MAP_HIGHEST; i++) {
        picture_colour c = tile_map_colour(&m, (uint8_t)i);
        int light = (int)(2126 * (c >> 16) + 7152 * (c >> 8 & 255) + 722 * (c & 255));
        assert_true(light >= before);
        assert_int_not_equal(c, tile_map_colour(&m, TILE_MAP_HIDDEN));
        before = light;
    }
}

static void text_shows_the_cells(void **state) {
    (void)state;
    tile_map m = small_map();
    str s = {0};
    assert_int_equal(tile_map_text(&m, 0, 80, &s), ERR_OK);
    assert_non_null(strstr(s.s, "q    0│██░░  │\n"));
    assert_non_null(strstr(s.s, "      │  ████│\n"));
    str_clear(&s);
    assert_int_equal(tile_map_text(&m, 0, 11, &s), ERR_OK);
    assert_non_null(strstr(s.s, "│█░ │\n"));
    str_free(&s);
}

static void an_older_file_stays_when_writing_fails(void **state) {
    (void)state;
    tile_map m = small_map();
    assert_int_equal(tile_map_png(&m, files_at(&dir, "absent/map.png")), ERR_IO);
    assert_non_null(strstr(err_text(), "absent"));
    files_must(!file_make_dirs(files_at(&dir, "folder.png")), "folder");
    assert_int_not_equal(tile_map_png(&m, files_at(&dir, "folder.png")), ERR_OK);
    assert_true(file_is_dir(files_at(&dir, "folder.png")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pixel_comes_back),
        cmocka_unit_test(what_leaves_the_picture_is_cut_off),
        cmocka_unit_test(glyphs_differ),
        cmocka_unit_test(cells_have_their_colours),
        cmocka_unit_test(panels_stand_apart),
        cmocka_unit_test(long_captions_are_wrapped),
        cmocka_unit_test(weights_rise_in_brightness),
        cmocka_unit_test(text_shows_the_cells),
        cmocka_unit_test(an_older_file_stays_when_writing_fails),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
