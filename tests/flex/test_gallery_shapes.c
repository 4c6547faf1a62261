/* Every entry of the gallery in both input types over odd shapes: forward, LSE and all gradients against the definition.
 *
 * Usage: test_gallery_shapes [CASES]. Without an argument each entry runs once in fp32 and once in bf16, on shapes whose
 * definition is quick; with one, so many cases, a quarter of them of any size. Shapes and captured values are drawn anew
 * in each run, and what was covered is printed at the end. Every output may be twice as far from the double definition
 * as a dense fp32 implementation is on the same inputs, plus 1e-5 (widened bf16 included). Scores that weigh are rounded as
 * the largest LSE is: one such rounding more. Sums that may cancel, where dense is right by luck now and then: that and four
 * roundings of all their terms together. A capture that is not known here fails: a new entry says here
 * how it is drawn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn_dense.h"
#include "flex/mods.h"

static const int64_t lengths[] = {0, 1, 63, 64, 65, 127, 128, 129, 300, -1}; /* -1: any to 300 */
static const int64_t dims[] = {8, 16, 24, 40, 64, 72, 128, 136, 256};
static const int64_t ratios[] = {1, 3, 7, 8};
static const int32_t tiles[] = {0, 0, 16, 24, 64, 128};
enum { LENGTHS = 10, DIMS = 9, RATIOS = 4, QUICK = 4000000 };

typedef struct covered {
    int q_len[LENGTHS], kv_len[LENGTHS], dim[DIMS], v_dim[DIMS], ratio[RATIOS], batch[2], type[2];
    int sinks, with_empty_rows;
    int64_t empty_rows;
    double worst; /* largest share of what is allowed */
    const char *worst_of;
} covered;

/* What one case draws before its arrays: sizes that masks and scores share. */
typedef struct sizes {
    int64_t batch, heads, q_len, kv_len, longest;
    int64_t n, size, width, height, side, tile, times, rows, cols, rt, r, w, step, far, buckets;
    uint64_t seed;
} sizes;

static int pick(uint64_t seed, uint64_t stream, int n) {
    return (int)numbers_below(seed, stream, 0, n);
}

static sizes draw_sizes(const flex_problem *p, uint64_t seed) {
    sizes z = {.batch = p->batch,
               .heads = p->q_heads,
               .q_len = p->q_len,
               .kv_len = p->kv_len,
               .longest = p->q_len > p->kv_len ? p->q_len : p->kv_len,
               .seed = seed};
    z.n = pick(seed, 100, (int)p->kv_len + 1), z.size = 1 + pick(seed, 101, 17);
    z.side = 1 + 2 * pick(seed, 102, 3);
    z.width = z.side + pick(seed, 103, 16), z.height = z.side + pick(seed, 104, 16);
    z.rt = pick(seed, 105, 2), z.r = pick(seed, 106, 3), z.tile = 1 + pick(seed, 107, 16);
    z.times = 2 * z.rt + 1 + pick(seed, 108, 3), z.rows = 2 * z.r + 1 + pick(seed, 109, 3);
    z.cols = 2 * z.r + 1 + pick(seed, 110, 3);
    z.w = 1 + pick(seed, 111, 150), z.step = 1 + pick(seed, 112, 6);
    z.far = pick(seed, 113, 40), z.buckets = 1 + pick(seed, 114, 32);
    return z;
}

static int64_t scalar(const sizes *z, const char *name) {
    const struct {
        const char *name;
        int64_t value;
    } all[] = {{"n", z->n},       {"size", z->size},     {"width", z->width}, {"side", z->side},
               {"tile", z->tile}, {"height", z->height}, {"times", z->times}, {"rows", z->rows},
               {"cols", z->cols}, {"rt", z->rt},         {"r", z->r},         {"w", z->w},
               {"step", z->step}, {"far", z->far},       {"heads", z->heads}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, name)) return all[i].value;
    fail_msg("'%s' is a number that this test cannot draw", name);
    return 0;
}

