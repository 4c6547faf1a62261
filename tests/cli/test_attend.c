/* `paceline attend` with scores and sinks: what it writes, and what it says to bad input.
 *
 * The program's tiles are compared with its own plain definition (PACELINE_REFERENCE=1) through the files that both
 * write; names and shapes of gradients follow the captured values. */
#include "io/safetensors.h"
#include "support/files.h"
#include "support/numbers.h"
#include "support/run.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { B = 2, HQ = 4, HKV = 2, L = 70, S = 85, D = 16 };

static files_dir dir;
static run_result r;
static char in[600], out[600], plain[600];
static float q[B * HQ * L * D], k[B * HKV * S * D], v[B * HKV * S * D], go[B * HQ * L * D];
static float slope[HQ], rel[HQ * 9], sink[HQ];
static int32_t doc[S];

#define RUN(env, ...) run_program(&r, env, (const char *const[]){__VA_ARGS__, NULL})
#define ATTEND(...)   RUN(NULL, "attend", "--in", in, __VA_ARGS__)

static void expect(int code, const char *text) {
    if (r.code != code || !strstr(r.text, text))
        fail_msg("exit %d, wanted %d and '%s':\n%s", r.code, code, text, r.text);
}

static int begin(void **state) {
    float *const all[] = {q, k, v, go, slope, rel, sink};
    const size_t n[] = {sizeof q,     sizeof k,   sizeof v,   sizeof go,
                        sizeof slope, sizeof rel, sizeof sink};
    (void)state;
    const uint64_t seed = numbers_seed();
    for (int t = 0; t < 7; t++)
        numbers_fill(all[t], (int64_t)(n[t] / sizeof(float)), seed, (uint64_t)t,
                     t == 4 ? 0.1f : 1.0f);
    for (int i = 0; i < S; i++) doc[i] = i / 30;
    const tensor t[] = {{"q", DT_F32, 4, {B, HQ, L, D}, q},  {"k", DT_F32, 4, {B, HKV, S, D}, k},
                        {"v", DT_F32, 4, {B, HKV, S, D}, v}, {"do", DT_F32, 4, {B, HQ, L, D}, go},
                        {"slope", DT_F32, 1, {HQ}, slope},   {"rel", DT_F32, 2, {HQ, 9}, rel},
                        {"sink", DT_F32, 1, {HQ}, sink},     {"doc", DT_I32, 1, {S}, doc}};
    dir = files_begin();
    snprintf(in, sizeof in, "%s", files_at(&dir, "in.safetensors"));
    snprintf(out, sizeof out, "%s", files_at(&dir, "out.safetensors"));
    snprintf(plain, sizeof plain, "%s", files_at(&dir, "plain.safetensors"));
    files_must(!safetensors_write(in, t, 8, NULL, 0), in);
    return 0;
}

static int end(void **state) {
    (void)state;
    files_end(&dir);
    return 0;
}

/* ---- sums over cells, which may cancel to much less than their terms ---- */

/* Sizes of the terms of each gradient by a captured value or a sink, each times 1 + its score (a weight is rounded as its score is),
 * added; over the score below with x = 0.25 and n = 3. */
typedef struct terms {
    double x[1], slope[HQ], rel[HQ * 9], sink[HQ];
} terms;

static double dot(const float *a, const float *b) {
    double sum = 0;
    for (int e = 0; e < D; e++) sum += (double)a[e] * (double)b[e];
    return sum;
}
static double dot_of_sizes(const float *a, const float *b) {
    double sum = 0;
    for (int e = 0; e < D; e++) sum += fabs((double)a[e] * (double)b[e]);
    return sum;
}

/* The element of rel that query i and key j take. */
static int place_of(int h, int i, int j) {
    const int by = i - j + 4;
    return h * 9 + (by < 0 ? 0 : by > 8 ? 8 : by);
}

