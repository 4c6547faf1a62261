/* Named drafters of a recipe: what they override and inherit, what is refused where, canonical texts, and the
 * two recipes for eight devices.
 *
 * The last case flips bytes of a recipe with drafters at random, which may refuse or load; what loads must have
 * texts that load to themselves. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "io/recipe_check.h"
#include "support/files.h"
#include "support/numbers.h"

#define NEEDED "target: {path: t.gguf}\ndata: {path: d.jsonl}\nrun: {out: o}\n"
#define TWO                                                                                        \
    NEEDED "drafter: {layers: 3, block_size: 8}\noptimizer: {lr: 6.0e-4}\n"                        \
           "drafters:\n  small:\n    drafter:   {layers: 1}\n    optimizer: {lr: 1.0e-3}\n"        \
           "    devices:   [cpu:5]\n  wide:\n    anchors: {per_document: 512}\n"                   \
           "    devices: [cpu:6, cpu:7]\n"

static err load(recipe **r, const char *text, const char *const *set, int n) {
    return recipe_load_memory(r, "r.yaml", text, strlen(text), set, n);
}

/* What is said about text and an override (NULL: none); a recipe that loads is an error here. */
static err try_both(const char *text, const char *override) {
    recipe *r;
    err e = load(&r, text, &override, override != NULL);
    if (!e) recipe_free(r);
    return e;
}

static err try_names(const char *drafters) {
    char text[1024];
    snprintf(text, sizeof text, NEEDED "drafters:\n  %s\n", drafters);
    return try_both(text, NULL);
}

static void own_fields_and_those_of_the_base(void **state) {
    (void)state;
    recipe *r;
    const char *const *items;
    assert_ok(load(&r, TWO, NULL, 0));
    assert_int_equal(recipe_drafters(r), 2);
    assert_string_equal(recipe_drafter_name(r, 0), "small");
    assert_string_equal(recipe_drafter_name(r, 1), "wide");
    const recipe *small = recipe_drafter(r, 0), *wide = recipe_drafter(r, 1);
    assert_int_equal(recipe_int(small, RECIPE_drafter_layers), 1);
    assert_int_equal(recipe_int(wide, RECIPE_drafter_layers), 3);
    assert_int_equal(recipe_int(r, RECIPE_drafter_layers), 3);
    assert_int_equal(recipe_int(small, RECIPE_drafter_block_size), 8);
    assert_true(recipe_real(small, RECIPE_optimizer_lr) == 1e-3);
    assert_true(recipe_real(wide, RECIPE_optimizer_lr) == 6e-4);
    assert_int_equal(recipe_int(small, RECIPE_anchors_per_document), 256);
    assert_int_equal(recipe_int(wide, RECIPE_anchors_per_document), 512);
    assert_int_equal(recipe_list(small, RECIPE_devices_drafter, &items), 1);
    assert_string_equal(items[0], "cpu:5");
    assert_int_equal(recipe_list(wide, RECIPE_devices_drafter, &items), 2);
    assert_string_equal(items[1], "cpu:7");
    assert_true(recipe_is_auto(r, RECIPE_devices_drafter));
    assert_string_equal(recipe_text(small, RECIPE_target_path), recipe_text(r, RECIPE_target_path));
    assert_string_equal(recipe_path(small), "r.yaml");
    /* places: its own, the base's, the default */
    assert_string_equal(recipe_where(small, RECIPE_drafter_layers), "r.yaml:8:25");
    assert_string_equal(recipe_where(wide, RECIPE_drafter_layers), "r.yaml:4:19");
    assert_string_equal(recipe_where(wide, RECIPE_devices_drafter), "r.yaml:13:14");
    assert_string_equal(recipe_where(wide, RECIPE_optimizer_clip), "the default");
    assert_int_equal(recipe_drafters(small), 0);
    assert_ptr_equal(recipe_drafter(small, 0), small);
    recipe_free(r);
}

