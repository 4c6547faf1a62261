/* GGUF v2/v3 reader: metadata and tensors of types F32, F16, BF16, Q8_0, Q4_0, Q4_1 (dequantised row by row).
 * Every count, string and offset is checked against the file's size; tensors lie one after the other, each padded
 * to the alignment, and nothing follows the last one. Other tensor types are refused by name when read. GGUF dims are innermost first; gguf_tensor.dim is row-major (outermost first) like ours. */
#ifndef IO_GGUF_H
#define IO_GGUF_H
#include "core/err.h"
#include <stddef.h>
#include <stdint.h>

typedef struct gguf gguf;
typedef struct gguf_tensor {
    const char *name;
    int ggml_type;  /* file's number; gguf_type_name gives its spelling */
    int ndim;       /* at least 1: a scalar has one row of one value */
    int64_t dim[4]; /* outermost first */
    const uint8_t *data;
    size_t bytes;
} gguf_tensor;

MUST_CHECK err gguf_open(gguf **out, const char *path);
/* The same over n borrowed bytes that outlive the handle; what names them in errors. */
MUST_CHECK err gguf_open_memory(gguf **out, const char *what, const void *data, size_t n);
void gguf_close(gguf *g);
const char *gguf_path(const gguf *g);
int gguf_tensor_count(const gguf *g);
const gguf_tensor *gguf_tensor_at(const gguf *g, int i);
const gguf_tensor *gguf_tensor_find(const gguf *g, const char *name);
const char *gguf_type_name(int ggml_type);
/* "[576, 49152]", outermost first, into buf; returns buf. */
const char *gguf_shape_text(const gguf_tensor *t, char *buf, size_t n);
int gguf_version(const gguf *g);
/* Row r (flattened over the outer dims) of t as fp32 [dim[ndim-1]]. */
MUST_CHECK err gguf_row(const gguf *g, const gguf_tensor *t, int64_t r, float *dst);

/* Metadata. Missing keys or other types are ERR_FORMAT naming the key. Any integer width is accepted for int. */
int gguf_has(const gguf *g, const char *key);
MUST_CHECK err gguf_get_int(const gguf *g, const char *key, int64_t *out);
MUST_CHECK err gguf_get_real(const gguf *g, const char *key, double *out);
MUST_CHECK err gguf_get_bool(const gguf *g, const char *key, int *out);
MUST_CHECK err gguf_get_text(const gguf *g, const char *key, const char **s,
                             size_t *n); /* borrowed, not NUL-terminated */
/* Arrays: number of elements, then elements. */
MUST_CHECK err gguf_array_count(const gguf *g, const char *key, int64_t *n);
MUST_CHECK err gguf_array_text(const gguf *g, const char *key, int64_t i, const char **s,
                               size_t *n);
MUST_CHECK err gguf_array_int(const gguf *g, const char *key, int64_t i, int64_t *out);
MUST_CHECK err gguf_array_real(const gguf *g, const char *key, int64_t i, double *out);
/* Walk for `inspect`: i-th key and a short text of its value ("u32 8192", "[49152] string"). */
int gguf_key_count(const gguf *g);
MUST_CHECK err gguf_key_at(const gguf *g, int i, const char **key, size_t *key_len, char *text,
                           size_t n);

#endif