/* How an array is drawn. Integers: low to low + count - 1, kept for some positions when in runs; truth: count in 100. */
typedef struct array_kind {
    const char *name;
    int64_t dim[2], low, count;
    int runs;
    float centre, spread; /* of floats */
} array_kind;

static array_kind find_array(const sizes *z, const char *name) {
    const int64_t blocks = z->q_len / z->size + 1, H = z->heads, longest = z->longest;
    const array_kind all[] = {
        {"prefix", {z->batch}, 0, z->kv_len + 1, 0, 0, 0},
        {"doc", {longest}, 0, 1000, 1, 0, 0},
        {"special", {longest}, 0, 7, 0, 0, 0},
        {"anchor", {blocks}, 0, z->n > 0 ? z->n : 1, 0, 0, 0},
        {"keep", {blocks}, 0, 70, 0, 0, 0},
        {"branch", {longest}, -1, 6, 1, 0, 0},
        {"ancestor", {z->q_len, z->kv_len - z->n}, 0, 40, 0, 0, 0},
        {"span", {longest}, -1, 4, 1, 0, 0},
        {"image", {z->q_len}, -1, z->kv_len / z->size + 2, 1, 0, 0},
        {"bucket", {2 * z->far + 1}, 0, z->buckets, 0, 0, 0},
        {"dist", {z->q_len, z->kv_len}, 0, 6, 0, 0, 0},
        {"kind", {z->q_len, z->kv_len}, 0, 3, 0, 0, 0},
        {"slope", {H}, 0, 0, 0, 0.0f, 0.05f},
        {"bias", {z->buckets, H}, 0, 0, 0, 0.0f, 1.0f},
        {"spatial", {6}, 0, 0, 0, 0.0f, 1.0f},
        {"edge", {3}, 0, 0, 0, 0.0f, 1.0f},
        {"temperature", {H}, 0, 0, 0, 1.0f, 0.3f},
        {"rate", {H}, 0, 0, 0, 0.1f, 0.05f},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, name)) return all[i];
    fail_msg("'%s' is an array that this test cannot draw", name);
    return all[0];
}

static void fill(const array_kind *k, expr_type type, uint64_t seed, int64_t n, void *data) {
    const uint64_t own = 200 + (uint64_t)*k->name * 5 + (uint64_t)k->name[1];
    const int64_t mean = 1 + numbers_below(seed, own, 0, 60);
    for (int64_t i = 0; i < n; i++) {
        uint64_t at = (uint64_t)i;
        int keep = k->runs && i > 0 && numbers_below(seed, own + 1000, at, mean) > 0;
        if (type == EXPR_BOOL) ((uint8_t *)data)[i] = numbers_below(seed, own, at, 100) < k->count;
        if (type == EXPR_INT)
            ((int32_t *)data)[i] = keep
                                       ? ((int32_t *)data)[i - 1]
                                       : (int32_t)(k->low + numbers_below(seed, own, at, k->count));
    }
    if (type == EXPR_FLOAT) {
        numbers_fill(data, n, seed, own, k->spread);
        for (int64_t i = 0; i < n; i++) ((float *)data)[i] += k->centre;
    }
}

/* Binds one capture; returns its elements, and memory to free in *owned (NULL for a number). */
static int64_t capture(const sizes *z, const expr_decl *d, expr_value *v, void **owned) {
    *v = (expr_value){.dim = {0}}, *owned = NULL;
    if (d->ndim == 0 && d->type == EXPR_FLOAT)
        v->scalar.f = 1.0f + (float)pick(z->seed, 115, 100) / 50.0f;
    else if (d->ndim == 0)
        v->scalar.i = scalar(z, d->name);
    if (d->ndim == 0) return 1;
    array_kind k = find_array(z, d->name);
    int64_t n = k.dim[0] * (d->ndim == 2 ? k.dim[1] : 1);
    *owned = calloc((size_t)n + 1, 4);
    if (!*owned) abort();
    fill(&k, d->type, z->seed, n, *owned);
    v->type = d->type == EXPR_FLOAT ? DT_F32 : d->type == EXPR_INT ? DT_I32 : DT_BOOL;
    v->dim[0] = k.dim[0], v->dim[1] = d->ndim == 2 ? k.dim[1] : 0;
    v->data = *owned;
    return n;
}

