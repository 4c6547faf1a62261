/* The functions of a tileops table, written once over a vector type and compiled per instruction set.
 *
 * The including file defines VW (lanes), vf and the v_ functions on it, MR x NV (register block of the product) and
 * BODY_TABLE, the definition of its table. Included by tileops*.c only; holds no logic of attention. */

#define ALWAYS static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* One register block: mr rows by nv vectors, nv - 1 whole and the last of tail lanes (VW when whole). */
ALWAYS void BODY(block)(const int mr, const int nv, const tile_mm *g, int64_t i, int64_t j,
                        const int64_t tail) {
    vf acc[MR][NV];
    const float *a = g->a + i * g->sam, *b = g->b + j;
    float *c = g->c + i * g->ldc + j;
    int64_t sam = g->sam, sak = g->sak, ldb = g->ldb;
    UNROLL for (int r = 0; r < mr; r++) {
        UNROLL for (int v = 0; v < nv; v++) {
            if (!g->add)
                acc[r][v] = v_zero();
            else
                acc[r][v] = v == nv - 1 ? v_load_n(c + r * g->ldc + v * VW, tail)
                                        : v_load(c + r * g->ldc + v * VW);
        }
    }
    for (int64_t k = g->k; k > 0; k--, a += sak, b += ldb) {
        vf bv[NV];
        UNROLL for (int v = 0; v < nv; v++) bv[v] =
            v == nv - 1 ? v_load_n(b + v * VW, tail) : v_load(b + v * VW);
        UNROLL for (int r = 0; r < mr; r++) {
            vf av = v_set(a[r * sam]);
            UNROLL for (int v = 0; v < nv; v++) acc[r][v] = v_fma(av, bv[v], acc[r][v]);
        }
    }
    UNROLL for (int r = 0; r < mr; r++) {
        UNROLL for (int v = 0; v < nv; v++) {
            if (v == nv - 1)
                v_store_n(c + r * g->ldc + v * VW, acc[r][v], tail);
            else
                v_store(c + r * g->ldc + v * VW, acc[r][v]);
        }
    }
}

/* All rows of one strip of nv vectors. */
ALWAYS void BODY(strip)(const int nv, const tile_mm *g, int64_t j, const int64_t tail) {
    int64_t i = 0;
    for (; i + MR <= g->m; i += MR) BODY(block)(MR, nv, g, i, j, tail);
    switch (g->m - i) {
    case 1: BODY(block)(1, nv, g, i, j, tail); break;
    case 2: BODY(block)(2, nv, g, i, j, tail); break;
    case 3: BODY(block)(3, nv, g, i, j, tail); break;
#if MR > 4
    case 4: BODY(block)(4, nv, g, i, j, tail); break;
    case 5: BODY(block)(5, nv, g, i, j, tail); break;
#endif
    default: break;
    }
}

static void BODY(gemm)(const tile_mm *g) {
    int64_t j = 0;
    for (; j + NV * VW <= g->n; j += NV * VW) BODY(strip)(NV, g, j, VW);
#if NV > 2
    if (j + 2 * VW <= g->n) {
        BODY(strip)(2, g, j, VW);
        j += 2 * VW;
    }
#endif
    for (; j + VW <= g->n; j += VW) BODY(strip)(1, g, j, VW);
#if VW > 8
    if (j < g->n) BODY(strip)(1, g, j, g->n - j);
#endif
}

static void BODY(transpose)(const float *src, int64_t ld, int64_t rows, int64_t cols, float *dst,
                            int64_t ldd) {
    int64_t r = 0;
#ifdef V_TRANSPOSE
    for (; r + V_TRANSPOSE <= rows; r += V_TRANSPOSE) {
        int64_t c = 0;
        for (; c + V_TRANSPOSE <= cols; c += V_TRANSPOSE)
            v_transpose(src + r * ld + c, ld, dst + c * ldd + r, ldd);
        for (; c < cols; c++) {
            for (int64_t i = r; i < r + V_TRANSPOSE; i++) dst[c * ldd + i] = src[i * ld + c];
        }
    }
#endif
    for (; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++) dst[c * ldd + r] = src[r * ld + c];
    }
}

