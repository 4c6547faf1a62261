/* Bad input through the public header: a code and one sentence each, and nothing half made.
 *
 * What flex and expr refuse is tested with them; here is what only the public library checks, and that their sentences
 * arrive. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api_case.h"

enum { L = 10, S = 12, D = 16, HQ = 4, HKV = 2 };

typedef struct fixture {
    pl_device *d;
    pl_problem *p;
    pl_plan *plan;
    float q[HQ * L * D], k[HKV * S * D], o[HQ * L * D], lse[HQ * L];
    pl_io io;
} fixture;

static int setup(void **state) {
    fixture *f = calloc(1, sizeof *f);
    const pl_shape s = {sizeof s, 1, HQ, HKV, L, S, D, D};
    if (!f || pl_device_open_cpu(&f->d, 2) || pl_problem_create(&f->p, &s, PL_F32) ||
        pl_plan_create(&f->plan, f->p, f->d))
        return -1;
    f->io = (pl_io){.size = sizeof(pl_io),
                    .q = pl_view_dense(f->q, PL_F32, HQ, L, D),
                    .k = pl_view_dense(f->k, PL_F32, HKV, S, D),
                    .v = pl_view_dense(f->k, PL_F32, HKV, S, D),
                    .o = pl_out_dense(f->o, HQ, L, D),
                    .lse = f->lse,
                    .d_o = pl_view_dense(f->q, PL_F32, HQ, L, D),
                    .dq = pl_out_dense(f->o, HQ, L, D),
                    .dk = pl_out_dense(f->k, HKV, S, D),
                    .dv = pl_out_dense(f->k, HKV, S, D)};
    api_workspace(&f->io, pl_plan_backward_workspace(f->plan, f->d));
    *state = f;
    return 0;
}
static int teardown(void **state) {
    fixture *f = *state;
    free(f->io.workspace);
    pl_plan_free(f->plan), pl_problem_free(f->p), pl_device_free(f->d);
    free(f);
    return 0;
}

static void null_is_named(void **state) {
    fixture *f = *state;
    pl_plan *plan;
    pl_mask *mask;
    pl_problem *problem;
    pl_mask_info info = {.size = sizeof info};
    const pl_shape s = {.size = sizeof s};
    const int64_t n = 1;
    assert_pl_says(pl_device_open_cpu(NULL, 1), PL_ERROR_USAGE, "pl_device_open_cpu: out is NULL");
    assert_pl_says(pl_problem_create(NULL, &s, PL_F32), PL_ERROR_USAGE, "out is NULL");
    assert_pl_says(pl_problem_create(&problem, NULL, PL_F32), PL_ERROR_USAGE, "shape is NULL");
    assert_null(problem);
    assert_pl_says(pl_problem_scale(NULL, 1), PL_ERROR_USAGE, "problem is NULL");
    assert_pl_says(pl_problem_tiles(NULL, 0, 0), PL_ERROR_USAGE, "problem is NULL");
    assert_pl_says(pl_problem_mask_budget(NULL, 1), PL_ERROR_USAGE, "problem is NULL");
    assert_pl_says(pl_problem_offsets(NULL, 0, 0), PL_ERROR_USAGE, "problem is NULL");
    assert_pl_says(pl_problem_mask(NULL, "true"), PL_ERROR_USAGE, "problem is NULL");
    assert_pl_says(pl_problem_int(NULL, "n", 1), PL_ERROR_USAGE, "problem is NULL");
    assert_pl_says(pl_problem_int(f->p, NULL, 1), PL_ERROR_USAGE, "name is NULL");
    assert_pl_says(pl_problem_float(f->p, NULL, 1), PL_ERROR_USAGE, "name is NULL");
    assert_pl_says(pl_problem_bool(f->p, NULL, 1), PL_ERROR_USAGE, "name is NULL");
    assert_pl_says(pl_problem_array(f->p, NULL, PL_F32, 1, &n, f->q), PL_ERROR_USAGE,
                   "name is NULL");
    assert_pl_says(pl_problem_array(f->p, "x", PL_F32, 1, NULL, f->q), PL_ERROR_USAGE,
                   "extents is NULL");
    assert_pl_says(pl_mask_create(NULL, f->p, NULL), PL_ERROR_USAGE, "out is NULL");
    assert_pl_says(pl_mask_create(&mask, NULL, NULL), PL_ERROR_USAGE, "problem is NULL");
    assert_null(mask);
    assert_pl_says(pl_mask_get_info(NULL, &info), PL_ERROR_USAGE, "mask is NULL");
    assert_pl_says(pl_mask_get_info(pl_plan_mask(f->plan), NULL), PL_ERROR_USAGE, "info is NULL");
    assert_pl_says(pl_mask_tiles(NULL, 0, 0, NULL, 0), PL_ERROR_USAGE, "mask is NULL");
    assert_pl_says(pl_mask_tiles(pl_plan_mask(f->plan), 0, 0, NULL, 9), PL_ERROR_USAGE,
                   "kinds is NULL");
    assert_pl_says(pl_plan_create(NULL, f->p, f->d), PL_ERROR_USAGE, "out is NULL");
    assert_pl_says(pl_plan_create(&plan, NULL, f->d), PL_ERROR_USAGE, "problem is NULL");
    assert_pl_says(pl_plan_create(&plan, f->p, NULL), PL_ERROR_USAGE, "device is NULL");
    assert_null(plan);
    assert_pl_says(pl_plan_explain(NULL, NULL, 0, NULL), PL_ERROR_USAGE, "plan is NULL");
    assert_pl_says(pl_plan_explain(f->plan, NULL, 10, NULL), PL_ERROR_USAGE, "text is NULL");
    assert_pl_says(pl_forward(NULL, f->d, &f->io), PL_ERROR_USAGE, "pl_forward: the plan is NULL");
    assert_pl_says(pl_forward(f->plan, NULL, &f->io), PL_ERROR_USAGE, "device is NULL");
    assert_pl_says(pl_backward(f->plan, f->d, NULL), PL_ERROR_USAGE, "pl_backward: io is NULL");
    pl_device_free(NULL), pl_problem_free(NULL), pl_mask_free(NULL), pl_plan_free(NULL); /* fine */
    assert_null(pl_plan_mask(NULL));
    assert_int_equal(
        pl_plan_forward_workspace(NULL, f->d) + pl_plan_backward_workspace(f->plan, NULL), 0);
    assert_int_equal(pl_device_threads(NULL), 0);
}