static void without_names_there_is_one(void **state) {
    (void)state;
    recipe *r;
    assert_ok(load(&r, NEEDED, NULL, 0));
    assert_int_equal(recipe_drafters(r), 0);
    assert_ptr_equal(recipe_drafter(r, 0), r);
    assert_string_equal(recipe_drafter_name(r, 0), "");
    recipe_free(r);
    assert_ok(load(&r, NEEDED "drafters: {}\n", NULL, 0));
    assert_int_equal(recipe_drafters(r), 0);
    check_round_trip(r);
    recipe_free(r);
}

static void overrides_reach_one_drafter(void **state) {
    (void)state;
    recipe *r;
    const char *const *items;
    const char *const set[] = {
        "drafters.small.optimizer.lr=3e-4", "drafters.small.devices=[cuda:1]",
        "drafters.wide.drafter.sliding_window=64", "optimizer.lr=5e-4", "drafter.init=k/init"};
    assert_ok(load(&r, TWO, set, 5));
    const recipe *small = recipe_drafter(r, 0), *wide = recipe_drafter(r, 1);
    assert_true(recipe_real(small, RECIPE_optimizer_lr) == 3e-4);
    assert_true(recipe_real(wide, RECIPE_optimizer_lr) == 5e-4);
    assert_string_equal(recipe_where(small, RECIPE_optimizer_lr),
                        "command line: drafters.small.optimizer.lr=3e-4");
    assert_string_equal(recipe_where(wide, RECIPE_optimizer_lr), "command line: optimizer.lr=5e-4");
    assert_int_equal(recipe_list(small, RECIPE_devices_drafter, &items), 1);
    assert_string_equal(items[0], "cuda:1");
    assert_true(recipe_is_auto(small, RECIPE_drafter_sliding_window));
    assert_int_equal(recipe_int(wide, RECIPE_drafter_sliding_window), 64);
    assert_int_equal(*recipe_text(wide, RECIPE_drafter_init), '/');
    check_round_trip(r);
    recipe_free(r);
}

static void overrides_refused(void **state) {
    (void)state;
    static const struct {
        const char *set, *says[2];
    } cases[] = {
        {"drafters.smal.optimizer.lr=1", {"names no drafter 'smal'", "mean small?"}},
        {"drafters.zzzzzzzz.optimizer.lr=1", {"names no drafter 'zzzzzzzz'", "r.yaml"}},
        {"drafters.small.optimizer.rl=1", {"unknown key 'optimizer.rl'", "mean optimizer.lr?"}},
        {"drafters.small.optimiser.lr=1", {"unknown section 'optimiser'", "mean optimizer?"}},
        {"drafters.small.lr=1", {"unknown section 'lr'", "optimizer.lr"}},
        {"drafters.small.optimizer=1", {"section.key=value", ""}},
        {"drafters.small=1", {"drafters.NAME.section.key=value", "drafters.NAME.devices"}},
        {"drafters=1", {"drafters.NAME.section.key=value", ""}},
        {"drafter.small.lr=1", {"unknown key 'drafter.small.lr'", ""}},
        {"drafters.small.run.seed=1",
         {"'small' cannot have a section 'run'", "share target, data"}},
        {"drafters.small.devices.drafter=[cpu:1]", {"drafters.small.devices=[cpu:5]", ""}},
        {"drafters.small.devices=[cpu, cpu:0]", {"drafters.small.devices names", "twice"}},
        {"drafters.small.devices=gpu", {"drafters.small.devices must be auto", "'gpu'"}},
        {"drafters.wide.optimizer.lr=3x", {"drafters.wide.optimizer.lr must be a number", "'3x'"}},
        {"drafters.wide.drafter.layers=99", {"drafters.wide.drafter.layers", "between 1 and 64"}},
    };
    char place[160];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(place, sizeof place, "command line: %s: ", cases[i].set);
        assert_says(try_both(TWO, cases[i].set), ERR_RECIPE, place, cases[i].says[0],
                    cases[i].says[1]);
    }
    assert_says(try_both(NEEDED, "drafters.small.optimizer.lr=1"), ERR_RECIPE,
                "r.yaml names no drafters");
    recipe *r;
    const char *const twice[] = {"drafters.small.optimizer.lr=1", "drafters.small.optimizer.lr=2"};
    assert_says(load(&r, TWO, twice, 2), ERR_RECIPE,
                "drafters.small.optimizer.lr was given already, in command line");
    assert_null(r);
}