ALWAYS vf BODY(pick)(const uint8_t *mask, vf yes, vf no) {
    return mask ? v_select(mask, yes, no) : yes;
}

/* One column vector of the forward pass; masked is a constant, so that full tiles run without mask code. */
ALWAYS void BODY(soften)(const tile_scores *t, int64_t j, const int masked) {
    vf scale = v_set(t->scale), none = v_set(-INFINITY), old = v_load(t->m + j), top = old;
    for (int64_t i = 0; i < t->rows; i++) {
        float *s = t->s + i * t->ld + j;
        vf x = BODY(pick)(masked ? t->mask + i * t->ldm + j : NULL, v_mul(v_load(s), scale), none);
        top = v_max(x, top);
        v_store(s, x);
    }
    vf base = v_or_zero(top); /* -inf, nothing seen so far: exp(-inf - 0) = 0 */
    vf corr = v_exp(v_sub(old, base)), sum = v_mul(v_load(t->l + j), corr);
    for (int64_t i = 0; i < t->rows; i++) {
        float *s = t->s + i * t->ld + j;
        vf p = v_exp(v_sub(v_load(s), base));
        sum = v_add(sum, p);
        v_store(s, p);
    }
    v_store(t->m + j, top);
    v_store(t->l + j, sum);
    v_store(t->corr + j, corr);
}

static void BODY(softmax_cols)(const tile_scores *t) {
    if (t->mask) {
        for (int64_t j = 0; j < t->cols; j += VW) BODY(soften)(t, j, 1);
    } else {
        for (int64_t j = 0; j < t->cols; j += VW) BODY(soften)(t, j, 0);
    }
}

ALWAYS void BODY(grad)(const tile_scores *t, int64_t i, int64_t j, vf lse, vf delta,
                       const int masked, const int keep) {
    int64_t at = i * t->ld + j;
    vf scale = v_set(t->scale);
    const uint8_t *m = masked ? t->mask + i * t->ldm + j : NULL;
    vf p = v_exp(v_sub(v_mul(v_load(t->s + at), scale), lse));
    vf ds = v_mul(v_mul(p, v_sub(v_load(t->dp + at), delta)), scale);
    v_store((keep ? t->dp : t->s) + at, BODY(pick)(m, ds, v_zero()));
    if (keep) v_store(t->s + at, BODY(pick)(m, p, v_zero()));
}

static void BODY(grad_cols)(const tile_scores *t) {
    for (int64_t j = 0; j < t->cols; j += VW) {
        vf lse = v_load(t->lse + j), delta = v_load(t->delta + j);
        if (t->mask) {
            for (int64_t i = 0; i < t->rows; i++) BODY(grad)(t, i, j, lse, delta, 1, 0);
        } else {
            for (int64_t i = 0; i < t->rows; i++) BODY(grad)(t, i, j, lse, delta, 0, 0);
        }
    }
}

static void BODY(grad_rows)(const tile_scores *t) {
    for (int64_t i = 0; i < t->rows; i++) {
        vf lse = v_set(t->lse[i]), delta = v_set(t->delta[i]);
        if (t->mask) {
            for (int64_t j = 0; j < t->cols; j += VW) BODY(grad)(t, i, j, lse, delta, 1, 1);
        } else {
            for (int64_t j = 0; j < t->cols; j += VW) BODY(grad)(t, i, j, lse, delta, 0, 1);
        }
    }
}

static void BODY(scale_rows)(float *x, int64_t ld, int64_t rows, int64_t n, const float *f) {
    for (int64_t i = 0; i < rows; i++) {
        if (f[i] == 1.0f) continue;
        vf fv = v_set(f[i]);
        for (int64_t j = 0; j < n; j += VW) {
            int64_t w = n - j < VW ? n - j : VW;
            v_store_n(x + i * ld + j, v_mul(v_load_n(x + i * ld + j, w), fv), w);
        }
    }
}

