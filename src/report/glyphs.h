/* A small bitmap font for captions and axes: printable ASCII, five columns of eight dots.
 *
 * Glyphs are plain data; drawing them is picture.h's work. Anything outside ASCII is shown as a
 * hollow box, so that a text keeps its length: shaping and other scripts are not attempted. */
#ifndef REPORT_GLYPHS_H
#define REPORT_GLYPHS_H
#include <stdint.h>

enum { GLYPHS_WIDTH = 5, GLYPHS_HEIGHT = 7, GLYPHS_ROWS = 8, GLYPHS_ADVANCE = 6, GLYPHS_LINE = 10 };

/* Five bytes, left to right; bit 0 of each is the top dot, bit 7 lies below the line that letters stand on. */
const uint8_t *glyphs_of(unsigned char c);

#endif