static void structs_of_another_size_are_refused(void **state) {
    fixture *f = *state;
    pl_problem *p;
    pl_shape s = {0, 1, 1, 1, 8, 8, 8, 8};
    pl_mask_info info = {0};
    assert_pl_says(pl_problem_create(&p, &s, PL_F32), PL_ERROR_USAGE,
                   "size member of a pl_shape is 0", "sizeof(pl_shape)");
    s.size = sizeof s + 8;
    assert_pl_says(pl_problem_create(&p, &s, PL_F32), PL_ERROR_USAGE, "pl_shape",
                   "as new as the header");
    assert_pl_says(pl_mask_get_info(pl_plan_mask(f->plan), &info), PL_ERROR_USAGE,
                   "pl_mask_info is 0");
    f->io.size = 8;
    assert_pl_says(pl_forward(f->plan, f->d, &f->io), PL_ERROR_USAGE, "pl_io is 8");
}

static void devices_and_numbers_out_of_range(void **state) {
    fixture *f = *state;
    pl_device *d;
    assert_pl_says(pl_device_open_cpu(&d, -1), PL_ERROR_RANGE, "-1 threads", "1 to 1024");
    assert_null(d);
    assert_pl_says(pl_device_open_cpu(&d, 2000), PL_ERROR_RANGE, "2000 threads", "1024");
    assert_pl_says(pl_problem_scale(f->p, NAN), PL_ERROR_RANGE, "finite");
    assert_pl_says(pl_problem_scale(f->p, 1e300), PL_ERROR_RANGE, "1e+300", "finite fp32");
    assert_pl_says(pl_problem_offsets(f->p, -1, 0), PL_ERROR_RANGE, "q0 -1");
    assert_pl_says(pl_problem_offsets(f->p, 0, INT64_MAX), PL_ERROR_RANGE, "2^40");
}

