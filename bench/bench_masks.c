/* The time and bytes that block masks take, on one thread: masks of people's kinds, lengths up to 2^20.
 *
 * Build is what the mask itself reports: tables of captured arrays, analysis, runs in both directions, proofs. Wall is the
 * call seen from outside, first the very first one, then the best of several. Attention is timed by bench_flex.
 * Usage: bench_masks [REPEATS] */
#include "core/clock.h"
#include "core/rng.h"
#include "flex/blockmask.h"
#include "flex/mods.h"
#include <stdio.h>
#include <stdlib.h>

enum { LONG = 1 << 20, ANCHORS = 512 };
static int32_t doc[LONG], ids[LONG], anchor[ANCHORS];
static int repeats = 10;

static void must(err e) {
    if (!e) return;
    fprintf(stderr, "bench_masks: %s\n", err_text());
    exit(1);
}

static void measure(const char *label, const char *text, const expr_decl *decl,
                    const expr_value *value, int n, int64_t L, int64_t S) {
    const expr_env env = {value, 0, 0};
    double build = 1e30, wall = 1e30, first = 0;
    block_mask m = {0};
    expr *e;
    must(expr_compile(&e, EXPR_MASK, text, decl, n));
    for (int i = 0; i < repeats; i++) {
        arena *a;
        const block_mask_args args = {
            .mask = e, .env = &env, .batch = 1, .heads = 1, .q_len = L, .kv_len = S};
        must(arena_create(&a, "bench", 0));
        double t = clock_seconds();
        must(blockmask_build(&m, &args, a, NULL));
        t = (clock_seconds() - t) * 1e3;
        if (i == 0) first = t;
        if (t < wall) wall = t;
        if (m.build_ms < build) build = m.build_ms;
        arena_destroy(a);
    }
    printf("%-22s %8lld x %-8lld %8.3f %8.3f %8.3f %9zu %9zu %9lld %9lld %7lld\n", label,
           (long long)L, (long long)S, build, wall, first, m.bytes, m.peak_bytes, (long long)m.full,
           (long long)m.partial, (long long)m.undecided);
    expr_free(e);
}

static void of_gallery(const char *name, const expr_value *value, int64_t L, int64_t S) {
    const mod *m;
    must(mods_need(&m, name, EXPR_MASK));
    measure(name, m->text, m->capture, value, mods_captures(m), L, S);
}

static expr_value whole(int64_t v) { return (expr_value){.scalar.i = v}; }
static expr_value array(const int32_t *data, int64_t n) {
    return (expr_value){.type = DT_I32, .dim = {n}, .data = data};
}

int main(int argc, char **argv) {
    if (argc > 1) repeats = atoi(argv[1]) > 0 ? atoi(argv[1]) : repeats;
    for (int64_t i = 1; i < LONG; i++)
        doc[i] = doc[i - 1] + (rng_below(1, RNG_TEST, 1, (uint64_t)i, 1000) == 0);
    for (int64_t i = 0; i < LONG; i++) ids[i] = (int32_t)((int64_t)doc[i] * 7919 % 100003);
    for (int i = 0; i < ANCHORS; i++) anchor[i] = 3 + 7 * i + i % 5;
    const expr_decl both[] = {{"doc", EXPR_INT, 1}, {"w", EXPR_INT, 0}};
    const expr_value draft[] = {whole(4096), whole(16), array(anchor, ANCHORS)};
    const expr_value window[] = {whole(1024), whole(4)}, packed[] = {array(doc, LONG), whole(4096)};
    const expr_value unsorted[] = {array(ids, LONG)};
    printf("%-22s %19s %8s %8s %8s %9s %9s %9s %9s %7s\n", "mask, tiles of 128", "size", "build ms",
           "wall ms", "first", "bytes", "peak", "full", "partial", "counted");
    of_gallery("dflash", draft, ANCHORS * 16, 4096 + ANCHORS * 16);
    of_gallery("causal", NULL, 131072, 131072);
    of_gallery("causal", NULL, LONG, LONG);
    of_gallery("window", window, LONG, LONG);
    of_gallery("dilated", window, LONG, LONG);
    of_gallery("document", packed, LONG, LONG);
    of_gallery("document_causal", packed, LONG, LONG);
    measure("document, window", "doc[q] == doc[kv] && q >= kv && q - kv < w", both, packed, 2, LONG,
            LONG);
    measure("document, ids unsorted", "doc[q] == doc[kv]", both, unsorted, 1, 131072, 131072);
    measure("document, ids unsorted", "doc[q] == doc[kv]", both, unsorted, 1, LONG, LONG);
    return 0;
}
