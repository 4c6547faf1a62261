/* Time and bytes of block masks: interval analysis beside brute force, on one CPU core, from one run.
 *
 * For each mask: tiles by kind, best build time of several (tables of captured arrays and both directions of
 * runs), bytes kept and at most. Brute force evaluates every cell and is run on a smaller square of the same
 * mask; its time per cell times the cells is what the whole would take. Usage: bench_blockmask */
#include "core/clock.h"
#include "core/rng.h"
#include "flex/blockmask.h"
#include <stdio.h>
#include <stdlib.h>

enum { LONG = 1048576, SMALL = 2048, REPEATS = 7 };

static int32_t doc[LONG];

static void must(err e) {
    if (!e) return;
    fprintf(stderr, "bench_blockmask: %s\n", err_text());
    exit(1);
}

/* Documents of 100 to 3,999 tokens, one after another. */
static void fill_documents(void) {
    int64_t at = 0;
    for (int32_t d = 0; at < LONG; d++) {
        int64_t n = 100 + (int64_t)rng_below(1, RNG_TEST, (uint64_t)d, 0, 3900);
        for (int64_t i = 0; i < n && at < LONG; i++) doc[at++] = d;
    }
}

static void bench(const char *name, const char *text, int64_t n, int with_documents) {
    const expr_decl decl = {"doc", EXPR_INT, 1};
    const expr_value value = {.type = DT_I32, .dim = {LONG}, .data = doc};
    const expr_env env = {.values = &value};
    expr *mask = NULL;
    must(expr_compile(&mask, EXPR_MASK, text, &decl, with_documents));
    block_mask_args args = {.mask = mask, .env = &env, .batch = 1, .heads = 1};
    args.q_len = args.kv_len = n;
    block_mask m = {0};
    double best = 1e9;
    for (int r = 0; r < REPEATS; r++) {
        arena *a = NULL;
        must(arena_create(&a, "bench", 0));
        must(blockmask_build(&m, &args, a, NULL));
        if (m.build_ms < best) best = m.build_ms;
        arena_destroy(a);
    }
    args.q_len = args.kv_len = SMALL;
    uint8_t *kinds = malloc((size_t)(SMALL / 128) * (SMALL / 128));
    if (!kinds) exit(1);
    double t = clock_seconds();
    must(blockmask_brute(&args, kinds));
    double brute = (clock_seconds() - t) / ((double)SMALL * SMALL) * (double)n * (double)n;
    printf(
        "%-22s %8lld  %7lld full %6lld partial  %8.3f ms  %7zu B, %8zu B at most  brute %8.0f s\n",
        name, (long long)n, (long long)m.full, (long long)m.partial, best, m.bytes, m.peak_bytes,
        brute);
    free(kinds);
    expr_free(mask);
}

int main(void) {
    fill_documents();
    printf("block masks of n x n cells in tiles of 128 x 128, one thread, best of %d\n", REPEATS);
    bench("causal", "kv <= q", 131072, 0);
    bench("window of 1024", "kv <= q && q - kv < 1024", LONG, 0);
    bench("documents and causal", "doc[q] == doc[kv] && kv <= q", LONG, 1);
    return 0;
}