static void shapes_are_refused_with_their_numbers(void **state) {
    fixture *f = *state;
    pl_plan *plan;
    pl_problem *p;
    pl_shape s = {sizeof s, 1, 8, 3, 10, 10, 16, 16};
    assert_pl_ok(pl_problem_create(&p, &s, PL_BF16));
    assert_pl_says(pl_plan_create(&plan, p, f->d), PL_ERROR_SHAPE, "8 query heads",
                   "3 key/value heads");
    assert_null(plan);
    pl_problem_free(p);
    s = (pl_shape){sizeof s, 1, 8, 8, 10, 10, 12, 16};
    assert_pl_ok(pl_problem_create(&p, &s, PL_F32));
    assert_pl_says(pl_plan_create(&plan, p, f->d), PL_ERROR_SHAPE, "is 12", "multiple of 8");
    pl_problem_free(p);
    s = (pl_shape){sizeof s, -2, 8, 8, 10, 10, 16, 16};
    assert_pl_ok(pl_problem_create(&p, &s, PL_F32));
    assert_pl_says(pl_plan_create(&plan, p, f->d), PL_ERROR_RANGE, "batch is -2");
    assert_true(pl_mask_create(&(pl_mask *){NULL}, p, NULL) != PL_OK);
    pl_problem_free(p);
    assert_pl_says(pl_problem_create(&p, &s, PL_F16), PL_ERROR_SHAPE, "F16", "PL_BF16");
    assert_pl_says(pl_problem_create(&p, &s, (pl_type)77), PL_ERROR_SHAPE, "77", "unknown");
    assert_pl_ok(pl_problem_tiles(f->p, 12, 16));
    assert_pl_says(pl_plan_create(&plan, f->p, f->d), PL_ERROR_RANGE, "tile_q is 12");
}

/* A problem of extents that are rarely meant; some are small. */
static pl_problem *extreme(uint64_t seed, uint64_t i) {
    static const int64_t values[] = {INT64_MIN,
                                     -1,
                                     0,
                                     1,
                                     2,
                                     7,
                                     8,
                                     100,
                                     INT64_C(1) << 31,
                                     INT64_C(1) << 40,
                                     (INT64_C(1) << 40) + 1,
                                     INT64_C(1) << 62,
                                     INT64_MAX};
    static const char *const texts[] = {NULL, "kv <= q", "(q * kv + h + b) % 3 == 0",
                                        "h % 2 == 0 ? kv <= q : kv > q - n"};
    enum { N = sizeof values / sizeof *values };
    int64_t x[7];
    for (uint64_t j = 0; j < 7; j++) x[j] = values[numbers_below(seed, 10 + j, i, N)];
    if (i % 2) x[5] = x[6] = 8;
    if (i % 3) x[0] = 1, x[1] = 2, x[2] = 1;
    const pl_shape s = {sizeof s, x[0], x[1], x[2], x[3], x[4], x[5], x[6]};
    pl_problem *p;
    assert_pl_ok(pl_problem_create(&p, &s, PL_F32));
    assert_pl_ok(pl_problem_mask(p, texts[numbers_below(seed, 1, i, 4)]));
    assert_pl_ok(pl_problem_int(p, "n", values[numbers_below(seed, 2, i, N)]));
    assert_pl_ok(pl_problem_mask_budget(p, 1 << 16));
    if (i % 5 == 0)
        assert_pl_ok(pl_problem_tiles(p, (int)values[numbers_below(seed, 3, i, 8)], INT32_MAX));
    return p;
}

static void extreme_extents_end_in_plans_or_sentences(void **state) {
    fixture *f = *state;
    uint64_t seed = numbers_seed();
    int made = 0, refused = 0;
    for (uint64_t i = 0; i < 2000; i++) {
        pl_problem *p = extreme(seed, i);
        pl_mask *m;
        pl_plan *plan;
        pl_error e = pl_mask_create(&m, p, f->d);
        assert_true(e ? !m && pl_error_text()[0] : m != NULL);
        pl_mask_free(m);
        e = pl_plan_create(&plan, p, f->d);
        assert_true(e ? !plan && pl_error_text()[0] : plan != NULL);
        *(e ? &refused : &made) += 1;
        pl_plan_free(plan), pl_problem_free(p);
    }
    printf("%d planned, %d refused\n", made, refused);
    assert_true(made > 20 && refused > 200);
}

