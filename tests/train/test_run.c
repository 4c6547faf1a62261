/* A whole run in one process: what it writes, that it repeats, what it refuses, what memory it takes.
 *
 * Models and rows are tiny (tiny_run.h). Results are compared by digest of masters, moments and export: equal means bit for bit.
 * Being stopped, killed and resumed is test_resume.c. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "io/json.h"
#include "io/safetensors.h"
#include "support/numbers.h"
#include "support/says.h"
#include "tiny_run.h"

static int exists(files_dir *d, const char *name) { return file_exists(files_at(d, name)); }

static void a_run_leaves_what_it_promises(void **s) {
    (void)s;
    files_dir d;
    tiny_run_make(&d, 1);
    assert_ok(tiny_run(&d, NULL, NULL, NULL, NULL));
    static const char *const there[] = {"out/recipe.yaml", "out/metrics.jsonl", "out/best",
                                        "out/drafter/config.json",
                                        "out/checkpoints/step-00000012/COMPLETE"};
    for (size_t i = 0; i < sizeof there / sizeof *there; i++) assert_true(exists(&d, there[i]));
    /* keep: 2 and the best one besides. */
    char **names = NULL, *text = NULL;
    int n = 0;
    size_t size = 0;
    assert_ok(file_list(files_at(&d, "out/checkpoints"), &names, &n));
    assert_true(n == 2 || n == 3);
    file_names_free(names, n);
    assert_ok(file_read(files_at(&d, "out/best"), &text, &size));
    text[strcspn(text, "\n")] = 0;
    char best[700];
    snprintf(best, sizeof best, "out/%s/COMPLETE", text);
    assert_true(exists(&d, best));
    mem_free(text);
    /* Every update has one row, in order; two evaluations. */
    assert_ok(file_read(files_at(&d, "out/metrics.jsonl"), &text, &size));
    int64_t updates = 0, evaluations = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *j = NULL;
        int64_t u = 0;
        assert_ok(json_parse(&j, "metrics.jsonl", line, strlen(line)));
        assert_ok(json_get_int(j, "row", "update", &u));
        if (json_object_get(j, "kind"))
            evaluations++;
        else
            assert_int_equal(u, ++updates);
        json_decref(j);
    }
    assert_int_equal(updates, 12);
    assert_int_equal(evaluations, 2);
    mem_free(text);
    /* A finished run has nothing left to do, and is not thrown away by a flag. */
    assert_ok(tiny_run(&d, NULL, NULL, NULL, NULL));
    recipe *r;
    train *t;
    assert_says(tiny_run_open(&d, NULL, &(train_options){.fresh = 1}, &r, &t), ERR_REFUSED,
                "finished run");
    files_end(&d);
}

static void b44_runs_repeat_and_do_not_depend_on_threads(void **s) {
    (void)s;
    files_dir d;
    char first[128], other[128];
    tiny_run_make(&d, 2);
    static const char *const threads[] = {"devices.threads=1", "devices.threads=2",
                                          "devices.threads=3", "devices.threads=1"};
    for (int i = 0; i < 4; i++) {
        char out[32];
        snprintf(out, sizeof out, "run.out=out%d", i);
        assert_ok(tiny_run(&d, (const char *const[]){threads[i], out, NULL}, NULL, NULL, NULL));
        tiny_run_digest(&d, out + 8, 12, i ? other : first);
        if (i) assert_string_equal(first, other);
    }
    assert_ok(
        tiny_run(&d, (const char *const[]){"run.seed=2", "run.out=seed", NULL}, NULL, NULL, NULL));
    tiny_run_digest(&d, "seed", 12, other);
    assert_string_not_equal(first, other);
    files_end(&d);
}

typedef struct watched {
    train *t;
    train_memory_counts at[64];
    double loss[64];
    int64_t seen;
} watched;
static void watch(void *ctx, const train_progress *p) {
    watched *w = ctx;
    train_memory(w->t, &w->at[p->update]);
    w->loss[p->update] = p->loss;
    w->seen = p->update;
    assert_int_equal(p->slots, 3);
}