static void set_mask(attn_case *c, const mod *m, const sizes *z) {
    attn_mask *to = &c->mask;
    for (; to->n < mods_captures(m); to->n++) {
        void *owned;
        (void)capture(z, &m->capture[to->n], &to->value[to->n], &owned);
        if (owned) to->array[to->n_arrays++] = owned;
    }
    to->env = (expr_env){to->value, 0, 0};
    assert_ok(expr_compile(&to->e, EXPR_MASK, m->text, m->capture, to->n));
    c->p.mask = to->e, c->p.env = &to->env;
}

static void set_score(attn_case *c, const mod *m, const sizes *z) {
    attn_score *to = &c->score;
    for (; to->n < mods_captures(m); to->n++) {
        void *owned;
        int64_t n = capture(z, &m->capture[to->n], &to->value[to->n], &owned);
        if (owned) to->array[to->n_arrays++] = owned;
        to->decl[to->n] = m->capture[to->n];
        if (m->capture[to->n].type != EXPR_FLOAT) continue;
        to->elements[to->n] = n, to->n_learned += n, to->wanted |= 1u << to->n;
    }
    to->env = (expr_env){to->value, 0, 0};
    assert_ok(expr_compile(&to->e, EXPR_SCORE, m->text, m->capture, to->n));
    c->p.score = to->e, c->p.score_env = &to->env, c->p.score_grads = to->wanted;
}

/* The first draw whose definition takes no more than the limit of multiplications. */
static flex_problem draw(uint64_t seed, double limit, int at[6]) {
    for (uint64_t s = seed;; s += 7919) {
        const int n[6] = {LENGTHS, LENGTHS, DIMS, DIMS, RATIOS, 2};
        for (int i = 0; i < 6; i++) at[i] = pick(s, 10 + (uint64_t)i, n[i]);
        int64_t kv_heads = 1 + pick(s, 20, 2), L = lengths[at[0]], S = lengths[at[1]];
        flex_problem p = {.batch = 1 + at[5],
                          .q_heads = kv_heads * ratios[at[4]],
                          .kv_heads = kv_heads,
                          .q_len = L < 0 ? pick(s, 21, 301) : L,
                          .kv_len = S < 0 ? pick(s, 22, 301) : S,
                          .dim = dims[at[2]],
                          .v_dim = dims[at[3]],
                          .tile_q = tiles[pick(s, 23, 6)],
                          .tile_kv = tiles[pick(s, 24, 6)]};
        double cells = (double)(p.batch * p.q_heads) * (double)(p.q_len * p.kv_len);
        if (cells * (double)(p.dim + p.v_dim) <= limit) return p;
    }
}

static const mod *some_mod(uint64_t seed, expr_role role) {
    for (int i = 0;; i++) {
        const mod *m = mods_at((int)numbers_below(seed, 30, (uint64_t)i, mods_count()));
        if (m->role == role) return m;
    }
}

typedef struct judged {
    const attn_case *c;
    const mod *mask, *score;
    covered *seen;
    double rounding; /* of the scores that weigh: they are near the LSE */
} judged;

static void check_within(const judged *j, const char *what, const float *got, const float *dense,
                         const float *want, int64_t n, double bound) {
    const flex_problem *p = &j->c->p;
    double far = attn_far(got, want, n), most = 2 * attn_far(dense, want, n) + bound + j->rounding;
    if (far / most > j->seen->worst)
        j->seen->worst = far / most, j->seen->worst_of = (j->score ? j->score : j->mask)->name;
    if (!(far <= most))
        fail_msg("%s of %s with %s%s, B %lld H %lld/%lld L %lld S %lld D %lld Dv %lld %s tiles "
                 "%d x %d: %g, more than %g",
                 what, j->mask->name, j->score ? j->score->name : "no score",
                 p->sinks ? " and sinks" : "", (long long)p->batch, (long long)p->q_heads,
                 (long long)p->kv_heads, (long long)p->q_len, (long long)p->kv_len,
                 (long long)p->dim, (long long)p->v_dim, dtype_name(p->type), p->tile_q, p->tile_kv,
                 far, most);
}

