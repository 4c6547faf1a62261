/* Fuzzing recipes: any text either loads or is refused with a sentence; what loads prints as itself.
 *
 * Text after a NUL byte is given as an override. A canonical text that does not load, or prints as another
 * text, aborts. It does not touch files. */
#include "io/recipe.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_round_trip(const recipe *r) {
    recipe *again = NULL;
    str first = {0}, second = {0};
    if (recipe_canonical(r, &first)) abort();
    if (recipe_load_memory(&again, "/fuzz.yaml", first.s, first.n, NULL, 0)) abort();
    if (recipe_canonical(again, &second)) abort();
    if (first.n != second.n || memcmp(first.s, second.s, first.n) != 0) abort();
    recipe_free(again);
    str_free(&first);
    str_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    recipe *r = NULL;
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t text = nul ? (size_t)(nul - data) : size, rest = nul ? size - text - 1 : 0;
    char *override = malloc(rest + 1);
    if (!override) abort();
    if (rest) memcpy(override, nul + 1, rest);
    override[rest] = 0;
    const char *const overrides[] = {override};
    if (recipe_load_memory(&r, "/fuzz.yaml", (const char *)data, text, overrides, nul != NULL)) {
        if (r || !*err_text()) abort();
    } else {
        check_round_trip(r);
        for (int i = 0; i < recipe_drafters(r); i++) check_round_trip(recipe_drafter(r, i));
        recipe_free(r);
    }
    free(override);
    return 0;
}