static void memory_is_taken_once_and_within_the_plan(void **s) {
    (void)s;
    files_dir d;
    recipe *r;
    watched w = {0};
    tiny_run_make(&d, 3);
    assert_ok(tiny_run_open(&d, NULL, NULL, &r, &w.t));
    const train_plan *p = train_get_plan(w.t);
    train_memory_counts start;
    train_memory(w.t, &start);
    assert_ok(train_run(w.t, watch, &w, NULL));
    assert_int_equal(w.seen, 12);
    assert_int_equal(w.at[3].system_calls, w.at[10].system_calls);
    assert_int_equal(start.system_calls, w.at[10].system_calls);
    assert_int_equal(start.reserved, w.at[10].reserved);
    size_t planned = 0;
    for (int i = 0; i < p->n_lines; i++)
        if (p->lines[i].device[0] && !strstr(p->lines[i].name, "evaluation"))
            planned += p->lines[i].bytes;
    assert_true(w.at[10].reserved <= planned);
    assert_true(w.at[10].peak <= planned);
    /* B47: four fp32 buffers and a bf16 one of the drafter's size, nothing of the target's. */
    assert_true(planned > (size_t)p->drafter_params * 18);
    train_close(w.t);
    recipe_free(r);
    files_end(&d);
}

static void plan_counts_what_the_run_does(void **s) {
    (void)s;
    files_dir d;
    recipe *r;
    train *t;
    str text = {0};
    watched w = {0};
    tiny_run_make(&d, 4);
    const char *const two[] = {"run.max_updates=0", "run.epochs=2", NULL};
    assert_ok(tiny_run_open(&d, two, &(train_options){.plan_only = 1}, &r, &t));
    const train_plan p = *train_get_plan(t);
    assert_int_equal(p.documents, 24);
    assert_true(p.updates > 4 && p.updates < 2 * p.rows_per_epoch && p.updates < 64);
    assert_true(p.tokens_per_epoch == p.tokens && p.supervised < p.tokens);
    assert_true(p.target_flops_per_epoch > 0 && p.flops_per_epoch > p.target_flops_per_epoch);
    assert_non_null(strstr(p.preview, "blue"));
    assert_ok(train_plan_text(t, &text));
    assert_non_null(strstr(text.s, "mask token 261"));
    str_free(&text);
    train_close(t);
    recipe_free(r);
    assert_false(exists(&d, "out")); /* planning writes nothing */
    assert_ok(tiny_run_open(&d, two, NULL, &r, &w.t));
    assert_ok(train_run(w.t, watch, &w, NULL));
    assert_int_equal(w.seen, p.updates);
    train_close(w.t);
    recipe_free(r);
    files_end(&d);
}

