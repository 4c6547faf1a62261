/* What the files of the target share: the loaded model, and a source of named tensors to load it from.
 *
 * A source is one opened GGUF or Hugging Face folder reduced to a list of tensors and a function that gives one row in
 * fp32; the naming (which of the two spellings a parameter has) is a column of the parameter table in target_weights.c.
 * Private to model/target*.c. */
#ifndef MODEL_TARGET_PARTS_H
#define MODEL_TARGET_PARTS_H
#include "core/str.h"
#include "model/target.h"

typedef struct target__layer {
    packed qkv;                  /* [(heads + 2 kv_heads) * head_dim, hidden] q, then k, then v */
    packed o;                    /* [hidden, heads * head_dim] */
    packed gate_up;              /* [2 * intermediate, hidden] gate, then up */
    packed down;                 /* [hidden, intermediate] */
    float *attn_norm, *mlp_norm; /* [hidden] */
} target__layer;

struct target {
    target_config cfg;
    arena *a;
    char *path;
    dtype held; /* DT_BF16, or DT_F32 with keep_f32 */
    packed embed, head;
    float *norm; /* [hidden] */
    target__layer *layer;
    rope_table rope;
    expr *mask; /* causal inside documents, over the captured array doc */
    char digest[33];
};

typedef struct target__tensor {
    const char *name;
    int ndim;
    int64_t dim[4];
    const void *handle;
    int uses; /* parameters that took it: must be 1 in the end */
} target__tensor;

typedef enum target__naming { TARGET__HF, TARGET__GGUF } target__naming;
typedef struct target__source {
    const char *path;
    target__naming naming;
    int interleaved; /* rows of q and k are ordered for interleaved pairing */
    void *file;
    int64_t n;
    target__tensor *t;
    err (*row)(const struct target__source *s, const target__tensor *t, int64_t r, float *dst);
    void (*close)(struct target__source *s);
} target__source;

/* Open a source and read the config; lists live in a. The source must be closed when the call succeeded. */
MUST_CHECK err target__open_gguf(target__source *s, target_config *c, const char *path, arena *a);
MUST_CHECK err target__open_hf(target__source *s, target_config *c, const char *path, arena *a);
/* Extents of a config that this program can hold; path for the sentence. */
MUST_CHECK err target__check_config(const target_config *c, const char *path);
/* Accounts for every tensor of s, takes the memory in t->a and fills it. tmp: for the parameter table. */
MUST_CHECK err target__load_weights(target *t, target__source *s, dev *d, arena *tmp);

/* One block's two halves on rows of x [n, hidden], shared by training and decoding; the attention between them differs. */
typedef struct target__rows {
    const target *t;
    dev *d;
    int64_t n, chunk;
    const int32_t *position;
    float *x, *y;    /* [n, hidden] residual stream; scratch */
    float *qkv;      /* [n, (heads + 2 kv_heads) * head_dim] */
    float *o;        /* [n, heads * head_dim] attention's output */
    float *gu, *act; /* [chunk, 2 * intermediate], [chunk, intermediate] */
} target__rows;
size_t target__rows_bytes(const target *t, int64_t n);
MUST_CHECK err target__rows_alloc(target__rows *r, const target *t, dev *d, int64_t n, arena *a);
/* x += nothing yet; qkv = rotated q and k, and v, of the normed rows. */
MUST_CHECK err target__before_attention(target__rows *r, int64_t layer);
/* x += o W_o; x += MLP(norm(x)). */
MUST_CHECK err target__after_attention(target__rows *r, int64_t layer);
/* Copies x into tap columns of out [n, n_taps*hidden] for each tap that names layer. */
void target__store_taps(const target__rows *r, int64_t layer, const int64_t *taps, int n_taps,
                        float *out);
MUST_CHECK err target__check_taps(const target *t, const int64_t *taps, int n_taps);

#endif