static void add_row(terms *t, int b, int h, int i) {
    const float *qi = q + ((b * HQ + h) * L + i) * D, *goi = go + ((b * HQ + h) * L + i) * D;
    const int first = (b * HKV + h / (HQ / HKV)) * S, n = i + 3 < S ? i + 4 : S; /* keys seen */
    double s[S], score[S], w[S], all = exp((double)sink[h]), row = 0;
    for (int j = 0; j < n; j++) {
        s[j] = dot(qi, k + (first + j) * D) / 4; /* √D */
        score[j] = s[j] * 1.25 + (double)slope[h] * (j - i) + (double)rel[place_of(h, i, j)];
        w[j] = exp(score[j]);
        all += w[j];
    }
    /* do·o, whose terms a row's gradients all hold, is no larger than the mean of the keys' do·v. */
    for (int j = 0; j < n; j++) row += w[j] / all * dot_of_sizes(goi, v + (first + j) * D);
    for (int j = 0; j < n; j++) {
        const double both = dot_of_sizes(goi, v + (first + j) * D) + row,
                     size = w[j] / all * both * (1 + fabs(score[j]));
        t->x[0] += size * fabs(s[j]);
        t->slope[h] += size * abs(j - i);
        t->rel[place_of(h, i, j)] += size;
    }
    t->sink[h] += exp((double)sink[h]) / all * row * (1 + fabs((double)sink[h]));
}

/* 1e-6 of the terms is a few roundings of every one in the same direction. */
static void compare_sums(const tensor *a, const tensor *b, const double *size) {
    const float *x = a->data, *y = b->data;
    assert_int_equal(tensor_count(a), tensor_count(b));
    for (int64_t i = 0; i < tensor_count(a); i++) {
        const double far = fabs((double)x[i] - (double)y[i]);
        if (!(far <= 1e-6 * size[i]))
            fail_msg("%s[%d]: %g and %g, terms of %g", a->name, (int)i, (double)x[i], (double)y[i],
                     size[i]);
    }
}

static void compare(const tensor *a, const tensor *b) {
    const float *x = a->data, *y = b->data;
    double far = 0, size = 1;
    assert_int_equal(a->ndim, b->ndim);
    assert_int_equal(tensor_count(a), tensor_count(b));
    for (int64_t i = 0; i < tensor_count(a); i++) {
        if (x[i] == y[i]) continue;
        far = fmax(far, fabs((double)x[i] - (double)y[i]));
        size = fmax(size, fabs((double)y[i]));
    }
    if (!(far < 2e-5 * size)) fail_msg("%s is %g from the definition", a->name, far);
}

static void gradients_are_written_by_name(void **state) {
    (void)state;
    static const char *const names[] = {"o",   "lse",     "dq",    "dk",     "dv",
                                        "d_x", "d_slope", "d_rel", "d_sinks"};
    static const char *const reference[] = {"PACELINE_REFERENCE=1", NULL};
    const char *score =
        "s * (1.0 + x) + slope[h] * float(kv - q) + rel[h, clamp(q - kv + 4, 0, 8)]";
    ATTEND("--mask", "kv <= q + n && doc[kv] >= 0", "--score", score, "--let", "x=0.25", "--let",
           "n=3", "--sinks", "sink", "--backward", "--out", out);
    expect(0, "backward");
    RUN(reference, "attend", "--in", in, "--mask", "kv <= q + n && doc[kv] >= 0", "--score", score,
        "--let", "x=0.25", "--let", "n=3", "--sinks", "sink", "--backward", "--out", plain);
    expect(0, "backward");
    st_file *a, *b;
    assert_int_equal(safetensors_open(&a, out), ERR_OK);
    assert_int_equal(safetensors_open(&b, plain), ERR_OK);
    assert_int_equal(safetensors_count(a), 9);
    static terms t;
    const double *const sums[9] = {[5] = t.x, t.slope, t.rel, t.sink};
    for (int i = 0; i < B * HQ * L; i++) add_row(&t, i / L / HQ, i / L % HQ, i % L);
    for (int i = 0; i < 9; i++) {
        const tensor *x = safetensors_find(a, names[i]), *y = safetensors_find(b, names[i]);
        if (!x || !y) fail_msg("%s is missing", names[i]);
        if (sums[i])
            compare_sums(x, y, sums[i]);
        else
            compare(x, y);
    }
    const tensor *d_rel = safetensors_find(a, "d_rel"), *x = safetensors_find(a, "d_x");
    assert_true(d_rel->ndim == 2 && d_rel->dim[0] == HQ && d_rel->dim[1] == 9);
    assert_true(x->ndim == 1 && x->dim[0] == 1);
    safetensors_close(a), safetensors_close(b);
    ATTEND("--score", "s + rel[h, 0]", "--out", out);
    assert_int_equal(safetensors_open(&a, out), ERR_OK);
    assert_int_equal(safetensors_count(a), 2); /* forward alone */
    safetensors_close(a);
}