static void check(const judged *j, const char *what, const float *got, const float *dense,
                  const float *want, int64_t n) {
    check_within(j, what, got, dense, want, n, 1e-5);
}

/* A sum that may cancel to much less than its terms, which add to terms[n]. */
static void check_sum(const judged *j, const char *what, const float *got, const float *dense,
                      const float *terms, const float *want, int64_t n) {
    check_within(j, what, got, dense, want, n,
                 1e-5 + (0x1p-22 + j->rounding) * attn_dense_terms(terms, want, n));
}

/* log(max(s, 0)) has the slope 1/s: at a cell just above 0 the rounding of s would be all that is seen. Keys without a sign and queries
 * of one sign each make s a sum without cancelling, which is right to its last bits on either side of 0. */
static void without_cancelling(const attn_case *c, uint64_t seed) {
    const int64_t dim = c->p.dim;
    for (int64_t i = 0; i < (c->nq + c->nk) * dim; i++) {
        const int64_t at = i < c->nq * dim ? i : i - c->nq * dim;
        const int down = i < c->nq * dim && numbers_below(seed, 33, (uint64_t)(at / dim), 2);
        void *x = i < c->nq * dim ? c->q : c->k;
        if (c->p.type == DT_F32)
            ((float *)x)[at] = (down ? -1.0f : 1.0f) * fabsf(((float *)x)[at]);
        else
            ((bf16 *)x)[at] = (bf16)((((bf16 *)x)[at] & 0x7fff) | (down ? 0x8000 : 0));
    }
}

static void check_all(judged *j, dev *d) {
    const attn_case *c = j->c;
    const flex_problem *p = &c->p;
    attn_result got = attn_run(c, d), want = attn_reference(c), near = attn_dense_run(c);
    for (int64_t i = 0; i < c->nq; i++)
        if (isfinite(want.lse[i]))
            j->rounding = fmax(j->rounding, 0x1p-23 * fabs((double)want.lse[i]));
    check(j, "o", got.o, near.o, want.o, c->nq * p->v_dim);
    check(j, "lse", got.lse, near.lse, want.lse, c->nq);
    check_sum(j, "dq", got.dq, near.dq, near.dq_terms, want.dq, c->nq * p->dim);
    check_sum(j, "dk", got.dk, near.dk, near.dk_terms, want.dk, c->nk * p->dim);
    check(j, "dv", got.dv, near.dv, want.dv, c->nk * p->v_dim);
    for (int64_t k = 0, at = 0; k < c->score.n; at += c->score.elements[k++])
        check_sum(j, c->score.decl[k].name, got.learned + at, near.learned + at,
                  near.learned_terms + at, want.learned + at, c->score.elements[k]);
    if (c->sinks)
        check_sum(j, "sinks", got.d_sinks, near.d_sinks, near.sinks_terms, want.d_sinks,
                  p->q_heads);
    int64_t empty = 0;
    for (int64_t i = 0; i < c->nq; i++) {
        if (c->sinks || want.lse[i] != -INFINITY) continue; /* a sink may drown what a row sees */
        empty++;
        for (int64_t e = 0; e < p->v_dim; e++) assert_true(got.o[i * p->v_dim + e] == 0.0f);
        for (int64_t e = 0; e < p->dim; e++) assert_true(got.dq[i * p->dim + e] == 0.0f);
    }
    j->seen->empty_rows += empty, j->seen->with_empty_rows += empty > 0;
    attn_result_free(&got), attn_result_free(&want), attn_result_free(&near);
}

