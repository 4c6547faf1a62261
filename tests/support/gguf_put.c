/* A GGUF file written piece by piece: see gguf_put.h.
 *
 * Version 3, little-endian, F32 tensors only. Data of each tensor begins at a multiple of 32 bytes, the format's
 * default, and the file's end is padded likewise. */
#include "support/gguf_put.h"
#include <stdio.h>
#include <string.h>

enum { U32 = 4, F32 = 6, BOOL = 7, ARRAY = 9, ALIGN = 32 };

static void put(gguf_put *g, const void *p, size_t n) {
    if (!g->e) g->e = file_write(g->w, p, n);
    g->at += n;
}
static void put32(gguf_put *g, uint32_t v) { put(g, &v, 4); }
static void put64(gguf_put *g, uint64_t v) { put(g, &v, 8); }
static void key(gguf_put *g, const char *name, uint32_t type) {
    gguf_put_item_text(g, name);
    put32(g, type);
}
static uint64_t aligned(uint64_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }
static void pad(gguf_put *g) {
    static const char zero[ALIGN];
    put(g, zero, (size_t)(aligned(g->at) - g->at));
}

void gguf_put_begin(gguf_put *g, const char *path, uint64_t tensors, uint64_t keys) {
    *g = (gguf_put){0};
    g->e = file_writer_open(&g->w, path);
    put(g, "GGUF", 4);
    put32(g, 3);
    put64(g, tensors);
    put64(g, keys);
}

void gguf_put_int(gguf_put *g, const char *name, int64_t v) {
    key(g, name, U32);
    put32(g, (uint32_t)v);
}

void gguf_put_real(gguf_put *g, const char *name, float v) {
    key(g, name, F32);
    put(g, &v, 4);
}

void gguf_put_bool(gguf_put *g, const char *name, int v) {
    const char byte = v != 0;
    key(g, name, BOOL);
    put(g, &byte, 1);
}

void gguf_put_text(gguf_put *g, const char *name, const char *v) {
    key(g, name, GGUF_PUT_TEXT);
    gguf_put_item_text(g, v);
}

void gguf_put_array(gguf_put *g, const char *name, uint32_t type, uint64_t n) {
    key(g, name, ARRAY);
    put32(g, type);
    put64(g, n);
}

void gguf_put_item_text(gguf_put *g, const char *s) {
    put64(g, strlen(s));
    put(g, s, strlen(s));
}

void gguf_put_item_int(gguf_put *g, int32_t v) { put(g, &v, 4); }

void gguf_put_tensor(gguf_put *g, const char *name, int64_t rows, int64_t cols) {
    gguf_put_item_text(g, name);
    put32(g, cols ? 2 : 1);
    if (cols) put64(g, (uint64_t)cols); /* innermost first */
    put64(g, (uint64_t)rows);
    put32(g, 0); /* F32 */
    put64(g, g->next);
    g->next = aligned(g->next + (uint64_t)(rows * (cols ? cols : 1)) * sizeof(float));
}

void gguf_put_data(gguf_put *g, const float *x, int64_t n) {
    pad(g);
    put(g, x, (size_t)n * sizeof *x);
}

err gguf_put_end(gguf_put *g) {
    pad(g);
    if (!g->e) return file_commit(&g->w);
    file_abort(&g->w);
    return g->e;
}

void gguf_put_byte_letter(int byte, char out[4]) {
    int code = byte, shifted = 0;
    for (int b = 0; b <= byte; b++) {
        const int printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte) code = printable ? b : 256 + shifted;
        shifted += !printable;
    }
    if (code < 128)
        snprintf(out, 4, "%c", code);
    else
        snprintf(out, 4, "%c%c", 0xc0 | code >> 6, 0x80 | (code & 63));
}
