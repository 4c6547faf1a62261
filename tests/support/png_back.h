/* Reads a PNG back as RGB with libpng, for tests that look at pictures.
 *
 * A file that cannot be decoded fails the test. png_back_box finds where a colour lies and how many pixels have it.
 * Header only; includes cmocka's needs of the including test. */
#ifndef SUPPORT_PNG_BACK_H
#define SUPPORT_PNG_BACK_H
#include <png.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct png_back {
    int width, height;
    uint8_t *rgb;
} png_back;
typedef struct png_box {
    int x0, y0, x1, y1, n; /* inclusive; n pixels */
} png_box;

static inline png_back png_back_open(const char *path) {
    png_image image;
    png_back p = {0};
    memset(&image, 0, sizeof image);
    image.version = PNG_IMAGE_VERSION;
    if (!png_image_begin_read_from_file(&image, path)) fail_msg("%s: %s", path, image.message);
    image.format = PNG_FORMAT_RGB;
    p.rgb = malloc(PNG_IMAGE_SIZE(image));
    assert_non_null(p.rgb);
    if (!png_image_finish_read(&image, NULL, p.rgb, 0, NULL))
        fail_msg("%s: %s", path, image.message);
    p.width = (int)image.width;
    p.height = (int)image.height;
    return p;
}

static inline uint32_t png_back_at(const png_back *p, int x, int y) {
    const uint8_t *c = p->rgb + ((size_t)y * (size_t)p->width + (size_t)x) * 3;
    return (uint32_t)c[0] << 16 | (uint32_t)c[1] << 8 | c[2];
}

static inline png_box png_back_box(const png_back *p, uint32_t colour) {
    png_box b = {p->width, p->height, -1, -1, 0};
    for (int y = 0; y < p->height; y++)
        for (int x = 0; x < p->width; x++)
            if (png_back_at(p, x, y) == colour) {
                b.x0 = x < b.x0 ? x : b.x0;
                b.x1 = x > b.x1 ? x : b.x1;
                b.y0 = y < b.y0 ? y : b.y0;
                b.y1 = y;
                b.n++;
            }
    return b;
}

#endif
