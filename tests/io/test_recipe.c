/* Recipes: every refusal with its place and its hint, typed answers, paths, and the canonical text.
 *
 * Recipes are texts given here; the last case flips bytes of one at random, which may refuse or load, and what
 * loads must have a canonical text that loads to itself. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "io/recipe_check.h"
#include "support/files.h"
#include "support/numbers.h"
#include <limits.h>
#include <locale.h>

#define NEEDED "target: {path: t.gguf}\ndata: {path: d.jsonl}\nrun: {out: o}\n"

static err load(recipe **r, const char *text) {
    return recipe_load_memory(r, "r.yaml", text, strlen(text), NULL, 0);
}

/* What is said about text; a recipe that loads is an error here. */
static err try_text(const char *text) {
    recipe *r;
    err e = load(&r, text);
    if (!e) recipe_free(r);
    return e;
}

static err try_override(const char *override) {
    recipe *r;
    err e = recipe_load_memory(&r, "r.yaml", NEEDED, sizeof NEEDED - 1, &override, 1);
    if (!e) recipe_free(r);
    return e;
}

static void typed_answers(void **state) {
    (void)state;
    recipe *r;
    assert_ok(load(
        &r, NEEDED
        "optimizer:\n  lr: 1e-4 # comment\n  schedule: wsd\ndrafter: {taps: [1, 9, 17], sliding_window: 64,"
        " mask_token: 5, layers: 4}\nloss: {gamma: 7}\ndevices: {target: cpu, drafter: [cuda:0, cuda:1]}\n"));
    const int64_t *ints;
    const char *const *texts;
    assert_true(recipe_real(r, RECIPE_optimizer_lr) == 1e-4);
    assert_true(recipe_real(r, RECIPE_loss_gamma) == 7);
    assert_string_equal(recipe_text(r, RECIPE_optimizer_schedule), "wsd");
    assert_int_equal(recipe_ints(r, RECIPE_drafter_taps, &ints), 3);
    assert_int_equal(ints[2], 17);
    assert_int_equal(recipe_int(r, RECIPE_drafter_sliding_window), 64);
    assert_int_equal(recipe_int(r, RECIPE_drafter_mask_token), 5);
    assert_int_equal(recipe_list(r, RECIPE_devices_target, &texts), 1);
    assert_string_equal(texts[0], "cpu");
    assert_int_equal(recipe_list(r, RECIPE_devices_drafter, &texts), 2);
    assert_string_equal(texts[1], "cuda:1");
    assert_string_equal(recipe_where(r, RECIPE_optimizer_lr), "r.yaml:5:7");
    assert_string_equal(recipe_where(r, RECIPE_optimizer_clip), "the default");
    assert_string_equal(recipe_path(r), "r.yaml");
    recipe_free(r);
}

static void defaults_are_those_of_the_table(void **state) {
    (void)state;
    recipe *r;
    const int64_t *ints;
    assert_ok(load(&r, NEEDED));
    assert_int_equal(recipe_int(r, RECIPE_drafter_layers), 3);
    assert_true(recipe_real(r, RECIPE_optimizer_lr) == 6e-4);
    assert_true(recipe_is_auto(r, RECIPE_drafter_taps));
    assert_int_equal(recipe_ints(r, RECIPE_drafter_taps, &ints), 0);
    assert_true(recipe_is_auto(r, RECIPE_drafter_sliding_window));
    assert_true(recipe_is_auto(r, RECIPE_data_template));
    assert_string_equal(recipe_text(r, RECIPE_data_template), "auto");
    assert_string_equal(recipe_text(r, RECIPE_data_validation), "");
    assert_false(recipe_bool(r, RECIPE_data_lenient));
    assert_true(recipe_is_auto(r, RECIPE_data_store));
    assert_string_equal(recipe_text(r, RECIPE_features_store), "");
    assert_string_equal(recipe_text(r, RECIPE_run_on_drafter_error), "continue");
    for (int f = 0; f < RECIPE_FIELD_COUNT; f++) {
        assert_non_null(strchr(recipe_field_name((recipe_field)f), '.'));
        assert_true(*recipe_field_help((recipe_field)f));
    }
    recipe_free(r);
}

