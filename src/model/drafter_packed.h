/* The packed drafter's insides, shared by drafter_pack.c and drafter_decode.c only.
 *
 * Matrices are packed [out, in] weights, norms fp32 vectors holding values of the stored type.
 * Not for other folders: they see an opaque drafter. */
#ifndef MODEL_DRAFTER_PACKED_H
#define MODEL_DRAFTER_PACKED_H
#include "model/drafter_parts.h"

typedef struct drafter__packed_layer {
    packed q, k, v, o, gate, up, down;
    float *norm1, *norm2;   /* [H] */
    float *q_norm, *k_norm; /* [D] */
} drafter__packed_layer;

struct drafter {
    drafter_config cfg;
    const target *target; /* borrowed: embedding and head */
    arena *memory;
    drafter__packed_layer *layer; /* [layers] */
    packed fc;                    /* [H, taps*H] */
    float *hidden_norm, *norm;    /* [H] */
    rope_table rope;
};

#endif