static void names_and_sections_refused_with_place(void **state) {
    (void)state;
    assert_says(try_names("a b: {}"), ERR_RECIPE, "r.yaml:5:3: ", "'a b'", "letters, digits");
    assert_says(try_names("\"\": {}"), ERR_RECIPE, "r.yaml:5:3: ", "1 to 40 letters");
    assert_says(try_names("../x: {}"), ERR_RECIPE, "r.yaml:5:3: ", "'../x'", "a folder");
    assert_says(try_names("x23456789_123456789-123456789_123456789_1: {}"), ERR_RECIPE,
                "r.yaml:5:3: ", "1 to 40 letters");
    assert_says(try_names("small: {}\n  small: {}"), ERR_RECIPE,
                "r.yaml:6:3: drafter 'small' was given already, at r.yaml:5:3");
    assert_says(try_names("small: {run: {seed: 1}}"), ERR_RECIPE,
                "r.yaml:5:11: ", "cannot have a section 'run'",
                "share target, data, features and run");
    assert_says(try_names("small: {data: {max_length: 9}}"), ERR_RECIPE, "r.yaml:5:11: ", "'data'");
    assert_says(try_names("small: {target: {path: x}}"), ERR_RECIPE, "r.yaml:5:11: ", "'target'");
    assert_says(try_names("small: {features: {store: x}}"), ERR_RECIPE,
                "r.yaml:5:11: ", "'features'");
    assert_says(try_names("small: {drafters: {}}"), ERR_RECIPE, "r.yaml:5:11: ", "drafters again");
    assert_says(try_names("small: {optimiser: {lr: 1}}"), ERR_RECIPE,
                "r.yaml:5:11: unknown section 'optimiser'", "mean optimizer?");
    assert_says(try_names("small: {lr: 1}"), ERR_RECIPE, "r.yaml:5:11: ", "optimizer.lr?");
    assert_says(try_names("small: {optimizer: {rl: 1}}"), ERR_RECIPE,
                "r.yaml:5:23: unknown key 'optimizer.rl'", "mean optimizer.lr?");
    assert_says(try_names("small: {optimizer: {lr: 3x}}"), ERR_RECIPE,
                "r.yaml:5:27: drafters.small.optimizer.lr must be a number");
    assert_says(try_names("small: {optimizer: {lr: 1, lr: 2}}"), ERR_RECIPE,
                "r.yaml:5:30: drafters.small.optimizer.lr was given already, at r.yaml:5:27");
    assert_says(try_names("small: {loss: {gamma: 2}, loss: {gamma: 3}}"), ERR_RECIPE,
                "r.yaml:5:29: section 'loss' was given already, at r.yaml:5:11");
    assert_says(try_names("small: {optimizer: 3}"), ERR_RECIPE,
                "r.yaml:5:22: ", "'optimizer' must hold fields");
    assert_says(try_names("small: {devices: {drafter: [cpu]}}"), ERR_RECIPE,
                "r.yaml:5:20: ", "drafters.small.devices must be a value or a list");
    assert_says(try_names("small: {devices: [gpu:1]}"), ERR_RECIPE, "r.yaml:5:21: ", "'gpu:1'");
    assert_says(try_names("small: {devices: []}"), ERR_RECIPE, "r.yaml:5:20: ", "an empty list");
    assert_says(try_names("small: {devices: [cpu:1, cpu:1]}"), ERR_RECIPE,
                "r.yaml:5:28: ", "drafters.small.devices names the device cpu:1 twice");
    assert_says(try_names("small: {devices: [cpu:1], devices: [cpu:2]}"), ERR_RECIPE,
                "r.yaml:5:29: drafters.small.devices was given already, at r.yaml:5:20");
    assert_says(try_names("small: {anchors: &a {}}"), ERR_RECIPE, "r.yaml:5:20: ", "anchors (&");
    assert_says(try_names("small: [1]"), ERR_RECIPE, "r.yaml:5:10: ", "must hold sections");
    assert_says(try_names("small:"), ERR_RECIPE, "drafter 'small' must hold sections");
    assert_says(try_names("[a]: {}"), ERR_RECIPE, "r.yaml:5:3: ", "plain text");
    assert_says(try_names("small: {[a]: {}}"), ERR_RECIPE, "r.yaml:5:11: ", "plain text");
    assert_says(try_both(NEEDED "drafters: [a]\n", NULL), ERR_RECIPE,
                "r.yaml:4:11: ", "must hold names");
    assert_says(try_both(NEEDED "drafters: {a: {}}\ndrafters: {b: {}}\n", NULL), ERR_RECIPE,
                "r.yaml:5:1: section 'drafters' was given already, at r.yaml:4:1");
    assert_says(try_both(NEEDED "draftesr: {a: {}}\n", NULL), ERR_RECIPE, "mean drafters?");
    assert_says(try_both(NEEDED "drafters: {a: {loss: {gamma: 0}}}\n", "drafters.a.loss.gamma=2"),
                ERR_RECIPE, "r.yaml:4:30: drafters.a.loss.gamma");
}