static void scores_point_at_the_fault(void **state) {
    (void)state;
    ATTEND("--score", "s = 3");
    expect(2, "score, line 1, column 3: `=` names a value in a `let` line only; write `==`");
    ATTEND("--score", "s + (q - kv) / 3");
    expect(2, "`/` divides floats and both sides are integers");
    ATTEND("--score", "s + slop[h]");
    expect(2, "unknown name `slop`; did you mean");
    ATTEND("--score", "s + rel[h]");
    expect(2, "`rel` has 2 dimensions and gets 1 index");
    ATTEND("--score", "s + slope[s]");
    expect(2, "an index has to be an integer and this is a float");
    ATTEND("--score", "q < kv");
    expect(2, "score");
    ATTEND("--mask", "s > 0.0");
    expect(2, "`s` is the score, which a mask cannot see");
    ATTEND("--score", "s", "--score-mod", "softcap");
    expect(2, "choose one");
    ATTEND("--score-mod", "softcup", "--let", "cap=3.0");
    expect(2, "'softcup' is no score of the gallery");
    ATTEND("--score", "s", "--mask", "kv <= q", "--let", "w=3");
    expect(2, "neither the mask nor the score uses `w`");
    ATTEND("--score", "s", "--let", "w=3");
    expect(2, "the score does not use `w`");
}

static void values_are_refused_with_the_cell(void **state) {
    (void)state;
    ATTEND("--score", "q == 7 && h == 2 ? s / 0.0 : s", "--mask", "kv >= 5");
    expect(1, "b 0, h 2, q 7, kv");
    ATTEND("--score", "s + rel[h, q]");
    expect(1, "the score reads `rel` outside it");
    ATTEND("--score", "s > -1.0e9 ? s + rel[h, q] : s");
    expect(0, "a load left its array and gave 0, first at b 0, h 0, q 9, kv 0");
    ATTEND("--sinks", "absent");
    expect(1, "'absent', which --sinks names, is missing");
    ATTEND("--sinks", "rel");
    expect(1, "rel");
    ATTEND("--sinks", "doc");
    expect(1, "sinks are floats");
    RUN(NULL, "attend", "--random", "1,1,1,8,8,8", "--sinks", "sink");
    expect(2, "needs --in");
    ATTEND("--sinks", "sink", "--let", "sinks=0.5", "--score", "s * sinks", "--backward");
    expect(2, "would both be written as d_sinks");
    ATTEND("--sinks", "sink", "--let", "sinks=0.5", "--score", "s * sinks");
    expect(0, "mean lse");
    ATTEND("--mask", "q != 3", "--scale", "1e38", "--score-mod", "casual");
    expect(2, "'casual' is no score of the gallery");
    ATTEND("--score-mod", "causal");
    expect(2, "'causal' is a mask of the gallery, and a score is needed here");
    ATTEND("--mask", "b == 1 && h > 0 && q > 4", "--scale", "3e38");
    expect(0, "scores are not finite in ");
    assert_non_null(strstr(r.text, " of 560 rows, first b 1, h 1, q 5; look for NaN"));
}

/* A library that cannot be opened is an error of what would use it: these look for none, which would take longer than they do. */
static void attention_and_masks_open_no_matrix_library(void **state) {
    (void)state;
    static const char *const absent[] = {"PACELINE_BLAS=/absent.so", NULL};
    RUN(absent, "attend", "--random", "1,1,1,8,8,8", "--backward");
    expect(0, "mean lse");
    RUN(absent, "mask", "kv <= q", "--q", "8", "--kv", "8");
    expect(0, "1 partial");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_written_by_name),
        cmocka_unit_test(scores_point_at_the_fault),
        cmocka_unit_test(values_are_refused_with_the_cell),
        cmocka_unit_test(attention_and_masks_open_no_matrix_library),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