static void values_refused_with_place_and_hint(void **state) {
    (void)state;
    static const struct {
        const char *value, *says[3];
    } cases[] = {
        {"optimizer: {lr: 3x}", {"r.yaml:4:17: optimizer.lr", "a number", "'3x'"}},
        {"optimizer: {lr: 1_0}", {"r.yaml:4:17", "'1_0'", "underscores"}},
        {"optimizer: {lr: .5}", {"r.yaml:4:17", "'.5'", "digit before the point"}},
        {"optimizer: {lr: \"1e-4\"}", {"r.yaml:4:17", "the quoted text '1e-4'", "quotes"}},
        {"optimizer: {lr: .inf}", {"r.yaml:4:17", "'.inf'", "finite"}},
        {"optimizer: {lr: nan}", {"r.yaml:4:17", "'nan'", "finite"}},
        {"optimizer: {lr: 1e999}", {"r.yaml:4:17", "between 0 and 10", "1e999"}},
        {"optimizer: {lr: -0.1}", {"r.yaml:4:17", "between 0 and 10", "-0.1"}},
        {"optimizer: {lr: 0x10}", {"r.yaml:4:17", "decimal", ""}},
        {"optimizer: {lr: [1]}", {"r.yaml:4:17", "a single number", "got a list"}},
        {"optimizer: {lr: {a: 1}}", {"r.yaml:4:17", "optimizer.lr", "got a mapping"}},
        {"optimizer: {lr: }", {"r.yaml:4:17", "a number", "got nothing"}},
        {"optimizer: {lr: null}", {"r.yaml:4:17", "a number", "'null'"}},
        {"optimizer: {schedule: cosin}",
         {"r.yaml:4:23", "one of cosine, wsd, constant", "mean cosine"}},
        {"optimizer: {schedule: 3}", {"r.yaml:4:23", "one of cosine, wsd, constant", "'3'"}},
        {"loss: {kind: mse}", {"r.yaml:4:14", "must be cross_entropy", "'mse'"}},
        {"drafter: {layers: 3.0}", {"r.yaml:4:19", "an integer", "digits alone"}},
        {"drafter: {layers: 3e0}", {"r.yaml:4:19", "an integer", "digits alone"}},
        {"drafter: {layers: 010}", {"r.yaml:4:19", "'010'", "octal"}},
        {"drafter: {layers: 0o7}", {"r.yaml:4:19", "'0o7'", "decimal"}},
        {"drafter: {layers: 0x7}", {"r.yaml:4:19", "'0x7'", "decimal"}},
        {"drafter: {layers: 1_0}", {"r.yaml:4:19", "'1_0'", "underscores"}},
        {"drafter: {layers: +3}", {"r.yaml:4:19", "'+3'", "without '+'"}},
        {"drafter: {layers: 65}", {"r.yaml:4:19", "between 1 and 64", "65"}},
        {"drafter: {layers: 0}", {"r.yaml:4:19", "between 1 and 64", "0"}},
        {"drafter: {layers: 99999999999999999999999}", {"r.yaml:4:19", "between 1 and 64", ""}},
        {"drafter: {layers: auto}", {"r.yaml:4:19", "an integer", "'auto'"}},
        {"drafter: {taps: 3}", {"r.yaml:4:17", "auto or a list", "'3'"}},
        {"drafter: {taps: []}", {"r.yaml:4:17", "auto or a list", "empty list"}},
        {"drafter: {taps: [1, x]}", {"r.yaml:4:21", "integers", "'x'"}},
        {"drafter: {taps: [1, -2]}", {"r.yaml:4:21", "between 0", "-2"}},
        {"drafter: {taps: [1, [2]]}", {"r.yaml:4:21", "drafter.taps", "plain values"}},
        {"drafter: {sliding_window: ~}", {"r.yaml:4:27", "integer or null", "write null"}},
        {"drafter: {sliding_window: auto}", {"r.yaml:4:27", "integer or null", "'auto'"}},
        {"drafter: {mask_token: null}", {"r.yaml:4:23", "integer or auto", "'null'"}},
        {"drafter: {init: ~/x}", {"r.yaml:4:17", "a path", "not expanded"}},
        {"drafter: {init: null}", {"r.yaml:4:17", "a path", "\"\" for none"}},
        {"devices: {target: gpu}", {"r.yaml:4:19", "cuda:1", "'gpu'"}},
        {"devices: {target: [auto]}", {"r.yaml:4:20", "cuda:1", "'auto'"}},
        {"devices: {target: [cuda:0, cuda:0]}", {"r.yaml:4:28", "cuda:0", "twice"}},
        {"devices: {target: cuda:01}", {"r.yaml:4:19", "'cuda:01'", ""}},
        {"devices: {target: 'cpu:'}", {"r.yaml:4:19", "'cpu:'", ""}},
        {"devices: {target: cpu:-1}", {"r.yaml:4:19", "'cpu:-1'", ""}},
        {"devices: {target: [cpu:3, cpu, cpu:0]}", {"r.yaml:4:32", "cpu:0", "twice"}},
        {"devices: {ring: 65}", {"r.yaml:4:17", "between 0 and 64", "65"}},
        {"features: {store: null}", {"r.yaml:4:19", "a path", "\"\" for none"}},
        {"features: {store: [a]}", {"r.yaml:4:19", "a single path", "got a list"}},
    };
    char text[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text, NEEDED "%s\n", cases[i].value);
        assert_says(try_text(text), ERR_RECIPE, cases[i].says[0], cases[i].says[1],
                    cases[i].says[2]);
    }
}

