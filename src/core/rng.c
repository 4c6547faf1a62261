/* Keyed random numbers: Philox 4x32-10 over (seed, stream | a, b).
 *
 * The 64-bit key is the seed and stream mixed by an invertible hash of each, the 128-bit counter is (a, b).
 * There is no state, so nothing has to be saved for a resume and draws can be made in any order.
 * Not for cryptography. */
#include "core/rng.h"
#include <math.h>

void rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0],
             k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* The finalizer of splitmix64: a bijection, so two seeds never share a key within a stream. */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void block(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b, uint64_t out[2]) {
    uint64_t k = mix(seed + 0x9e3779b97f4a7c15u * ((uint64_t)stream + 1));
    const uint32_t key[2] = {(uint32_t)k, (uint32_t)(k >> 32)};
    const uint32_t counter[4] = {(uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b,
                                 (uint32_t)(b >> 32)};
    uint32_t w[4];
    rng_philox(counter, key, w);
    out[0] = (uint64_t)w[1] << 32 | w[0];
    out[1] = (uint64_t)w[3] << 32 | w[2];
}

uint64_t rng_bits(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b) {
    uint64_t w[2];
    block(seed, stream, a, b, w);
    return w[0];
}

double rng_uniform(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b) {
    return (double)(rng_bits(seed, stream, a, b) >> 11) * 0x1p-53;
}

double rng_normal(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b) {
    uint64_t w[2];
    block(seed, stream, a, b, w);
    double u = ((double)(w[0] >> 11) + 1.0) * 0x1p-53; /* (0, 1]: its logarithm is finite */
    double v = (double)(w[1] >> 11) * 0x1p-53;
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

/* High 64 bits of a 128-bit product, from 32-bit halves (ISO C has no 128-bit integer). */
static uint64_t multiply_high(uint64_t x, uint64_t y) {
    uint64_t xl = (uint32_t)x, xh = x >> 32, yl = (uint32_t)y, yh = y >> 32;
    uint64_t middle = xh * yl + (xl * yl >> 32);
    uint64_t low = xl * yh + (uint32_t)middle;
    return xh * yh + (middle >> 32) + (low >> 32);
}

uint64_t rng_below(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b, uint64_t n) {
    return multiply_high(rng_bits(seed, stream, a, b), n);
}

void rng_permutation(uint64_t seed, uint32_t stream, uint64_t a, int64_t n, int64_t *perm) {
    for (int64_t i = 0; i < n; i++) perm[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)rng_below(seed, stream, a, (uint64_t)i, (uint64_t)i + 1);
        int64_t t = perm[i];
        perm[i] = perm[j];
        perm[j] = t;
    }
}
