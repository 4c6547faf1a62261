/* Fuzzing GGUF: any bytes either open or are refused with a sentence; then every key and row is read.
 *
 * The bytes are opened in place, so the address sanitizer sees a read beyond them. Rows wider than a limit
 * are left out to keep the memory of a run small; their bounds are those of the others. */
#include "io/gguf.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WIDEST = 1 << 16, ROWS = 64 };

static void read_rows(const gguf *g, const gguf_tensor *t, float *row) {
    int64_t width = t->dim[t->ndim - 1], rows = 1;
    for (int k = 0; k + 1 < t->ndim; k++) rows *= t->dim[k];
    if (width > WIDEST) return;
    for (int64_t r = 0; r < rows && r < ROWS; r++)
        if (gguf_row(g, t, r, row)) return;
    if (rows && gguf_row(g, t, rows - 1, row)) return;
    if (!gguf_row(g, t, rows, row)) abort();
}

static void read_key(const gguf *g, int i) {
    char text[40], name[200];
    const char *key, *s;
    size_t n, len;
    int64_t count = 0, v;
    double d;
    if (gguf_key_at(g, i, &key, &n, text, sizeof text)) abort();
    if (n >= sizeof name) return;
    memcpy(name, key, n);
    name[n] = 0;
    if (!gguf_has(g, name)) abort();
    if (gguf_get_int(g, name, &v) || gguf_get_real(g, name, &d) || gguf_get_text(g, name, &s, &len))
        err_clear();
    if (gguf_array_count(g, name, &count)) return;
    for (int64_t k = 0; k < count && k < ROWS; k++)
        if (gguf_array_int(g, name, k, &v) && gguf_array_real(g, name, k, &d) &&
            !gguf_array_text(g, name, k, &s, &len) && len && s[len - 1] == 'x')
            err_clear();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    gguf *g = NULL;
    if (gguf_open_memory(&g, "fuzz", data, size)) {
        if (g || !*err_text()) abort();
        return 0;
    }
    float *row = malloc(WIDEST * sizeof *row);
    if (!row) abort();
    for (int i = 0; i < gguf_tensor_count(g); i++) read_rows(g, gguf_tensor_at(g, i), row);
    for (int i = 0; i < gguf_key_count(g); i++) read_key(g, i);
    free(row);
    gguf_close(g);
    return 0;
}