static void truth_is_true_or_false(void **state) {
    (void)state;
    static const char *const words[] = {"yes", "no",   "on",    "off", "y",
                                        "n",   "True", "FALSE", "Yes", "\"true\""};
    char text[256];
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        snprintf(text, sizeof text,
                 "target: {path: t}\ndata: {path: d, lenient: %s}\nrun: {out: o}\n", words[i]);
        assert_says(try_text(text), ERR_RECIPE, "r.yaml:2:26: data.lenient must be true or false",
                    "write true or false");
    }
    assert_says(try_text("data: {lenient: 1}"), ERR_RECIPE, "r.yaml:1:17", "'1'");
    recipe *r;
    assert_ok(load(&r, "target: {path: t}\ndata: {path: d, lenient: true}\nrun: {out: o}\n"));
    assert_true(recipe_bool(r, RECIPE_data_lenient));
    recipe_free(r);
}

static void names_refused_with_suggestion(void **state) {
    (void)state;
    assert_says(try_text("optimiser: {lr: 1}"), ERR_RECIPE,
                "r.yaml:1:1: unknown section 'optimiser'", "mean optimizer");
    assert_says(try_text("optimizer:\n  wieght_decay: 1"), ERR_RECIPE,
                "r.yaml:2:3: unknown key 'optimizer.wieght_decay'", "mean optimizer.weight_decay");
    assert_says(try_text("optimizer: {block_size: 1}"), ERR_RECIPE, "'optimizer.block_size'",
                "mean drafter.block_size");
    assert_says(try_text("optimizer.lr: 1"), ERR_RECIPE, "r.yaml:1:1", "'optimizer: {lr: ...}'");
    assert_says(try_text("block_size: 1"), ERR_RECIPE, "r.yaml:1:1", "drafter.block_size");
    assert_says(try_text("zzzzzz: {a: 1}"), ERR_RECIPE, "r.yaml:1:1: unknown section 'zzzzzz'");
    assert_says(try_text("loss: {qqqqqqq: 1}"), ERR_RECIPE,
                "r.yaml:1:8: unknown key 'loss.qqqqqqq'");
}

