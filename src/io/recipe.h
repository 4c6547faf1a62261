/* Recipes: YAML events of libyaml checked against the field table recipe.def, with key=value overrides.
 *
 * Errors (ERR_RECIPE) carry file, line and column, and a suggestion for an unknown key. Anchors, aliases, tags,
 * duplicate keys, several documents and unknown values are refused. The section `drafters` names drafters that
 * are trained in one run; each overrides fields of the sections that concern a drafter alone. Text as a person would read it: `3x` is no integer.
 * Lists (taps, paths, devices) are counted arrays in the recipe's arena. Paths are made absolute: those of the file
 * from the file's folder, those of overrides from the working folder. */
#ifndef IO_RECIPE_H
#define IO_RECIPE_H
#include "core/arena.h"
#include "core/str.h"
#include <stdint.h>

typedef enum recipe_field {
#define X(section, key, kind, def, min, max, help) RECIPE_##section##_##key,
#include "io/recipe.def"
#undef X
    RECIPE_FIELD_COUNT
} recipe_field;

typedef struct recipe recipe;
/* overrides: n strings "section.key=value" or "drafters.NAME.section.key=value" (value in YAML flow syntax), from
 * the command line. */
MUST_CHECK err recipe_load(recipe **out, const char *path, const char *const *overrides, int n);
/* The same from n bytes of text; name stands for the file in errors, and its folder is that of relative paths. */
MUST_CHECK err recipe_load_memory(recipe **out, const char *name, const char *text, size_t size,
                                  const char *const *overrides, int n);
void recipe_free(recipe *r);
const char *recipe_path(const recipe *r);
/* Named drafters, in the order of the file; 0: the recipe has one, without a name. */
int recipe_drafters(const recipe *r);
const char *recipe_drafter_name(const recipe *r, int i); /* "" where there are no names, i 0 */
/* A complete recipe of drafter i alone, every field its own or else r's; it has no named drafters and belongs
 * to r. Its canonical text is that of a plain recipe of one drafter. r itself where there are no names, i 0. */
const recipe *recipe_drafter(const recipe *r, int i);
/* Typed access; asking with the wrong type is an assertion, and so is the number of a field that is auto or null. */
int64_t recipe_int(const recipe *r, recipe_field f);
double recipe_real(const recipe *r, recipe_field f);
int recipe_bool(const recipe *r, recipe_field f);
const char *recipe_text(
    const recipe *r,
    recipe_field f); /* TEXT, TEXT_OR_AUTO, CHOICE; PATH: absolute, or ""; PATH_OR_AUTO */
int recipe_is_auto(const recipe *r, recipe_field f); /* `auto`, or null for INT_OR_NULL */
int recipe_list(const recipe *r, recipe_field f,
                const char *const **items); /* PATHS, DEVICES: number */
int recipe_ints(const recipe *r, recipe_field f, const int64_t **items); /* INTS_OR_AUTO */
/* "FILE:LINE:COLUMN" of a field's value, or of "the default", for sentences about a value made later. */
const char *recipe_where(const recipe *r, recipe_field f);
/* The whole recipe, every field resolved, in canonical YAML: recorded in checkpoints and compared on resume.
 * Loading this text gives the same text again, wherever it lies: its paths are absolute. */
MUST_CHECK err recipe_canonical(const recipe *r, str *out);
const char *recipe_field_name(recipe_field f); /* "section.key" */
const char *recipe_field_help(recipe_field f);

#endif