static void captures_are_refused(void **state) {
    fixture *f = *state;
    pl_plan *plan;
    const int64_t extent = 4, less[2] = {4, -1};
    char name[24];
    assert_pl_says(pl_problem_array(f->p, "x", (pl_type)10, 1, &extent, f->q), PL_ERROR_SHAPE,
                   "`x`", "type 10");
    assert_pl_says(pl_problem_array(f->p, "x", PL_I32, 0, &extent, f->q), PL_ERROR_SHAPE,
                   "0 dimensions");
    assert_pl_says(pl_problem_array(f->p, "x", PL_I32, 5, &extent, f->q), PL_ERROR_SHAPE,
                   "5 dimensions", "1 to 4");
    assert_pl_says(pl_problem_array(f->p, "x", PL_I32, 1, &extent, (char *)f->q + 1),
                   PL_ERROR_USAGE, "aligned to the 4 bytes");
    /* Wrong type, rank, extent and missing data are found where the text that reads them is. */
    assert_pl_ok(pl_problem_mask(f->p, "doc[q] == doc[kv]"));
    assert_pl_says(pl_plan_create(&plan, f->p, f->d), PL_ERROR_SYNTAX, "column 1", "`doc`");
    assert_pl_ok(pl_problem_array(f->p, "doc", PL_I32, 2, (int64_t[]){4, 4}, f->q));
    assert_pl_says(pl_plan_create(&plan, f->p, f->d), PL_ERROR_SYNTAX, "`doc`", "2");
    assert_pl_ok(pl_problem_array(f->p, "doc", PL_BOOL, 1, &extent, f->q));
    assert_pl_ok(pl_problem_mask(f->p, "doc[q] < 3"));
    assert_pl_says(pl_plan_create(&plan, f->p, f->d), PL_ERROR_SYNTAX, "line 1");
    assert_pl_ok(pl_problem_array(f->p, "doc", PL_I32, 1, &less[1], f->q));
    assert_pl_says(pl_plan_create(&plan, f->p, f->d), PL_ERROR_SHAPE, "`doc` has extent -1");
    assert_pl_ok(pl_problem_array(f->p, "doc", PL_I32, 1, &extent, NULL));
    assert_pl_says(pl_plan_create(&plan, f->p, f->d), PL_ERROR_SHAPE,
                   "`doc` has 4 elements and no data");
    assert_pl_ok(
        pl_problem_array(f->p, "doc", PL_I32, 1, &extent, f->q)); /* 10 queries, 4 documents */
    assert_pl_says(pl_plan_create(&plan, f->p, f->d), PL_ERROR_RANGE, "doc[q]",
                   "outside a captured array");
    assert_pl_ok(pl_problem_mask(f->p, "kv = q"));
    assert_pl_says(pl_plan_create(&plan, f->p, f->d), PL_ERROR_SYNTAX, "mask, line 1, column 4",
                   "==");
    assert_pl_ok(pl_problem_mask(f->p, ""));
    assert_pl_says(pl_plan_create(&plan, f->p, f->d), PL_ERROR_SYNTAX, "empty");
    assert_null(plan);
    for (int i = 1; i < EXPR_MAX_CAPTURES; i++) {
        snprintf(name, sizeof name, "n%d", i);
        assert_pl_ok(pl_problem_int(f->p, name, i));
    }
    assert_pl_says(pl_problem_int(f->p, "more", 1), PL_ERROR_RANGE, "`more`", "16");
    assert_pl_ok(pl_problem_mask(f->p, "kv <= q"));
    assert_pl_ok(pl_problem_int(f->p, "n1", 5)); /* a name given again is not one more */
}

static void masks_are_refused_beyond_their_budget(void **state) {
    fixture *f = *state;
    pl_mask *m;
    const pl_shape s = {
        .size = sizeof s, .batch = 1, .q_heads = 1, .q_len = 100000, .kv_len = 100000};
    pl_problem *p;
    uint8_t kinds[8];
    assert_pl_ok(pl_problem_create(&p, &s, PL_F32));
    assert_pl_ok(pl_problem_mask(p, "(q + kv) % 7 < 3"));
    assert_pl_ok(pl_problem_mask_budget(p, 4096));
    assert_pl_says(pl_mask_create(&m, p, NULL), PL_ERROR_REFUSED, "budget is 4.0 KiB", "need");
    assert_null(m);
    pl_problem_free(p);
    const pl_mask *whole = pl_plan_mask(f->plan);
    assert_pl_says(pl_mask_tiles(whole, 0, 4, kinds, sizeof kinds), PL_ERROR_RANGE, "head 4", "4");
    assert_pl_says(pl_mask_tiles(whole, -1, 0, kinds, sizeof kinds), PL_ERROR_RANGE, "batch -1");
    assert_pl_says(pl_mask_tiles(whole, 0, 0, kinds, 0), PL_ERROR_RANGE, "0 bytes", "1 are needed");
}