static void missing_and_double_fields(void **state) {
    (void)state;
    assert_says(try_text(""), ERR_RECIPE, "r.yaml: target.path, data.path, run.out are missing");
    assert_says(try_text("# nothing\n"), ERR_RECIPE, "target.path");
    assert_says(try_text("target: {path: t}\nrun: {out: o}\n"), ERR_RECIPE,
                "r.yaml: data.path is missing");
    assert_says(try_text("target: {path: \"\"}"), ERR_RECIPE, "r.yaml:1:16: target.path", "empty");
    assert_says(try_text("run: {out: o, seed: 1, seed: 2}"), ERR_RECIPE,
                "r.yaml:1:24: run.seed was given already, at r.yaml:1:21");
    assert_says(try_text("run: {out: o}\nrun: {seed: 2}"), ERR_RECIPE,
                "r.yaml:2:1: section 'run' was given already, at r.yaml:1:1");
    assert_says(try_text("data: {path: [a, a]}"), ERR_RECIPE, "r.yaml:1:18", "twice");
    assert_says(try_text("data: {store: ''}"), ERR_RECIPE, "r.yaml:1:15: data.store must be",
                "auto or a path", "cannot be empty");
    assert_says(try_text("data: {path: []}"), ERR_RECIPE, "r.yaml:1:14", "empty list");
    assert_says(try_text("loss:\n"), ERR_RECIPE, "'loss' must hold fields");
    assert_says(try_text("loss: 3\n"), ERR_RECIPE, "r.yaml:1:7", "'loss' must hold fields");
}

static void yaml_beyond_recipes_refused(void **state) {
    (void)state;
    assert_says(try_text("run: &a {out: o}"), ERR_RECIPE, "r.yaml:1:6", "anchors");
    assert_says(try_text("run: {out: &a o}"), ERR_RECIPE, "r.yaml:1:12", "anchors");
    assert_says(try_text("run: {out: *a}"), ERR_RECIPE, "r.yaml:1:12", "aliases");
    assert_says(try_text("run: {seed: !!int 3}"), ERR_RECIPE, "r.yaml:1:13", "tags");
    assert_says(try_text("run: {seed: !x 3}"), ERR_RECIPE, "r.yaml:1:13", "tags");
    assert_says(try_text("run: {out: o}\n---\nrun: {}\n"), ERR_RECIPE, "r.yaml:2:1", "second one");
    assert_says(try_text("%YAML 1.1\n---\nrun: {out: o}\n"), ERR_RECIPE, "directives");
    assert_says(try_text("- a\n"), ERR_RECIPE, "r.yaml:1:1", "mapping of sections");
    assert_says(try_text("hello\n"), ERR_RECIPE, "r.yaml:1:1", "mapping of sections");
    assert_says(try_text("? [a]\n: b\n"), ERR_RECIPE, "r.yaml:1:3", "plain text");
    assert_says(try_text("run: {? {a: 1} : b}\n"), ERR_RECIPE, "plain text");
    assert_says(try_text("run:\n\tout: o\n"), ERR_RECIPE, "r.yaml:2:1", "spaces");
    assert_says(try_text("run: {out: o\n"), ERR_RECIPE, "r.yaml:", "flow mapping");
    assert_says(try_text("run: {out: \"a\\0b\"}\n"), ERR_RECIPE, "r.yaml:1:12", "NUL");
    assert_says(try_text("run: {out: \xff}\n"), ERR_RECIPE, "r.yaml: byte 11", "UTF-8");
    recipe *r;
    assert_says(recipe_load(&r, "no/such/recipe.yaml", NULL, 0), ERR_IO, "no/such/recipe.yaml");
    assert_null(r);
}