static void refused_in_one_sentence(void **s) {
    (void)s;
    files_dir d;
    recipe *r;
    train *t;
    tiny_run_make(&d, 5);
    const struct {
        const char *set;
        err code;
        const char *says;
    } bad[] = {{"drafter.mask_token=1000", ERR_RECIPE, "outside the target's embedding of 264"},
               {"drafter.mask_token=258", ERR_RECIPE, "is an end token"},
               {"drafter.taps=[0, 4]", ERR_RECIPE, "tap 4 names no layer"},
               {"drafter.taps=auto", ERR_RECIPE, "rise strictly"},
               {"drafter.sliding_window=3", ERR_RECIPE, "window of 3"},
               {"data.max_length=1000", ERR_RECIPE, "beyond the target's context of 256"},
               {"devices.drafter=cuda:0", ERR_RECIPE, "cuda:0"},
               {"optimizer.min_lr=1", ERR_RECIPE, "above optimizer.lr"},
               {"data.path=none.jsonl", ERR_IO, "none.jsonl"},
               {"target.path=none.gguf", ERR_IO, "none.gguf"},
               {"drafter.init=nowhere", ERR_IO, "nowhere"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_says(tiny_run_open(&d, (const char *const[]){bad[i].set, NULL}, NULL, &r, &t),
                    bad[i].code, bad[i].says);
    assert_false(exists(&d, "out"));
    files_end(&d);
}

static void b35_mask_token_is_chosen_on_purpose(void **s) {
    (void)s;
    files_dir d;
    recipe *r;
    train *t;
    str text = {0};
    tiny_run_make(&d, 6);
    tiny_gguf g = tiny_gguf_default(TINY_COUNT, 6); /* no unused row: the family's reserved token */
    g.tokenizer = 1;
    g.layers = 4;
    assert_ok(tiny_gguf_write(files_at(&d, "t.gguf"), &g));
    assert_ok(tiny_run_open(&d, NULL, &(train_options){.plan_only = 1}, &r, &t));
    assert_ok(train_plan_text(t, &text));
    assert_non_null(strstr(text.s, "mask token 260"));
    str_free(&text);
    train_close(t);
    recipe_free(r);
    /* Neither an end token nor a row that is not there. */
    char set[64];
    snprintf(set, sizeof set, "drafter.mask_token=%d", TINY_END);
    const char *const sets[] = {set, NULL};
    assert_says(tiny_run_open(&d, sets, NULL, &r, &t), ERR_RECIPE, "drafter.mask_token=258",
                "end token");
    snprintf(set, sizeof set, "drafter.mask_token=%d", TINY_COUNT);
    assert_says(tiny_run_open(&d, sets, NULL, &r, &t), ERR_RECIPE, "drafter.mask_token=261");
    files_end(&d);
}

static void init_takes_weights_and_shape_of_another_drafter(void **s) {
    (void)s;
    files_dir d;
    tiny_run_make(&d, 7);
    assert_ok(tiny_run(&d, NULL, NULL, NULL, NULL));
    recipe *r;
    train *t;
    const char *const wrong[] = {"drafter.init=out/drafter", "run.out=second", "drafter.layers=3",
                                 NULL};
    assert_says(tiny_run_open(&d, wrong, NULL, &r, &t), ERR_RECIPE, "drafter.layers is 3", "has 2");
    const char *const mask[] = {"drafter.init=out/drafter", "run.out=second",
                                "drafter.mask_token=262", NULL};
    assert_says(tiny_run_open(&d, mask, NULL, &r, &t), ERR_RECIPE, "drafter.mask_token is 262",
                "has 261");
    /* A rate of 0 changes nothing: what comes out is what went in. */
    const char *const right[] = {"drafter.init=out/drafter", "run.out=second", "optimizer.lr=0",
                                 NULL};
    assert_ok(tiny_run(&d, right, NULL, NULL, NULL));
    char a[33], b[33];
    assert_ok(file_hash(files_at(&d, "out/drafter/model.safetensors"), a));
    assert_ok(file_hash(files_at(&d, "second/drafter/model.safetensors"), b));
    assert_string_equal(a, b);
    files_end(&d);
}

/* A drafter whose weights overflow: every update is bad, changes nothing, and the third in a row ends the run. */
static void b22_bad_updates_change_nothing_and_end_the_run(void **s) {
    (void)s;
    files_dir d;
    tiny_run_make(&d, 8);
    assert_ok(tiny_run(&d, (const char *const[]){"run.max_updates=1", NULL}, NULL, NULL, NULL));
    drafter_config c;
    drafter_layout l;
    arena *a = NULL;
    float *p = NULL;
    dtype stored;
    char dir[700];
    snprintf(dir, sizeof dir, "%s/out/drafter", d.path);
    assert_ok(arena_create(&a, "test", 0));
    assert_ok(drafter_read_config(&c, dir));
    assert_ok(drafter_layout_make(&l, &c, a));
    assert_ok(arena_alloc(a, (size_t)l.total, sizeof *p, &p));
    assert_ok(drafter_read_params(&l, dir, p, &stored));
    const drafter_tensor *up = drafter_find(&l, "layers.0.mlp.up_proj.weight");
    for (int64_t i = 0; i < up->count; i++) p[up->offset + i] = 3e38f;
    snprintf(dir, sizeof dir, "%s/huge", d.path);
    assert_ok(drafter_save(&l, p, DT_BF16, dir));
    const char *const extra[] = {"drafter.init=huge",         "run.out=bad",
                                 "optimizer.max_bad_steps=3", "run.checkpoint_every=1",
                                 "run.evaluate_every=1000",   NULL};
    assert_says(tiny_run(&d, extra, NULL, NULL, NULL), ERR_NUMERIC, "3 updates in a row",
                "update 3");
    st_file *f = NULL;
    assert_ok(
        safetensors_open(&f, files_at(&d, "bad/checkpoints/step-00000002/masters.safetensors")));
    for (int i = 0; i < l.n; i++) {
        const tensor *t = safetensors_find(f, l.t[i].name);
        for (int64_t e = 0; e < l.t[i].count; e++) {
            float got, want = bf16_to_f32(bf16_from_f32(p[l.t[i].offset + e]));
            memcpy(&got, (const char *)t->data + e * 4, 4);
            assert_true(got == want);
        }
    }
    safetensors_close(f);
    assert_ok(
        safetensors_open(&f, files_at(&d, "bad/checkpoints/step-00000002/moments.safetensors")));
    for (int i = 0; i < safetensors_count(f); i++) {
        const tensor *t = safetensors_at(f, i);
        for (size_t k = 0; k < tensor_bytes(t); k++)
            assert_int_equal(((const uint8_t *)t->data)[k], 0);
    }
    safetensors_close(f);
    arena_destroy(a);
    files_end(&d);
}

/* Entries of x bit-equal to what other weights give; stored 1: as they are stored for serving. */
static int64_t unmoved(const drafter_tensor *t, const float *x, const float *from, int stored) {
    int64_t n = 0;
    for (int64_t e = t->offset; e < t->offset + t->count; e++)
        n += x[e] == (stored ? bf16_to_f32(bf16_from_f32(from[e])) : from[e]);
    return n;
}

/* 50 updates: in the masters no tensor has more than 1 % of its entries where they began. The export is their rounding to bf16, where
 * entries of a norm may come to lie beside 1.0 again: there it is 1 % of all. */
static void b21_every_tensor_moves(void **s) {
    (void)s;
    files_dir d;
    tiny_run_make(&d, 9);
    const char *const extra[] = {"run.max_updates=50",      "optimizer.schedule=constant",
                                 "run.checkpoint_every=50", "run.evaluate_every=1000",
                                 "anchors.per_document=20", NULL};
    assert_ok(tiny_run(&d, extra, NULL, NULL, NULL));
    drafter_config c;
    drafter_layout l;
    arena *a = NULL;
    float *stored = NULL, *first = NULL, *masters = NULL;
    dtype type;
    st_file *f = NULL;
    char dir[700];
    snprintf(dir, sizeof dir, "%s/out/drafter", d.path);
    assert_ok(arena_create(&a, "test", 0));
    assert_ok(drafter_read_config(&c, dir));
    assert_ok(drafter_layout_make(&l, &c, a));
    assert_ok(arena_alloc(a, (size_t)l.total, sizeof *stored, &stored));
    assert_ok(arena_alloc(a, (size_t)l.total, sizeof *first, &first));
    assert_ok(arena_alloc(a, (size_t)l.total, sizeof *masters, &masters));
    assert_ok(drafter_read_params(&l, dir, stored, &type));
    assert_int_equal(type, DT_BF16);
    assert_ok(
        safetensors_open(&f, files_at(&d, "out/checkpoints/step-00000050/masters.safetensors")));
    drafter_init(&l, 1, first);
    int64_t all = 0, count = 0;
    for (int i = 0; i < l.n; i++) {
        const drafter_tensor *t = &l.t[i];
        memcpy(masters + t->offset, safetensors_find(f, t->name)->data,
               (size_t)t->count * sizeof *masters);
        const int64_t n = unmoved(t, stored, first, 1);
        assert_int_equal(unmoved(t, stored, masters, 1), t->count);
        assert_true(unmoved(t, masters, first, 0) * 100 <= t->count);
        all += n;
        count += t->count;
    }
    assert_true(all * 100 <= count);
    safetensors_close(f);
    arena_destroy(a);
    files_end(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_leaves_what_it_promises),
        cmocka_unit_test(b44_runs_repeat_and_do_not_depend_on_threads),
        cmocka_unit_test(memory_is_taken_once_and_within_the_plan),
        cmocka_unit_test(plan_counts_what_the_run_does),
        cmocka_unit_test(refused_in_one_sentence),
        cmocka_unit_test(b35_mask_token_is_chosen_on_purpose),
        cmocka_unit_test(init_takes_weights_and_shape_of_another_drafter),
        cmocka_unit_test(b22_bad_updates_change_nothing_and_end_the_run),
        cmocka_unit_test(b21_every_tensor_moves),
    };
    return cmocka_run_group_tests_name("training run", tests, NULL, NULL);
}
