/* Packed products from inside: a block of work, and the kernels of one instruction set.
 *
 * packed.c cuts a product into blocks of a few rows, a few panels and one chunk of k; a kernel adds one
 * block to y. Every kernel keeps the order of packed.h, so all of them give the same bits.
 * Not for other folders. */
#ifndef DEV_PACKED_PRIVATE_H
#define DEV_PACKED_PRIVATE_H
#include "dev/packed.h"

enum { PACKED__ROWS = 8, PACKED__PANELS = 4 }; /* the most that any kernel takes */

typedef struct packed__block {
    const void *w;  /* first panel's [kc][16] */
    int64_t stride; /* elements from one panel to the next */
    int kc, rows, panels;
    int lanes;      /* outputs in the last panel: 1..16 */
    int first;      /* the first chunk: y is 0 and is not read */
    const float *x; /* [rows][ldx], at this chunk */
    int64_t ldx;
    float *y; /* [rows][ldy], at the first panel's first output */
    int64_t ldy;
} packed__block;

typedef struct packed__kernel {
    int rows;        /* most rows in a block */
    int panels;      /* panels in a block */
    int panels_few;  /* panels in a block of one or two rows */
    int widen_above; /* more rows than this: bf16 is widened once for all of them */
    void (*f32)(const packed__block *b);
    void (*bf16)(const packed__block *b);
    void (*widen)(const bf16 *src, float *dst, int64_t n); /* n: a multiple of 16 */
} packed__kernel;

extern const packed__kernel packed__portable, packed__portable_fma, packed__avx2, packed__avx512;

#endif