static void overrides(void **state) {
    (void)state;
    recipe *r;
    const char *const set[] = {"optimizer.lr=3e-4", "drafter.taps=[2, 4]", "run.seed=9",
                               "devices.drafter=[cuda:5,cuda:6]", "drafter.mask_token=auto"};
    const int64_t *ints;
    const char *const *texts;
    assert_ok(
        recipe_load_memory(&r, "r.yaml", NEEDED "optimizer: {lr: 1}", sizeof NEEDED + 17, set, 5));
    assert_true(recipe_real(r, RECIPE_optimizer_lr) == 3e-4);
    assert_int_equal(recipe_ints(r, RECIPE_drafter_taps, &ints), 2);
    assert_int_equal(ints[1], 4);
    assert_int_equal(recipe_list(r, RECIPE_devices_drafter, &texts), 2);
    assert_string_equal(texts[1], "cuda:6");
    assert_string_equal(recipe_where(r, RECIPE_optimizer_lr), "command line: optimizer.lr=3e-4");
    recipe_free(r);
    assert_says(try_override("optimizer.lr=3x"), ERR_RECIPE,
                "command line: optimizer.lr=3x: ", "a number", "'3x'");
    assert_says(try_override("optimizer.rl=3"), ERR_RECIPE, "command line: optimizer.rl=3",
                "mean optimizer.lr");
    assert_says(try_override("optimiser.lr=3"), ERR_RECIPE, "command line: ", "mean optimizer");
    assert_says(try_override("layers=3"), ERR_RECIPE, "command line: layers=3", "drafter.layers");
    assert_says(try_override("optimizer.lr"), ERR_RECIPE,
                "command line: optimizer.lr: ", "section.key=value");
    assert_says(try_override("run=3"), ERR_RECIPE, "section.key=value");
    assert_says(try_override("drafter.taps=[1"), ERR_RECIPE, "command line: drafter.taps=[1: ");
    assert_says(try_override("drafter.layers=99"), ERR_RECIPE, "command line: drafter.layers=99",
                "between 1 and 64");
    assert_says(try_override("run.out="), ERR_RECIPE, "command line: run.out=", "nothing");
    assert_says(try_override("drafter.layers=3\n---\n4"), ERR_RECIPE, "one value");
    const char *const twice[] = {"run.seed=1", "run.seed=2"};
    assert_says(recipe_load_memory(&r, "r.yaml", NEEDED, sizeof NEEDED - 1, twice, 2), ERR_RECIPE,
                "command line: run.seed=2", "already", "run.seed=1");
    const char *const hides[] = {"run.seed=1"};
    assert_says(recipe_load_memory(&r, "r.yaml", "run: {seed: x}", 14, hides, 1), ERR_RECIPE,
                "r.yaml:1:13");
}

static void paths_follow_file_or_working_folder(void **state) {
    (void)state;
    files_dir d = files_begin();
    char want[PATH_MAX + 64], folder[PATH_MAX], here[PATH_MAX];
    recipe *r;
    const char *const *texts;
    files_must(realpath(d.path, folder) && realpath(".", here), "realpath");
    assert_ok(file_make_dirs(files_at(&d, "sub")));
    files_text(
        &d, "sub/r.yaml",
        "target: {path: ../m.gguf}\ndata: {path: [./a, /abs/b], validation: ../../../../../../../../../../x}\nrun: {out: q/../o}\n");
    const char *const set[] = {"drafter.init=k/init", "data.store=kept"};
    assert_ok(recipe_load(&r, d.name, set, 2));
    snprintf(want, sizeof want, "%s/m.gguf", folder);
    assert_string_equal(recipe_text(r, RECIPE_target_path), want);
    assert_int_equal(recipe_list(r, RECIPE_data_path, &texts), 2);
    snprintf(want, sizeof want, "%s/sub/a", folder);
    assert_string_equal(texts[0], want);
    assert_string_equal(texts[1], "/abs/b");
    assert_string_equal(recipe_text(r, RECIPE_data_validation), "/x");
    snprintf(want, sizeof want, "%s/sub/q/../o", folder);
    assert_string_equal(recipe_text(r, RECIPE_run_out), want);
    snprintf(want, sizeof want, "%s/k/init", here);
    assert_string_equal(recipe_text(r, RECIPE_drafter_init), want);
    snprintf(want, sizeof want, "%s/kept", here);
    assert_string_equal(recipe_text(r, RECIPE_data_store), want);
    assert_false(recipe_is_auto(r, RECIPE_data_store));
    recipe_free(r);
    files_end(&d);
}

