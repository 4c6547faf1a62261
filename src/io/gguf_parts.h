/* What the three files of the GGUF reader share: the handle, one metadata value, the table of tensor types.
 *
 * gguf.c parses and owns; gguf_meta.c answers about metadata; gguf_quant.c turns rows into fp32.
 * Private to src/io. */
#ifndef IO_GGUF_PARTS_H
#define IO_GGUF_PARTS_H
#include "core/arena.h"
#include "core/file.h"
#include "io/gguf.h"

/* Numbers of the format's value types. */
enum {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPES
};

typedef struct gguf_value {
    const char *key; /* in the file, not terminated */
    size_t key_len;
    uint32_t type; /* of the value, or of an array's elements */
    int is_array;
    int64_t count; /* elements; 1 for a scalar */
    const uint8_t *data;
    uint64_t *text_at; /* strings: offset of each element's length field from data, [count] */
} gguf_value;

struct gguf {
    arena *mem;
    const char *path;
    file_map map;
    int mapped;
    uint32_t version;
    uint64_t alignment;
    int n_values, n_tensors;
    gguf_value *values;
    const gguf_value **by_key; /* [n_values], sorted */
    gguf_tensor *tensors;
    const gguf_tensor **by_name; /* [n_tensors], sorted */
};

/* Bytes of one scalar of a value type; 0 for strings, arrays and unknown types. */
size_t gguf__value_size(uint32_t type);
const char *gguf__value_name(uint32_t type); /* "u32"; NULL when unknown */
const gguf_value *gguf__find(const gguf *g, const char *key, size_t n);
int gguf__compare(const char *a, size_t na, const char *b, size_t nb);

/* Block of a tensor type: values per block and bytes per block; 0 when the number is unknown. */
int gguf__block(int ggml_type, int64_t *values, int64_t *bytes);

#endif
