/* Tokenizers: byte-level BPE read out of a GGUF (tokenizer.ggml.model gpt2) with the split pattern
 * named by tokenizer.ggml.pre. Ids equal the reference tokenizer's. Unknown models and
 * pre-tokenizers are refused by name, never defaulted. Bytes that are no UTF-8, which the reference
 * would not take, are encoded byte by byte. */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H
#include "core/err.h"
#include "io/gguf.h"
#include <stdint.h>

typedef struct tokenizer tokenizer; /* immutable after loading: any number of threads */
MUST_CHECK err tokenizer_load_gguf(tokenizer **out, const gguf *g);
void tokenizer_free(tokenizer *t);
int64_t tokenizer_count(const tokenizer *t); /* ids 0..count-1 */
/* Appends ids of n bytes of text to a growing array (*ids from mem_grow). special 1: control tokens
 * spelled in the text become their ids (templates); 0: they are plain text (user content: a
 * look-alike never becomes a control token). */
MUST_CHECK err tokenizer_encode(const tokenizer *t, const char *text, size_t n, int special,
                                int32_t **ids, size_t *n_ids, size_t *cap);
/* Bytes of text that the vocabulary has no token for (SmolLM2's lacks 21 byte values: a few control
 * characters, bytes that no valid UTF-8 holds, and the lead bytes of the empty planes 4 to 11).
 * Encoding drops them, as the reference does; whoever takes in data asks here and says so. 0 for a
 * text: its ids decode to the text itself. */
size_t tokenizer_unspellable(const tokenizer *t, const char *text, size_t n);
/* Bytes of one token (borrowed); control tokens give their spelling. ERR_RANGE for ids outside. */
MUST_CHECK err tokenizer_bytes(const tokenizer *t, int32_t id, const char **s, size_t *n);
int tokenizer_is_control(const tokenizer *t, int32_t id);
int32_t tokenizer_find(const tokenizer *t, const char *spelling); /* control token's id or -1 */
/* End tokens of generation (eos, eot, from the file); n at most 8. */
int tokenizer_end_ids(const tokenizer *t, const int32_t **ids);
int32_t tokenizer_bos(const tokenizer *t); /* -1 when the model adds none */
/* Digest of vocabulary, merges, pattern and specials: part of every data key. */
void tokenizer_digest(const tokenizer *t, char out[33]);
/* "smollm": selects family facts such as the reserved mask token. */
const char *tokenizer_pre(const tokenizer *t);
const char *tokenizer_chat_template(const tokenizer *t); /* the file's template text, or NULL */

#endif
