/* Keyed random numbers without hidden state.
 *
 * A draw depends on (seed, stream, index) alone and survives any change of thread, rank or resume point.
 * rng_bits is Philox 4x32-10 (Salmon et al., 2011). Not for cryptography. */
#ifndef CORE_RNG_H
#define CORE_RNG_H
#include <stdint.h>

enum { RNG_INIT = 1, RNG_ANCHORS, RNG_SHUFFLE, RNG_DATA, RNG_SAMPLE, RNG_TEST }; /* streams */
/* 64 random bits for a key (seed, stream) and counter (a, b). */
uint64_t rng_bits(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b);
double rng_uniform(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b); /* [0, 1) */
double rng_normal(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b);
/* 0..n-1 without modulo bias worth speaking of (multiply-shift on 64 bits); n > 0. */
uint64_t rng_below(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b, uint64_t n);
/* perm[0..n-1] = a permutation that depends on (seed, stream, a) alone. */
void rng_permutation(uint64_t seed, uint32_t stream, uint64_t a, int64_t n, int64_t *perm);
/* The generator itself: one block of four words for a counter and a key. */
void rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#endif