/* Sum over 16 lanes in a fixed tree: the same on every width of vector. */
ALWAYS float BODY(lanes_sum)(const vf *acc) {
    float lane[TILE_LANES];
    for (int v = 0; v < TILE_LANES / VW; v++) v_store(lane + v * VW, acc[v]);
    for (int w = TILE_LANES / 2; w > 0; w /= 2) {
        for (int i = 0; i < w; i++) lane[i] += lane[i + w];
    }
    return lane[0];
}

static void BODY(softmax_row)(float *s, int64_t n, float scale, float *max, float *sum) {
    vf sv = v_set(scale), acc[TILE_LANES / VW], top = v_set(-INFINITY);
    for (int64_t j = 0; j < n; j += VW) {
        vf x = v_mul(v_load(s + j), sv);
        top = v_max(x, top);
        v_store(s + j, x);
    }
    float lane[VW], m = -INFINITY;
    v_store(lane, top);
    for (int i = 0; i < VW; i++) m = lane[i] > m ? lane[i] : m;
    vf base = v_set(m == -INFINITY ? 0.0f : m);
    for (int v = 0; v < TILE_LANES / VW; v++) acc[v] = v_zero();
    for (int64_t j = 0; j < n; j += TILE_LANES) {
        UNROLL for (int v = 0; v < TILE_LANES / VW; v++) {
            vf p = v_exp(v_sub(v_load(s + j + v * VW), base));
            acc[v] = v_add(acc[v], p);
            v_store(s + j + v * VW, p);
        }
    }
    *max = m;
    *sum = BODY(lanes_sum)(acc);
}

static void BODY(blend)(float *o, const float *p, int64_t n, float a, float b) {
    vf av = v_set(a), bv = v_set(b);
    for (int64_t j = 0; j < n; j += VW) {
        int64_t w = n - j < VW ? n - j : VW;
        v_store_n(o + j, v_fma(v_load_n(o + j, w), av, v_mul(v_load_n(p + j, w), bv)), w);
    }
}

static void BODY(widen)(const bf16 *src, float *dst, int64_t n) {
    int64_t j = 0;
    for (; j + VW <= n; j += VW) v_store(dst + j, v_widen(src + j));
    for (; j < n; j++) dst[j] = bf16_to_f32(src[j]);
}

static float BODY(dot)(const float *a, const float *b, int64_t n) {
    vf acc[TILE_LANES / VW];
    for (int v = 0; v < TILE_LANES / VW; v++) acc[v] = v_zero();
    for (int64_t j = 0; j < n; j += TILE_LANES) {
        UNROLL for (int v = 0; v < TILE_LANES / VW; v++) {
            int64_t at = j + v * VW, w = n - at < VW ? n - at : VW;
            if (w > 0) acc[v] = v_fma(v_load_n(a + at, w), v_load_n(b + at, w), acc[v]);
        }
    }
    return BODY(lanes_sum)(acc);
}

static int BODY(all_finite)(const float *x, int64_t n) {
    vf acc = v_zero(); /* finite * 0 = 0, anything else gives NaN and keeps it */
    for (int64_t j = 0; j < n; j += VW) {
        int64_t w = n - j < VW ? n - j : VW;
        acc = v_add(acc, v_mul(v_load_n(x + j, w), v_zero()));
    }
    float lane[VW];
    v_store(lane, acc);
    for (int i = 0; i < VW; i++) {
        if (lane[i] != 0.0f) return 0;
    }
    return 1;
}

BODY_TABLE = {BODY_NAME,       BODY(gemm),      BODY(transpose),  BODY(softmax_cols),
              BODY(grad_cols), BODY(grad_rows), BODY(scale_rows), BODY(softmax_row),
              BODY(blend),     BODY(widen),     BODY(dot),        BODY(all_finite)};