static void canonical_round_trip(void **state) {
    (void)state;
    recipe *r;
    str s = {0};
    assert_ok(load(&r, NEEDED));
    check_round_trip(r);
    recipe_free(r);
    assert_ok(load(
        &r,
        "target: {path: \"/a \\\"b\\\" \\\\ \\n \\t \\u0085 \\u2028 \xc3\xa9 \xf0\x9f\x98\x80 #x: y\"}\n"
        "data: {path: ['a, b', '[c]', \"\\x7f\"], template: \"null\", lenient: true}\n"
        "run: {out: o, seed: 9007199254740991}\nloss: {gamma: 0.1}\n"
        "optimizer: {lr: 0.1234567890123456, eps: 1e-300, beta1: 0.9999999, min_lr: -0.0}\n"
        "drafter: {taps: [0, 65535], sliding_window: 7, mask_token: 0}\n"
        "devices: {drafter: [cpu:0, cuda:3]}\n"));
    check_round_trip(r);
    assert_ok(recipe_canonical(r, &s));
    assert_non_null(strstr(s.s, "  seed: 9007199254740991\n"));
    assert_non_null(strstr(s.s, "  gamma: 0.1\n"));
    assert_non_null(strstr(s.s, "  min_lr: 0\n"));
    assert_non_null(strstr(s.s, "  taps: [0, 65535]\n"));
    assert_non_null(strstr(s.s, "  drafter: [\"cpu:0\", \"cuda:3\"]\n"));
    str_free(&s);
    recipe_free(r);
}

static void locale_does_not_matter(void **state) {
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "C.UTF-8"};
    recipe *r;
    for (size_t i = 0; i < sizeof names / sizeof *names && !setlocale(LC_ALL, names[i]); i++) {
    }
    assert_ok(load(&r, NEEDED "optimizer: {lr: 0.25}"));
    assert_true(recipe_real(r, RECIPE_optimizer_lr) == 0.25);
    check_round_trip(r);
    recipe_free(r);
    setlocale(LC_ALL, "C");
}

static void random_flips_never_crash(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    static const char text[] = NEEDED
        "drafter: {taps: [1, 2], layers: 3, sliding_window: null}\noptimizer:\n  lr: 1.5e-4\n"
        "  schedule: \"cosine\"\ndevices:\n  drafter:\n  - cpu\n  - cuda:1\n";
    static const char marks[] = "{}[]:,#&*!|>'\"%@`-?\n\t ~0_x.";
    int loaded = 0;
    for (uint64_t round = 0; round < 5000; round++) {
        char copy[sizeof text];
        memcpy(copy, text, sizeof text);
        uint64_t flips = rng_below(seed, RNG_TEST, round, 0, 3);
        size_t n =
            round % 4 ? sizeof text - 1 : (size_t)rng_below(seed, RNG_TEST, round, 1, sizeof text);
        for (uint64_t k = 0; k < flips; k++)
            copy[rng_below(seed, RNG_TEST, round, 10 + 3 * k, sizeof text - 1)] =
                k % 2 ? (char)rng_below(seed, RNG_TEST, round, 11 + 3 * k, 256)
                      : marks[rng_below(seed, RNG_TEST, round, 12 + 3 * k, sizeof marks - 1)];
        recipe *r = NULL;
        if (!recipe_load_memory(&r, "r.yaml", copy, n, NULL, 0)) {
            loaded++;
            check_round_trip(r);
            recipe_free(r);
        } else {
            assert_null(r);
            assert_non_null(strstr(err_text(), "r.yaml"));
        }
    }
    assert_true(loaded > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(typed_answers),
        cmocka_unit_test(defaults_are_those_of_the_table),
        cmocka_unit_test(values_refused_with_place_and_hint),
        cmocka_unit_test(truth_is_true_or_false),
        cmocka_unit_test(names_refused_with_suggestion),
        cmocka_unit_test(missing_and_double_fields),
        cmocka_unit_test(yaml_beyond_recipes_refused),
        cmocka_unit_test(overrides),
        cmocka_unit_test(paths_follow_file_or_working_folder),
        cmocka_unit_test(canonical_round_trip),
        cmocka_unit_test(locale_does_not_matter),
        cmocka_unit_test(random_flips_never_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
