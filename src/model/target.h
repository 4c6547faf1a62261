/* Target models: the frozen Llama-family base, loaded once to bf16 (rounded once on load: that rounded model is the target).
 *
 * Sources: one GGUF, or a Hugging Face folder (config.json + safetensors; tests and probe use it; tokenizer.json comes later).
 * Every tensor is accounted for exactly once or the load stops with the whole difference. Other architectures and RoPE kinds are
 * refused by name. Tied heads share storage. GGUF llama rows of q and k are un-permuted to half-split pairing on load. */
#ifndef MODEL_TARGET_H
#define MODEL_TARGET_H
#include "dev/dev.h"
#include "flex/flex.h"
#include "dev/kernel.h"
#include "model/kv.h"
#include "nn/nn.h"

typedef struct target_config {
    int64_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocab,
        context; /* context: trained length */
    float rms_eps;
    rope_config rope;
    int tied;
    int32_t bos, eos[8];
    int n_eos;
} target_config;

typedef struct target target; /* immutable after loading; own arena */
typedef struct target_options {
    int keep_f32; /* tests and probe: weights kept in fp32 as in the file */
} target_options;
MUST_CHECK err target_load(target **out, dev *d, const char *path, const target_options *opt);
void target_free(target *t);
/* The config alone, read and checked as target_load does it. */
MUST_CHECK err target_read_config(target_config *out, const char *path);
/* GPU kernels of a target's attention, one visit each: rows of training, and decoding on pages. Of the config: head_dim.
 * shared: what a block may have (kernel_arch_shared). */
MUST_CHECK err target_kernels(const target_config *c, dtype type, size_t shared, kernel_visit visit,
                              void *ctx);
const target_config *target_get_config(const target *t);
const packed *target_embedding(const target *t); /* [V, H] */
const packed *target_head(const target *t);      /* [V, H]; the same storage when tied */
size_t target_bytes(const target *t);
/* Digest of config and all weights as held: a drafter records which target it was made for. */
void target_digest(const target *t, char out[33]);
const char *target_path(const target *t);

/* Training forward over one flattened row: n tokens with document ids and positions (causal inside documents).
 * Captures the outputs of n_taps blocks, in list order, side by side: taps_out[n][n_taps*H]. Stops after the last tap unless
 * logits_out [n][V] or hidden_out [n][H] (after the final norm) is wanted. A tap that is not finite is ERR_NUMERIC naming
 * its position and document. Workspace comes from a, which is as before when the call returns. */
typedef struct target_row {
    int64_t n;
    const int32_t *tokens, *document, *position;
    const int64_t *taps;
    int n_taps;
    float *taps_out;
    float *logits_out; /* or NULL */
    float *hidden_out; /* or NULL */
} target_row;
MUST_CHECK err target_forward(const target *t, dev *d, const target_row *row, arena *a);
size_t target_forward_bytes(const target *t, int64_t n, int64_t docs,
                            int threads); /* what target_forward takes from a at most */

/* Decoding forward: several sequences at once, each with rows new tokens after the keys it already holds; appends to the cache.
 * Row bits do not depend on the other rows or sequences. logits_out/taps_out rows are concatenated over sequences.
 * last_only: logits of each sequence's last row only. Workspace comes from a, which is as before when the call returns; on an
 * error no sequence has grown. */
typedef struct target_step_seq {
    kv_seq *kv;
    const int32_t *tokens;
    int64_t rows;
} target_step_seq;
typedef struct target_step {
    const target_step_seq *seqs;
    int64_t n_seqs;
    int last_only;
    float *logits_out; /* [rows or n_seqs][V] or NULL */
    int32_t *
        argmax_out; /* [rows or n_seqs] by nn_argmax, or NULL; whole logits need not exist for it */
    const int64_t *taps;
    int n_taps;
    float *taps_out; /* [rows][n_taps*H] or NULL */
} target_step;
MUST_CHECK err target_decode(const target *t, dev *d, kv_pool *pool, const target_step *s,
                             arena *a);

#endif
