/* Random inputs and distances for tests that compare fast code with a plain definition.
 *
 * The seed differs in each run (clock and process) and is printed; PACELINE_TEST_SEED gives it again, to repeat a failure.
 * Distances are relative to the largest wanted value: near-zero entries of a large result are not judged alone.
 * Header only: a test program includes what it needs. */
#ifndef SUPPORT_NUMBERS_H
#define SUPPORT_NUMBERS_H
#include "core/rng.h"
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* PACELINE_TEST_SEED as a number. Anything but digits ends the test program: a seed that is misread would repeat nothing. */
static inline uint64_t numbers_given_seed(const char *text) {
    errno = 0;
    const unsigned long long seed = strtoull(text, NULL, 10);
    if (*text && !text[strspn(text, "0123456789")] && !errno) return seed;
    fflush(stdout);
    fprintf(stderr,
            "PACELINE_TEST_SEED is '%s'; it must be a decimal number below 2^64, as tests print "
            "it behind 'seed'\n",
            text);
    fflush(stderr);
    _exit(2);
}
static inline uint64_t numbers_seed(void) {
    const char *given = getenv("PACELINE_TEST_SEED");
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t seed = (uint64_t)t.tv_sec * 1000003u + (uint64_t)t.tv_nsec + (uint64_t)getpid();
    if (given) seed = numbers_given_seed(given);
    printf("seed %llu\n", (unsigned long long)seed);
    fflush(stdout); /* before whatever ends the program */
    return seed;
}
/* n normal numbers times size; stream tells buffers of one seed apart. */
static inline void numbers_fill(float *x, int64_t n, uint64_t seed, uint64_t stream, float size) {
    for (int64_t i = 0; i < n; i++)
        x[i] = size * (float)rng_normal(seed, RNG_TEST, stream, (uint64_t)i);
}
static inline float *numbers_new(int64_t n, uint64_t seed, uint64_t stream, float size) {
    float *x = malloc((size_t)(n > 0 ? n : 1) * sizeof *x);
    if (!x) abort();
    numbers_fill(x, n, seed, stream, size);
    return x;
}
static inline void numbers_poison(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = NAN;
}
static inline float *numbers_poisoned(int64_t n) {
    float *x = malloc((size_t)(n > 0 ? n : 1) * sizeof *x);
    if (!x) abort();
    numbers_poison(x, n);
    return x;
}
static inline int64_t numbers_below(uint64_t seed, uint64_t stream, uint64_t i, int64_t n) {
    return (int64_t)rng_below(seed, RNG_TEST, stream, i, (uint64_t)n);
}
/* Largest |got - want| over the largest |want|; a NaN anywhere gives infinity. */
static inline double numbers_distance(const float *got, const double *want, int64_t n) {
    double size = 0, far = 0;
    for (int64_t i = 0; i < n; i++) {
        double e = fabs((double)got[i] - want[i]);
        if (!(e <= INFINITY)) return INFINITY;
        if (e > far) far = e;
        if (fabs(want[i]) > size) size = fabs(want[i]);
    }
    return size > 0 ? far / size : far;
}

#endif
