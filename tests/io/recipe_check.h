/* The canonical text of a recipe and of its drafters, checked against itself; for the recipe tests.
 *
 * A text must load, from another folder, to the same text; a drafter's must load as a plain recipe of one
 * drafter and be the same whether its recipe was read from the file or from the canonical text. */
#ifndef IO_RECIPE_CHECK_H
#define IO_RECIPE_CHECK_H
#include "io/recipe.h"
#include "support/says.h"

static inline void check_one_text(const recipe *r, const recipe *other) {
    str first = {0}, second = {0}, third = {0};
    recipe *again;
    assert_ok(recipe_canonical(r, &first));
    assert_ok(recipe_canonical(other, &third));
    assert_string_equal(first.s, third.s);
    assert_ok(recipe_load_memory(&again, "/other.yaml", first.s, first.n, NULL, 0));
    assert_ok(recipe_canonical(again, &second));
    assert_string_equal(first.s, second.s);
    assert_int_equal(recipe_drafters(again), recipe_drafters(r));
    recipe_free(again);
    str_free(&first);
    str_free(&second);
    str_free(&third);
}

static inline void check_round_trip(const recipe *r) {
    str text = {0};
    recipe *again;
    assert_ok(recipe_canonical(r, &text));
    assert_ok(recipe_load_memory(&again, "/other.yaml", text.s, text.n, NULL, 0));
    check_one_text(r, again);
    assert_int_equal(recipe_drafters(again), recipe_drafters(r));
    for (int i = 0; i < recipe_drafters(r); i++) {
        assert_string_equal(recipe_drafter_name(again, i), recipe_drafter_name(r, i));
        assert_int_equal(recipe_drafters(recipe_drafter(r, i)), 0);
        check_one_text(recipe_drafter(r, i), recipe_drafter(again, i));
    }
    recipe_free(again);
    str_free(&text);
}

#endif