static void runs_are_refused(void **state) {
    fixture *f = *state;
    pl_io good = f->io, *io = &f->io;
    char need[32];
    io->q.stride[3] = 2;
    assert_pl_says(pl_forward(f->plan, f->d, io), PL_ERROR_SHAPE, "last stride of q is 2",
                   "must be 1");
    *io = good, io->dv.stride[3] = -1;
    assert_pl_says(pl_backward(f->plan, f->d, io), PL_ERROR_SHAPE, "last stride of dv is -1");
    *io = good, io->o.stride[2] = 0;
    assert_pl_says(pl_forward(f->plan, f->d, io), PL_ERROR_SHAPE,
                   "stride of o over its length is 0", "10");
    *io = good, io->dk.stride[1] = 0;
    assert_pl_says(pl_backward(f->plan, f->d, io), PL_ERROR_SHAPE,
                   "stride of dk over its heads is 0");
    *io = good, io->o.stride[0] = 0; /* one batch: nothing to keep apart */
    assert_pl_ok(pl_forward(f->plan, f->d, io));
    *io = good, io->k.type = PL_BF16;
    assert_pl_says(pl_forward(f->plan, f->d, io), PL_ERROR_SHAPE, "k is BF16", "F32");
    *io = good, io->k.type = (pl_type)50;
    assert_pl_says(pl_forward(f->plan, f->d, io), PL_ERROR_SHAPE, "k is of type 50");
    *io = good, io->v.data = NULL;
    assert_pl_says(pl_forward(f->plan, f->d, io), PL_ERROR_USAGE, "v has no data");
    *io = good, io->q.data = (char *)f->q + 2;
    assert_pl_says(pl_forward(f->plan, f->d, io), PL_ERROR_USAGE, "q is not aligned");
    *io = good, io->o.data = NULL;
    assert_pl_says(pl_forward(f->plan, f->d, io), PL_ERROR_USAGE, "o has no data");
    *io = good, io->lse = NULL;
    assert_pl_ok(pl_forward(f->plan, f->d, io));
    assert_pl_says(pl_backward(f->plan, f->d, io), PL_ERROR_USAGE, "lse", "no data");
    snprintf(need, sizeof need, "%zu bytes", pl_plan_forward_workspace(f->plan, f->d));
    *io = good, io->workspace = NULL;
    assert_pl_says(pl_forward(f->plan, f->d, io), PL_ERROR_USAGE, need, "got none");
    *io = good, io->workspace_bytes = pl_plan_forward_workspace(f->plan, f->d) - 1;
    assert_pl_says(pl_forward(f->plan, f->d, io), PL_ERROR_USAGE, need, "on this device");
    *io = good, io->workspace = (char *)good.workspace + 8;
    assert_pl_says(pl_forward(f->plan, f->d, io), PL_ERROR_USAGE, "not aligned to 64");
    snprintf(need, sizeof need, "%zu bytes", pl_plan_backward_workspace(f->plan, f->d));
    *io = good, io->workspace_bytes = pl_plan_backward_workspace(f->plan, f->d) - 1;
    assert_pl_says(pl_backward(f->plan, f->d, io), PL_ERROR_USAGE, "backward", need);
    pl_device *wide;
    assert_pl_ok(pl_device_open_cpu(&wide, 3)); /* more threads need more */
    *io = good;
    assert_pl_says(pl_backward(f->plan, wide, io), PL_ERROR_USAGE, "on this device");
    pl_device_free(wide);
    *io = good;
    assert_pl_ok(pl_backward(f->plan, f->d, io));
}