static void too_many_drafters_refused(void **state) {
    (void)state;
    char text[4096] = NEEDED "drafters:\n";
    recipe *r;
    for (int i = 0; i < 32; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "  d%d: {}\n", i);
    assert_ok(load(&r, text, NULL, 0));
    assert_int_equal(recipe_drafters(r), 32);
    assert_string_equal(recipe_drafter_name(r, 31), "d31");
    recipe_free(r);
    strcat(text, "  more: {}\n");
    assert_says(try_both(text, NULL), ERR_RECIPE, "r.yaml:37:3: drafter 'more'", "at most 32");
}

static void canonical_texts_load_to_themselves(void **state) {
    (void)state;
    recipe *r;
    str s = {0};
    assert_ok(load(&r,
                   TWO "  \"-\": {devices: auto}\n  --: {}\n  -1: {drafter: {}}\n  null: {}\n"
                       "  1e3: {devices: cpu}\n  _: {drafter: {taps: [1, 2], init: \"\"}}\n",
                   NULL, 0));
    assert_int_equal(recipe_drafters(r), 8);
    check_round_trip(r);
    assert_ok(recipe_canonical(r, &s));
    assert_non_null(strstr(s.s, "drafters:\n  small:\n    drafter:\n      layers: 1\n"
                                "    optimizer:\n      lr: 0.001\n    devices: [\"cpu:5\"]\n"
                                "  wide:\n    anchors:\n      per_document: 512\n"));
    assert_non_null(strstr(s.s, "  --: {}\n"));
    str_free(&s);
    recipe_free(r);
}

/* What a drafter's checkpoints record is what a separate run of it would record. */
static void a_drafter_reads_as_a_run_of_its_own(void **state) {
    (void)state;
    recipe *r, *alone;
    str a = {0}, b = {0};
    assert_ok(load(&r, TWO, NULL, 0));
    assert_ok(load(&alone,
                   NEEDED "drafter: {layers: 1, block_size: 8}\noptimizer: {lr: 1.0e-3}\n"
                          "devices: {drafter: [cpu:5]}\n",
                   NULL, 0));
    assert_ok(recipe_canonical(recipe_drafter(r, 0), &a));
    assert_ok(recipe_canonical(alone, &b));
    assert_string_equal(a.s, b.s);
    str_free(&a);
    str_free(&b);
    recipe_free(alone);
    recipe_free(r);
}

