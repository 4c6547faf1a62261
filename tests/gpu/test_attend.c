/* paceline attend on a GPU, or the emulated device, beside the same on the CPU: outputs, LSE and every gradient, as a user gets them in a file.
 *
 * Both draw the same tensors. fp32 is computed in fp32 on both; in bf16 the GPU rounds o, do and gradients. Skipped where
 * there is no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "dev/cuda_system.h"
#include "io/safetensors.h"
#include "support/files.h"
#include "support/run.h"
#include "support/says.h"
#include <math.h>
#include <stdlib.h>

static files_dir dir;
static run_result r;
static int usable, emulated;

static int set_up(void **state) {
    cuda_device d;
    int n = 0;
    (void)state;
    dir = files_begin();
    usable = !cuda_system_here(&d, 1, &n) && n && d.arch[0];
    emulated = usable && strstr(d.name, "emulated");
    if (!usable) printf("skipped: %s\n", err_text());
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    files_end(&dir);
    return 0;
}

/* Runs one problem on a device; the result is in NAME.safetensors. */
static void attend(const char *name, const char *device, const char *type,
                   const char *const *more) {
    char out[700], cache[700], file[64];
    const char *args[40] = {"attend", "--device", device,  "--type", type,
                            "--seed", "7",        "--out", out,      "--backward"};
    int n = 10;
    snprintf(file, sizeof file, "%s.safetensors", name);
    snprintf(out, sizeof out, "%s", files_at(&dir, file));
    snprintf(cache, sizeof cache, "PACELINE_CACHE=%s", files_at(&dir, "cache"));
    while (*more) args[n++] = *more++;
    run_program(&r, (const char *const[]){cache, NULL}, args);
    if (r.code) fail_msg("%s: %s", device, r.text);
}

/* ‖a - b‖ / ‖b‖ over every tensor of both files, the worst. */
static double distance(const char *a, const char *b) {
    st_file *x, *y;
    char file[64];
    double worst = 0;
    snprintf(file, sizeof file, "%s.safetensors", a);
    assert_ok(safetensors_open(&x, files_at(&dir, file)));
    snprintf(file, sizeof file, "%s.safetensors", b);
    assert_ok(safetensors_open(&y, files_at(&dir, file)));
    for (int i = 0; safetensors_at(y, i); i++) {
        const tensor *want = safetensors_at(y, i), *got = safetensors_find(x, want->name);
        double error = 0, size = 1e-12;
        int64_t n = 1;
        assert_non_null(got);
        for (int k = 0; k < want->ndim; k++) {
            assert_int_equal(got->dim[k], want->dim[k]);
            n *= want->dim[k];
        }
        for (int64_t k = 0; k < n; k++) {
            float p, q;
            memcpy(&p, (const char *)got->data + 4 * k, 4);
            memcpy(&q, (const char *)want->data + 4 * k, 4);
            if (p == q) continue; /* also -inf */
            error += ((double)p - (double)q) * ((double)p - (double)q);
            size += (double)q * (double)q;
        }
        double far = sqrt(error / size);
        printf("  %-10s %.2e\n", want->name, far);
        if (!(far <= worst)) worst = far;
    }
    safetensors_close(x);
    safetensors_close(y);
    return worst;
}

static void compare(const char *const *more) {
    if (!usable) skip();
    attend("cpu", "cpu", "f32", more);
    attend("gpu", "cuda:0", "f32", more);
    assert_true(distance("gpu", "cpu") < 1e-4);
    attend("cpu", "cpu", "bf16", more);
    attend("gpu", "cuda:0", "bf16", more);
    assert_true(distance("gpu", "cpu") < 2e-2);
}

static void causal_with_odd_lengths(void **state) {
    (void)state;
    compare((const char *const[]){"--random", emulated ? "1,2,1,141,173,64" : "2,4,2,301,333,64",
                                  "--mask", "kv <= q + 32", NULL});
}

static void draft_blocks_and_a_score(void **state) {
    (void)state;
    compare((const char *const[]){
        "--random", emulated ? "1,2,1,64,264,128" : "1,8,2,256,456,128", "--mask",
        "let blk = q // bs; (kv < ctx && kv < 12 * blk) || (kv >= ctx && (kv - ctx) // bs == blk)",
        "--let", "ctx=200", "--let", "bs=16", "--score", "20.0 * tanh(s / 20.0) + 0.25", NULL});
}

/* Rows whose scores are all far from 0, as those of padding are where scores hide cells by adding a large number; rows near the
 * limit from where on the kernels subtract first; rows that find a usual score only after a step of far ones. */
static void scores_that_are_far_from_zero(void **state) {
    (void)state;
    static const char *const scores[] = {
        "q % 3 == 0 ? -3.0e38 : q % 3 == 1 ? -1.0e30 : s - 1.0e9",
        "q % 3 == 0 ? 2.0e30 : q % 3 == 1 ? float(kv % 5) - 3000.0 : float(kv % 5) - 2800.0",
        "kv < 64 + q % 9 ? -1.0e24 : s", "kv > 10 + q % 9 ? -3.0e38 : s"};
    for (size_t i = 0; i < sizeof scores / sizeof scores[0]; i++)
        compare((const char *const[]){"--random", emulated ? "1,2,1,60,100,64" : "1,4,2,200,300,64",
                                      "--mask", "kv <= q + 50", "--score", scores[i], NULL});
}

/* The run's flags choose 64 bits where a product leaves 32, in the mask and in the score for themselves. */
static void integers_beyond_32_bits(void **state) {
    (void)state;
    static const char wide[] = "(q * 1000003 * 1000003 + kv * 7) % 5",
                      narrow[] = "(q + kv * 7) % 5";
    char mask[100], score[100];
    for (int i = 0; i < 2; i++) {
        snprintf(mask, sizeof mask, "%s < 3 || kv == 0", i ? narrow : wide);
        snprintf(score, sizeof score, "s + float(%s)", i ? wide : narrow);
        compare((const char *const[]){"--random", emulated ? "1,1,1,40,70,16" : "1,4,2,200,300,64",
                                      "--mask", mask, "--score", score, NULL});
    }
}

static void it_explains_itself(void **state) {
    (void)state;
    if (!usable) skip();
    attend("gpu", "cuda:0", "bf16",
           (const char *const[]){"--random", "1,2,1,100,200,64", "--mask", "kv <= q", "--explain",
                                 NULL});
    printf("%s", r.text);
    static const char *const parts[] = {"device: cuda:0", "sm_",        "tensor cores",
                                        "device memory",  "dense fp32", "compiles: "};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (!strstr(r.text, parts[i])) fail_msg("'%s' is not in: %s", parts[i], r.text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(causal_with_odd_lengths),
        cmocka_unit_test(draft_blocks_and_a_score),
        cmocka_unit_test(scores_that_are_far_from_zero),
        cmocka_unit_test(integers_beyond_32_bits),
        cmocka_unit_test(it_explains_itself),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
