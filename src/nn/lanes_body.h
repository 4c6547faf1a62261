/* The text of the row primitives, compiled once per instruction set (lanes.c, lanes_avx2.c, lanes_avx512.c).
 *
 * Vectors are the compiler's own sixteen-float type, which it lowers to what the flags allow. They are never passed by
 * value between functions, so no calling convention depends on the flags. A tail shorter than sixteen is copied to a
 * zeroed vector, computed alike and cut. The includer defines LANES_TABLE, the table's name. */
#include "nn/lanes.h"
#include <math.h>
#include <string.h>

enum { W = 16, SUM_BLOCK = 1024 };
typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
#define INLINE static inline __attribute__((always_inline))

/* n lanes (1..16) of p; the rest are 0. */
INLINE void load(vf *v, const float *p, int64_t n) {
    if (n >= W) {
        memcpy(v, p, sizeof *v);
    } else {
        *v = (vf){0};
        memcpy(v, p, (size_t)n * sizeof(float));
    }
}
INLINE void store(float *p, const vf *v, int64_t n) {
    if (n >= W)
        memcpy(p, v, sizeof *v);
    else
        memcpy(p, v, (size_t)n * sizeof(float));
}
/* Sum of the lanes, halves first: one order for every instruction set. */
INLINE float reduce(const vf *v) {
    float t[W];
    memcpy(t, v, sizeof t);
    for (int h = W / 2; h; h /= 2)
        for (int i = 0; i < h; i++) t[i] += t[i + h];
    return t[0];
}
INLINE void select_lanes(vf *out, const vi *mask, const vf *yes, const vf *no) {
    *out = (vf)((*mask & (vi)*yes) | (~*mask & (vi)*no));
}

/* exp for x clamped to [-87, 88], within 2 ulp; NaN stays NaN. 2^k is put into the exponent bits; the remainder
 * r = x - k ln 2 (two parts of ln 2, the first product exact) goes through a degree-7 polynomial. */
INLINE void exp_lanes(vf *x) {
    const vf lo = (vf){0} - 87.0f, hi = (vf){0} + 88.0f;
    vi low = *x<lo, high = *x> hi;
    select_lanes(x, &low, &lo, x);
    select_lanes(x, &high, &hi, x);
    vf t = *x * 1.44269504088896341f +
           12582912.0f; /* 1.5 * 2^23: the sum's low bits are the nearest integer */
    vf k = t - 12582912.0f;
    vi e = ((vi)t - 0x4b400000) << 23;
    vf r = *x - k * 0.693359375f + k * 2.12194440e-4f;
    vf p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    *x = (vf)((vi)p + e);
}
INLINE void sigmoid_lanes(vf *x) {
    *x = -*x;
    exp_lanes(x);
    *x = 1.0f / (1.0f + *x);
}

static float sumsq(const float *x, int64_t n) {
    vf acc = {0}, v;
    for (int64_t i = 0; i < n; i += W) {
        load(&v, x + i, n - i);
        acc += v * v;
    }
    return reduce(&acc);
}

static float dot3(const float *a, const float *b, const float *w, int64_t n) {
    vf acc = {0}, va, vb, vw;
    for (int64_t i = 0; i < n; i += W) {
        load(&va, a + i, n - i);
        load(&vb, b + i, n - i);
        if (w) {
            load(&vw, w + i, n - i);
            va *= vw;
        }
        acc += va * vb;
    }
    return reduce(&acc);
}

static void scale(float *y, const float *x, float s, const float *w, int64_t n) {
    vf v, vw;
    for (int64_t i = 0; i < n; i += W) {
        load(&v, x + i, n - i);
        v *= s;
        if (w) {
            load(&vw, w + i, n - i);
            v *= vw;
        }
        store(y + i, &v, n - i);
    }
}

static void norm_back(float *dx, const float *dy, const float *w, const float *x, float rstd,
                      float c, int add, int64_t n) {
    vf g, vw, vx, old;
    for (int64_t i = 0; i < n; i += W) {
        load(&g, dy + i, n - i);
        load(&vx, x + i, n - i);
        if (w) {
            load(&vw, w + i, n - i);
            g *= vw;
        }
        g = g * rstd - vx * c;
        if (add) {
            load(&old, dx + i, n - i);
            g += old;
        }
        store(dx + i, &g, n - i);
    }
}

