/* The table of lane loops for any processor, and the choice between the tables.
 *
 * The choice is made when a program is compiled and kept in it. This folder may not ask dev, which
 * makes the same choice for matrices from the same switch; the results do not depend on it. */
#define EXPR_LANES_TABLE expr_lanes__portable
#include "expr/expr_lanes_body.h"
#include "core/env.h"
#include <string.h>

const expr_lanes *expr_lanes__choose(void) {
#if defined(__x86_64__)
    const char *most = env_get(ENV_PACELINE_ISA);
    int limit = 2; /* "avx512", and what is above it, which adds nothing here */
    if (most && strcmp(most, "avx2") == 0) limit = 1;
    if (most && strcmp(most, "portable") == 0) limit = 0;
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (limit > 1 && avx2 && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return &expr_lanes__avx512;
    if (limit > 0 && avx2) return &expr_lanes__avx2;
#endif
    return &expr_lanes__portable;
}
