/* The DFlash drafter: Qwen3-shaped decoder over draft blocks that reads the target's taps as extra keys and values
 * (reference: z-lab format; forward step by step in docs/FORMATS.md and drafter.c).
 *
 * Two forms over one description: drafter_params, fp32 in one flat buffer with a table of tensors (training, checkpoints,
 * gradient checks: a gradient is a second buffer of the same layout), and drafter (packed, bf16 or fp32, immutable) for decoding.
 * Embedding and head are the target's, borrowed. */
#ifndef MODEL_DRAFTER_H
#define MODEL_DRAFTER_H
#include "dev/kernel.h"
#include "model/target.h"

enum { DRAFTER_MAX_TAPS = 16, DRAFTER_MAX_LAYERS = 64 };
typedef struct drafter_config {
    int64_t layers, hidden, intermediate, heads, kv_heads, head_dim;
    int64_t block_size;
    int64_t taps[DRAFTER_MAX_TAPS];
    int n_taps; /* z-lab convention: block outputs, counted from 0 */
    int64_t target_layers, vocab;
    int32_t mask_token;
    int64_t window[DRAFTER_MAX_LAYERS]; /* 0: full attention */
    float rms_eps;
    rope_config rope;
    int64_t max_position;
    char target_digest[33]; /* "" when the file does not say */
} drafter_config;
/* Each rule one sentence: taps in range and strictly rising, mask token inside the embedding, window >= block size... */
MUST_CHECK err drafter_config_check(const drafter_config *c);
/* The config that a recipe's `auto`s mean for a target: taps by the z-lab formula (round half to even), shapes from the target. */
void drafter_taps_auto(int64_t target_layers, int n, int64_t *taps);

typedef struct drafter_tensor {
    char name[64];
    int ndim;
    int64_t dim[2];
    int64_t offset, count;
    int decay;
} drafter_tensor; /* decay: matrices */
typedef struct drafter_layout {
    drafter_config cfg;
    int n;
    drafter_tensor *t;
    int64_t total;
} drafter_layout;
/* Tensors in z-lab names and order; offsets into one flat fp32 buffer, each aligned to 16 elements (gaps stay zero). */
MUST_CHECK err drafter_layout_make(drafter_layout *out, const drafter_config *c, arena *a);
const drafter_tensor *drafter_find(const drafter_layout *l, const char *name);
/* First weights: Normal(0, 0.02) matrices keyed by (seed, tensor index, element), ones for norms, 0.4 for the last norm, and a path on
 * which the last tap's features reach the residual stream (drafter_layout.c says why). */
void drafter_init(const drafter_layout *l, int64_t seed, float *params);

/* z-lab folder: config.json + model.safetensors (BF16 or F32). Save writes atomically (a new folder, or files in place of old ones). */
MUST_CHECK err drafter_save(const drafter_layout *l, const float *params, dtype type,
                            const char *dir);
/* Reads config only / config and weights. Facts missing from the file are refused by name unless the z-lab rule defines them. */
MUST_CHECK err drafter_read_config(drafter_config *out, const char *dir);
MUST_CHECK err drafter_read_params(const drafter_layout *l, const char *dir, float *params,
                                   dtype *stored);
/* Sentence when it was made for another target (digest, hidden width, layers, vocabulary). */
MUST_CHECK err drafter_check_target(const drafter_config *c, const target *t);

/* ---- training form ---- */
/* One row's draft blocks. Anchors sorted; document-local positions. Rows of noise: n_anchors*block_size. */
typedef struct drafter_row {
    int64_t n; /* context tokens */
    const int32_t *tokens, *document, *position;
    int64_t n_anchors;
    const int32_t
        *anchor; /* [N] index into the row; -1: unused block (sees nothing, contributes nothing) */
    const float *taps; /* [n, n_taps*H] */
} drafter_row;
typedef struct drafter_acts drafter_acts; /* activations kept for backward, in the arena given */
/* hidden_out [N*block_size, H] after the last norm. features_out [n, H] or NULL. acts NULL: forward only. Memory from a. */
MUST_CHECK err drafter_forward(const drafter_layout *l, const float *params, const target *t,
                               dev *d, const drafter_row *row, float *hidden_out,
                               float *features_out, drafter_acts **acts, arena *a);
/* grads (same layout) += . d_hidden [N*block_size, H]. */
MUST_CHECK err drafter_backward(const drafter_layout *l, const float *params, dev *d,
                                const drafter_row *row, drafter_acts *acts, const float *d_hidden,
                                float *grads, arena *a);
/* Backward releases the compiled masks of acts; call this instead when no backward follows. Twice is fine. */
void drafter_acts_release(drafter_acts *acts);
size_t drafter_train_bytes(const drafter_layout *l, int64_t n, int64_t n_anchors,
                           int threads); /* forward+backward from a, at most */

/* ---- decoding form ---- */
typedef struct drafter drafter;
MUST_CHECK err drafter_pack(drafter **out, const drafter_layout *l, const float *params, dtype type,
                            const target *t); /* DT_BF16 or DT_F32 */
MUST_CHECK err
drafter_load(drafter **out, const char *dir,
             const target *t); /* read_config + check_target + pack in the stored type */
void drafter_free(drafter *dr);
const drafter_config *drafter_get_config(const drafter *dr);
size_t drafter_bytes(const drafter *dr);
/* Context: appends K/V of rows new tokens' taps to each sequence's drafter cache (pool made with cfg.layers, kv_heads, head_dim). */
typedef struct drafter_ctx_seq {
    kv_seq *kv;
    const float *taps;
    int64_t rows;
} drafter_ctx_seq; /* taps [rows, n_taps*H] */
MUST_CHECK err drafter_extend(const drafter *dr, dev *d, kv_pool *pool, const drafter_ctx_seq *seqs,
                              int64_t n_seqs, arena *a);
/* One draft block per sequence at position kv->length: slot 0 = last committed token, slots mask tokens, size slots (2..block_size).
 * drafts: size-1 tokens per sequence by nn_argmax. logits_out [sum(size-1), V] or NULL. */
typedef struct drafter_block_seq {
    const kv_seq *kv;
    int32_t token;
    int64_t size;
    int32_t *drafts;
} drafter_block_seq;
MUST_CHECK err drafter_draft(const drafter *dr, dev *d, const kv_pool *pool,
                             const drafter_block_seq *seqs, int64_t n_seqs, float *logits_out,
                             arena *a);

/* GPU kernels of a drafter's attention, forward and backward, one visit each. Of the config: layers, window, head_dim,
 * block_size. shared: what a block may have (kernel_arch_shared). */
MUST_CHECK err drafter_kernels(const drafter_config *c, dtype type, size_t shared,
                               kernel_visit visit, void *ctx);

#endif