static void muladd(float *acc, const float *a, const float *b, float s, int64_t n) {
    vf v, va, vb;
    for (int64_t i = 0; i < n; i += W) {
        load(&v, acc + i, n - i);
        load(&va, a + i, n - i);
        load(&vb, b + i, n - i);
        v += va * vb * s;
        store(acc + i, &v, n - i);
    }
}

static void rotate(float *a, float *b, const float *c, const float *s, float sign, int64_t n) {
    vf va, vb, vc, vs;
    for (int64_t i = 0; i < n; i += W) {
        load(&va, a + i, n - i);
        load(&vb, b + i, n - i);
        load(&vc, c + i, n - i);
        load(&vs, s + i, n - i);
        vs *= sign;
        vf ra = va * vc - vb * vs, rb = vb * vc + va * vs;
        store(a + i, &ra, n - i);
        store(b + i, &rb, n - i);
    }
}

static void silu_mul(float *y, const float *g, const float *u, int64_t n) {
    vf vg, vu, s;
    for (int64_t i = 0; i < n; i += W) {
        load(&vg, g + i, n - i);
        load(&vu, u + i, n - i);
        s = vg;
        sigmoid_lanes(&s);
        vu *= vg * s;
        store(y + i, &vu, n - i);
    }
}

static void silu_back(float *dg, float *du, const float *dy, const float *g, const float *u,
                      int64_t n) {
    vf vy, vg, vu, s;
    for (int64_t i = 0; i < n; i += W) {
        load(&vy, dy + i, n - i);
        load(&vg, g + i, n - i);
        load(&vu, u + i, n - i);
        s = vg;
        sigmoid_lanes(&s);
        vf a = vy * (vg * s), b = vy * vu * (s * (1.0f + vg * (1.0f - s)));
        store(du + i, &a, n - i);
        store(dg + i, &b, n - i);
    }
}

static void add(float *y, const float *x, int64_t n) {
    vf a, b;
    for (int64_t i = 0; i < n; i += W) {
        load(&a, y + i, n - i);
        load(&b, x + i, n - i);
        a += b;
        store(y + i, &a, n - i);
    }
}

static float max_lanes(const float *x, int64_t n, int *nan) {
    const vf floor_ = (vf){0} - INFINITY;
    vf m = floor_, v;
    vi bad = {0};
    int64_t i = 0;
    for (; i + W <= n; i += W) {
        load(&v, x + i, W);
        bad |= v != v;
        vi more = v > m;
        select_lanes(&m, &more, &v, &m);
    }
    float t[W], best = -INFINITY;
    int32_t b[W];
    memcpy(t, &m, sizeof t);
    memcpy(b, &bad, sizeof b);
    *nan = 0;
    for (int j = 0; j < W; j++) {
        if (t[j] > best) best = t[j];
        if (b[j]) *nan = 1;
    }
    for (; i < n; i++) {
        if (x[i] > best) best = x[i];
        if (x[i] != x[i]) *nan = 1;
    }
    return best;
}

static double exp_sum(float *x, float m, int64_t n) {
    double total = 0;
    for (int64_t b = 0; b < n; b += SUM_BLOCK) {
        int64_t end = b + SUM_BLOCK < n ? b + SUM_BLOCK : n;
        vf acc = {0}, v;
        for (int64_t i = b; i < end; i += W) {
            int64_t k = end - i;
            load(&v, x + i, k);
            v -= m;
            exp_lanes(&v);
            store(x + i, &v, k);
            if (k < W) load(&v, x + i, k); /* lanes past the end are 0, not exp(0 - m) */
            acc += v;
        }
        total += (double)reduce(&acc);
    }
    return total;
}

static void axpby(float *y, float a, const float *x, float b, int64_t n) {
    vf vx, vy;
    for (int64_t i = 0; i < n; i += W) {
        load(&vx, x + i, n - i);
        load(&vy, y + i, n - i);
        vy = vx * a + vy * b;
        store(y + i, &vy, n - i);
    }
}

const lanes LANES_TABLE = {
    .sumsq = sumsq,
    .dot3 = dot3,
    .scale = scale,
    .norm_back = norm_back,
    .muladd = muladd,
    .rotate = rotate,
    .silu_mul = silu_mul,
    .silu_back = silu_back,
    .add = add,
    .max = max_lanes,
    .exp_sum = exp_sum,
    .axpby = axpby,
};
