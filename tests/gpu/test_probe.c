/* paceline probe with attention on a GPU beside the same on the CPU: logits, taps, hidden states, loss and every gradient.
 *
 * A tiny target and the drafter of one training step. Attention runs in fp32 on both, in other orders of sums, so numbers
 * agree to rounding. Skipped where there is no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "dev/cuda_system.h"
#include "io/safetensors.h"
#include "support/chat_gguf.h"
#include "support/files.h"
#include "support/run.h"
#include "support/says.h"
#include <math.h>
#include <stdlib.h>

static files_dir dir;
static run_result r;
static char target[700], drafter[700], cache[700], row[700];

static void run(const char *const *args) {
    run_program(&r, (const char *const[]){cache, NULL}, args);
    if (r.code) fail_msg("%s: %s", args[0], r.text);
}

static void make_row(void) {
    static int64_t tokens[60], document[60], loss[60];
    static const int64_t anchors[] = {2, 9, 17, 33, 50};
    const tensor t[] = {{"tokens", DT_I64, 1, {60}, tokens},
                        {"document", DT_I64, 1, {60}, document},
                        {"loss_mask", DT_I64, 1, {60}, loss},
                        {"anchors", DT_I64, 1, {5}, anchors}};
    for (int i = 0; i < 60; i++) tokens[i] = 30 + i * 7 % 40, document[i] = i / 23, loss[i] = 1;
    snprintf(row, sizeof row, "%s", files_at(&dir, "row.safetensors"));
    assert_ok(safetensors_write(row, t, 4, NULL, 0));
}

static void make_drafter(void) {
    snprintf(target, sizeof target, "%s", files_at(&dir, "tiny.gguf"));
    chat_gguf_write(target, &(chat_gguf){.seed = 3, .context = 96});
    files_text(&dir, "rows.jsonl",
               "{\"prompt\": \"one two\", \"response\": \"the one and the two and the three and so "
               "on\"}\n");
    files_text(&dir, "r.yaml",
               "target: {path: tiny.gguf}\ndata: {path: rows.jsonl, max_length: 96}\n"
               "drafter: {layers: 2, block_size: 4}\n"
               "run: {epochs: 1, tokens_per_step: 128, tokens_per_row: 128, out: run}\n");
    char recipe[700];
    snprintf(recipe, sizeof recipe, "%s", files_at(&dir, "r.yaml"));
    run((const char *const[]){"train", recipe, "--quiet", NULL});
    snprintf(drafter, sizeof drafter, "%s", files_at(&dir, "run/drafter"));
}

static int set_up(void **state) {
    static int usable;
    cuda_device d;
    int n = 0;
    dir = files_begin();
    snprintf(cache, sizeof cache, "PACELINE_CACHE=%s", files_at(&dir, "cache"));
    usable = !cuda_system_here(&d, 1, &n) && n && d.arch[0];
    if (!usable) printf("skipped: %s\n", err_text());
    *state = usable ? &usable : NULL;
    if (!usable) return 0;
    make_row();
    make_drafter();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    files_end(&dir);
    return 0;
}

static void probe(const char *device, const char *out) {
    char path[700];
    snprintf(path, sizeof path, "%s", files_at(&dir, out));
    run((const char *const[]){"probe", "--target", target, "--drafter", drafter, "--in", row,
                              "--out", path, "--backward", "--device", device, NULL});
}

/* ‖a - b‖ / ‖b‖ of a tensor. */
static double distance(const tensor *got, const tensor *want) {
    double error = 0, size = 1e-12;
    for (int64_t i = 0; i < tensor_count(want); i++) {
        float p, q;
        memcpy(&p, (const char *)got->data + 4 * i, 4);
        memcpy(&q, (const char *)want->data + 4 * i, 4);
        error += ((double)p - (double)q) * ((double)p - (double)q);
        size += (double)q * (double)q;
    }
    return sqrt(error / size);
}

static void attention_on_a_gpu_changes_nothing_but_rounding(void **state) {
    st_file *x, *y;
    double worst = 0;
    int n = 0;
    if (!*state) skip();
    probe("cpu", "cpu.safetensors");
    probe("cuda:0", "gpu.safetensors");
    if (!strstr(r.text, "attention was computed on cuda:0")) fail_msg("%s", r.text);
    assert_ok(safetensors_open(&x, files_at(&dir, "gpu.safetensors")));
    assert_ok(safetensors_open(&y, files_at(&dir, "cpu.safetensors")));
    for (; safetensors_at(y, n); n++) {
        const tensor *want = safetensors_at(y, n), *got = safetensors_find(x, want->name);
        assert_non_null(got);
        assert_int_equal(tensor_count(got), tensor_count(want));
        const double far = distance(got, want);
        if (far > worst) worst = far;
        if (!(far < 1e-4)) fail_msg("%s is %.2e apart", want->name, far);
    }
    printf("%d tensors, the worst %.2e apart\n", n, worst);
    assert_true(n > 20);
    assert_true(worst > 0); /* two ways of summing, not one */
    safetensors_close(x);
    safetensors_close(y);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_on_a_gpu_changes_nothing_but_rounding),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