static void recipes_for_eight_devices_load(void **state) {
    (void)state;
    static const char *const sets[2][5] = {
        {"devices.target=[cuda:0,cuda:1,cuda:2,cuda:3,cuda:4]",
         "devices.drafter=[cuda:5,cuda:6,cuda:7]"},
        {"devices.target=[cuda:0,cuda:1,cuda:2,cuda:3,cuda:4]", "drafters.small.devices=[cuda:5]",
         "drafters.base.devices=[cuda:6]", "drafters.wide.devices=[cuda:7]", "run.seed=2"}};
    static const char *const files[] = {"recipes/eight.yaml", "recipes/eight-three.yaml"};
    static const char *const marks[] = {"cpu:", "cuda:"};
    const char *const *items;
    for (int k = 0; k < 4; k++) {
        recipe *r;
        char want[16];
        int at = 0;
        assert_ok(recipe_load(&r, files[k / 2], sets[k / 2], k % 2 ? k / 2 ? 5 : 2 : 0));
        check_round_trip(r);
        for (int n = recipe_list(r, RECIPE_devices_target, &items); at < n; at++) {
            snprintf(want, sizeof want, "%s%d", marks[k % 2], at);
            assert_string_equal(items[at], want);
        }
        assert_int_equal(at, 5);
        assert_int_equal(recipe_drafters(r), k / 2 ? 3 : 0);
        for (int i = 0; i < (k / 2 ? 3 : 1); i++)
            for (int j = 0, n = recipe_list(recipe_drafter(r, i), RECIPE_devices_drafter, &items);
                 j < n; j++, at++) {
                snprintf(want, sizeof want, "%s%d", marks[k % 2], at);
                assert_string_equal(items[j], want);
            }
        assert_int_equal(at, 8);
        recipe_free(r);
    }
}

static void random_flips_never_crash(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    static const char text[] = TWO "  x: {drafter: {taps: [1, 2]}, loss: {gamma: 2}}\n";
    static const char marks[] = "{}[]:,#&*!|>'\"%@`-?\n\t ~0_x.";
    static const char *const sets[] = {"drafters.wide.optimizer.lr=3e-4", "drafters.x.devices=cpu",
                                       "drafters.small.loss.gamma=2"};
    int loaded = 0;
    for (uint64_t round = 0; round < 5000; round++) {
        char copy[sizeof text];
        memcpy(copy, text, sizeof text);
        uint64_t flips = rng_below(seed, RNG_TEST, round, 0, 3);
        size_t n =
            round % 4 ? sizeof text - 1 : (size_t)rng_below(seed, RNG_TEST, round, 1, sizeof text);
        for (uint64_t k = 0; k < flips; k++)
            copy[rng_below(seed, RNG_TEST, round, 10 + 2 * k, sizeof text - 1)] =
                marks[rng_below(seed, RNG_TEST, round, 11 + 2 * k, sizeof marks - 1)];
        recipe *r = NULL;
        const int n_sets = (int)rng_below(seed, RNG_TEST, round, 2, 4);
        if (!recipe_load_memory(&r, "r.yaml", copy, n, sets, n_sets)) {
            loaded++;
            check_round_trip(r);
            recipe_free(r);
        } else {
            assert_null(r);
            assert_true(strstr(err_text(), "r.yaml") || strstr(err_text(), "command line"));
        }
    }
    assert_true(loaded > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_fields_and_those_of_the_base),
        cmocka_unit_test(without_names_there_is_one),
        cmocka_unit_test(overrides_reach_one_drafter),
        cmocka_unit_test(overrides_refused),
        cmocka_unit_test(names_and_sections_refused_with_place),
        cmocka_unit_test(too_many_drafters_refused),
        cmocka_unit_test(canonical_texts_load_to_themselves),
        cmocka_unit_test(a_drafter_reads_as_a_run_of_its_own),
        cmocka_unit_test(recipes_for_eight_devices_load),
        cmocka_unit_test(random_flips_never_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
