/* A picture in memory, drawn by rectangles and text, written as PNG.
 *
 * 8-bit RGB, row by row from the top; whatever leaves the picture is cut off. The file appears whole or
 * not at all. No lines at an angle, no blending: maps and captions need neither. */
#ifndef REPORT_PICTURE_H
#define REPORT_PICTURE_H
#include "core/err.h"
#include <stdint.h>

typedef struct picture {
    int width, height;
    uint8_t *rgb; /* [height, width, 3] */
} picture;
typedef uint32_t picture_colour; /* 0xRRGGBB */

enum { PICTURE_MAX_EDGE = 16384 };
/* Filled with one colour; ERR_RANGE beyond PICTURE_MAX_EDGE a side. */
MUST_CHECK err picture_open(picture *p, int width, int height, picture_colour fill);
void picture_close(picture *p); /* zeroed or closed is fine */
void picture_fill(picture *p, int x, int y, int width, int height, picture_colour c);
/* One line of text with its top left corner at x, y; dots of scale x scale pixels. */
void picture_text(picture *p, int x, int y, int scale, picture_colour c, const char *text);
int picture_text_width(int scale, const char *text);
MUST_CHECK err picture_write(const picture *p, const char *path);

#endif
