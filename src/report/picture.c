/* Drawing into a picture and writing it as PNG: libpng compresses into memory, the atomic writer publishes.
 * Compressing first keeps libpng's own file handling and its jumps out of the way: a failure of either
 * is one sentence and leaves an older file untouched. */
#include "report/picture.h"
#include "core/arena.h"
#include "core/file.h"
#include "report/glyphs.h"
#include <png.h>
#include <string.h>

err picture_open(picture *p, int width, int height, picture_colour fill) {
    *p = (picture){0};
    if (width < 1 || height < 1 || width > PICTURE_MAX_EDGE || height > PICTURE_MAX_EDGE)
        return err_set(ERR_RANGE, "a picture of %d x %d pixels cannot be made; 1 to %d a side",
                       width, height, PICTURE_MAX_EDGE);
    TRY(mem_new((size_t)width * (size_t)height, 3, &p->rgb));
    p->width = width;
    p->height = height;
    picture_fill(p, 0, 0, width, height, fill);
    return ERR_OK;
}

void picture_close(picture *p) {
    mem_free(p->rgb);
    *p = (picture){0};
}

void picture_fill(picture *p, int x, int y, int width, int height, picture_colour c) {
    int x1 = x + width < p->width ? x + width : p->width,
        y1 = y + height < p->height ? y + height : p->height;
    for (int i = y > 0 ? y : 0; i < y1; i++)
        for (int j = x > 0 ? x : 0; j < x1; j++) {
            uint8_t *at = p->rgb + ((size_t)i * (size_t)p->width + (size_t)j) * 3;
            at[0] = (uint8_t)(c >> 16);
            at[1] = (uint8_t)(c >> 8);
            at[2] = (uint8_t)c;
        }
}

void picture_text(picture *p, int x, int y, int scale, picture_colour c, const char *text) {
    for (; *text; text++, x += GLYPHS_ADVANCE * scale) {
        const uint8_t *glyph = glyphs_of((unsigned char)*text);
        for (int i = 0; i < GLYPHS_WIDTH; i++)
            for (int j = 0; j < GLYPHS_ROWS; j++)
                if (glyph[i] >> j & 1)
                    picture_fill(p, x + i * scale, y + j * scale, scale, scale, c);
    }
}

int picture_text_width(int scale, const char *text) {
    int n = (int)strlen(text);
    return n ? (n * GLYPHS_ADVANCE - 1) * scale : 0;
}

err picture_write(const picture *p, const char *path) {
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)p->width,
                       .height = (png_uint_32)p->height,
                       .format = PNG_FORMAT_RGB};
    png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image); /* room for any content */
    file_writer *w = NULL;
    void *bytes;
    err e = ERR_OK;
    TRY(mem_new(size, 1, &bytes));
    if (!png_image_write_to_memory(&image, bytes, &size, 0, p->rgb, 0, NULL)) {
        e = err_set(ERR_INTERNAL, "%s: the picture cannot be made: %s", path, image.message);
        goto done;
    }
    TRY_GOTO(file_writer_open(&w, path), done);
    TRY_GOTO(file_write(w, bytes, size), done);
    e = file_commit(&w);
done:
    file_abort(&w);
    png_image_free(&image);
    mem_free(bytes);
    return e;
}