static void one_case(const mod *entry, dtype type, uint64_t seed, double limit, covered *seen,
                     dev *d) {
    int at[6];
    attn_case c;
    memset(&c, 0, sizeof c);
    judged j = {&c, entry, NULL, seen, 0};
    if (entry->role == EXPR_SCORE)
        j.mask = some_mod(seed, EXPR_MASK), j.score = entry;
    else if (pick(seed, 31, 3) == 0)
        j.score = some_mod(seed, EXPR_SCORE);
    c.p = draw(seed, limit, at);
    c.p.type = type;
    sizes z = draw_sizes(&c.p, seed);
    set_mask(&c, j.mask, &z);
    if (j.score) set_score(&c, j.score, &z);
    c.nq = c.p.batch * c.p.q_heads * c.p.q_len, c.nk = c.p.batch * c.p.kv_heads * c.p.kv_len;
    c.q = attn_tensor(type, c.nq * c.p.dim, seed, 1);
    c.k = attn_tensor(type, c.nk * c.p.dim, seed, 2);
    if (j.score && strcmp(j.score->name, "log_relu") == 0) without_cancelling(&c, seed);
    c.v = attn_tensor(type, c.nk * c.p.v_dim, seed, 3);
    c.d_o = numbers_new(c.nq * c.p.v_dim, seed, 4, 1.0f);
    c.d_lse = numbers_new(c.nq, seed, 5, 1.0f);
    if (pick(seed, 32, 4) == 0) c.p.sinks = c.sinks = numbers_new(c.p.q_heads, seed, 6, 1.0f);
    check_all(&j, d);
    seen->q_len[at[0]]++, seen->kv_len[at[1]]++, seen->dim[at[2]]++, seen->v_dim[at[3]]++;
    seen->ratio[at[4]]++, seen->batch[at[5]]++, seen->type[type == DT_BF16]++;
    seen->sinks += c.sinks != NULL;
    attn_case_free(&c);
}

static void print_counts(const char *what, const int *count, const int64_t *of, int n) {
    printf("%s:", what);
    for (int i = 0; i < n; i++)
        if (of[i] < 0)
            printf("  other %d", count[i]);
        else
            printf("  %lld %d", (long long)of[i], count[i]);
    printf("\n");
}

static void every_entry_equals_the_definition(void **state) {
    const long wanted = *(const long *)*state;
    const long cases = wanted > 0 ? wanted : 2 * mods_count();
    uint64_t seed = numbers_seed();
    covered seen = {.worst = 0};
    dev *d = attn_dev(2);
    for (long i = 0; i < cases; i++) {
        double limit = wanted > 0 && i / (2 * mods_count()) % 4 == 3 ? INFINITY : QUICK;
        one_case(mods_at((int)(i / 2) % mods_count()), i % 2 ? DT_BF16 : DT_F32,
                 seed + (uint64_t)i * 1000003, limit, &seen, d);
    }
    dev_close(d);
    static const int64_t batches[] = {1, 2};
    printf("%ld cases: fp32 %d, bf16 %d; with sinks %d; with empty rows %d (%lld rows)\n", cases,
           seen.type[0], seen.type[1], seen.sinks, seen.with_empty_rows,
           (long long)seen.empty_rows);
    print_counts("L", seen.q_len, lengths, LENGTHS),
        print_counts("S", seen.kv_len, lengths, LENGTHS);
    print_counts("D", seen.dim, dims, DIMS), print_counts("Dv", seen.v_dim, dims, DIMS);
    print_counts("heads per kv head", seen.ratio, ratios, RATIOS);
    print_counts("B", seen.batch, batches, 2);
    printf("nearest to its bound: %.0f %% of it, %s\n", 100 * seen.worst,
           seen.worst_of ? seen.worst_of : "none");
}

int main(int argc, char **argv) {
    long cases = argc > 1 ? strtol(argv[1], NULL, 10) : 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(every_entry_equals_the_definition, &cases)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
