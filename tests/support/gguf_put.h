/* A GGUF file written piece by piece: keys, then the table of tensors, then their F32 data.
 *
 * The caller says beforehand how many keys and tensors come and gives them in that order. It shares no code with the
 * reader under test and writes only what that reader reads. The first failure is kept and told by gguf_put_end. */
#ifndef SUPPORT_GGUF_PUT_H
#define SUPPORT_GGUF_PUT_H
#include "core/file.h"

typedef struct gguf_put {
    file_writer *w;
    uint64_t at,
        next; /* bytes written; where the next tensor's data begins, counted from the first's */
    err e;
} gguf_put;

enum { GGUF_PUT_I32 = 5, GGUF_PUT_TEXT = 8 }; /* of an array's elements */

void gguf_put_begin(gguf_put *g, const char *path, uint64_t tensors, uint64_t keys);
void gguf_put_int(gguf_put *g, const char *key, int64_t v); /* u32 */
void gguf_put_real(gguf_put *g, const char *key, float v);
void gguf_put_bool(gguf_put *g, const char *key, int v);
void gguf_put_text(gguf_put *g, const char *key, const char *v);
/* n elements follow, by gguf_put_item_text or gguf_put_item_int. */
void gguf_put_array(gguf_put *g, const char *key, uint32_t type, uint64_t n);
void gguf_put_item_text(gguf_put *g, const char *s);
void gguf_put_item_int(gguf_put *g, int32_t v);
/* An entry of the table; cols 0: a vector of rows. */
void gguf_put_tensor(gguf_put *g, const char *name, int64_t rows, int64_t cols);
/* The data of the next tensor of the table. */
void gguf_put_data(gguf_put *g, const float *x, int64_t n);
MUST_CHECK err gguf_put_end(gguf_put *g);

/* The letter of GPT-2's byte-level alphabet for a byte, as UTF-8: printable bytes stand for themselves, the rest
 * for U+0100 and up. */
void gguf_put_byte_letter(int byte, char out[4]);

#endif