static void gradients_and_scores_are_refused(void **state) {
    fixture *f = *state;
    pl_plan *plan;
    const int64_t heads = HQ;
    float bias[HQ] = {1, 2, 3, 4}, sinks[HQ] = {0}, d_bias[HQ], d_sinks[HQ];
    assert_pl_says(pl_problem_score(NULL, "s"), PL_ERROR_USAGE, "problem is NULL");
    assert_pl_says(pl_problem_gradient(f->p, NULL, 1), PL_ERROR_USAGE, "name is NULL");
    assert_pl_says(pl_problem_gradient(f->p, "bias", 1), PL_ERROR_USAGE, "`bias` has no value yet");
    assert_pl_says(pl_problem_sinks(f->p, (float *)((char *)sinks + 1)), PL_ERROR_USAGE, "aligned");
    assert_pl_ok(pl_problem_array(f->p, "bias", PL_F32, 1, &heads, bias));
    assert_pl_ok(pl_problem_gradient(f->p, "bias", 1));
    assert_pl_says(pl_plan_create(&plan, f->p, f->d), PL_ERROR_USAGE, "without a score");
    assert_pl_ok(pl_problem_score(f->p, "s + bias[h] ++"));
    assert_pl_says(pl_plan_create(&plan, f->p, f->d), PL_ERROR_SYNTAX, "score, line 1, column");
    assert_pl_ok(pl_problem_score(f->p, "s + bias[h]"));
    assert_pl_ok(pl_problem_sinks(f->p, sinks));
    assert_pl_ok(pl_plan_create(&plan, f->p, f->d));
    free(f->io.workspace);
    api_workspace(&f->io, pl_plan_backward_workspace(plan, f->d));
    assert_pl_ok(pl_forward(plan, f->d, &f->io));
    const pl_gradient twice[2] = {{"bias", d_bias}, {"bias", d_bias}}, other = {"slope", d_bias},
                      none = {"bias", NULL};
    pl_io good = f->io, *io = &f->io;
    assert_pl_says(pl_backward(plan, f->d, io), PL_ERROR_USAGE, "gradient of `bias`", "no place");
    *io = good, io->gradients = twice, io->n_gradients = 2;
    assert_pl_says(pl_backward(plan, f->d, io), PL_ERROR_USAGE, "`bias` is given twice");
    *io = good, io->gradients = &other, io->n_gradients = 1;
    assert_pl_says(pl_backward(plan, f->d, io), PL_ERROR_USAGE, "no gradient of `slope`",
                   "pl_problem_gradient");
    *io = good, io->gradients = &none, io->n_gradients = 1;
    assert_pl_says(pl_backward(plan, f->d, io), PL_ERROR_USAGE, "data of a gradient is NULL");
    *io = good, io->gradients = NULL, io->n_gradients = 1;
    assert_pl_says(pl_backward(plan, f->d, io), PL_ERROR_USAGE, "list of gradients is NULL");
    *io = good, io->gradients = twice, io->n_gradients = 1;
    assert_pl_says(pl_backward(plan, f->d, io), PL_ERROR_USAGE, "gradient of the sinks");
    io->d_sinks = d_sinks;
    assert_pl_ok(pl_backward(plan, f->d, io));
    bias[2] = NAN; /* of head 2 */
    assert_pl_says(pl_forward(plan, f->d, io), PL_ERROR_NUMERIC, "h 2");
    pl_plan_free(plan);
}

static void merges_are_refused(void **state) {
    fixture *f = *state;
    const float *o[2] = {f->o, NULL}, *lse[2] = {f->lse, f->lse};
    float out[4], out_lse[4];
    assert_pl_says(pl_merge(-1, 1, 1, o, lse, out, out_lse), PL_ERROR_RANGE, "-1 parts");
    assert_pl_says(pl_merge(2, 1, 1, o, lse, out, out_lse), PL_ERROR_USAGE, "part 1 has no o");
    assert_pl_says(pl_merge(1, 1, 1, o, NULL, out, out_lse), PL_ERROR_USAGE, "lse is NULL");
    assert_pl_says(pl_merge(1, 1, 1, o, lse, NULL, out_lse), PL_ERROR_USAGE, "out is NULL");
}

static void codes_have_names(void **state) {
    (void)state;
    assert_string_equal(pl_error_name(PL_OK), "ok");
    assert_string_equal(pl_error_name(PL_ERROR_SHAPE), "shape mismatch");
    assert_string_equal(pl_error_name((pl_error)99), "unknown error");
    assert_string_equal(pl_version(), PL_VERSION);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(null_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(structs_of_another_size_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(devices_and_numbers_out_of_range, setup, teardown),
        cmocka_unit_test_setup_teardown(shapes_are_refused_with_their_numbers, setup, teardown),
        cmocka_unit_test_setup_teardown(extreme_extents_end_in_plans_or_sentences, setup, teardown),
        cmocka_unit_test_setup_teardown(captures_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(masks_are_refused_beyond_their_budget, setup, teardown),
        cmocka_unit_test_setup_teardown(runs_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(gradients_and_scores_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(merges_are_refused, setup, teardown),
        cmocka_unit_test(codes_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
