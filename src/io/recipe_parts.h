/* What the files of the recipe reader share: the field table as data, YAML nodes, typed values, the handle.
 *
 * recipe_yaml.c turns YAML events into nodes and finds their fields; recipe_value.c turns a node into a typed
 * value; recipe.c loads, fills in defaults, answers and prints; recipe_drafters.c keeps the named drafters, each
 * a recipe of its own that lends memory, path and locale from the whole one. Private to src/io. */
#ifndef IO_RECIPE_PARTS_H
#define IO_RECIPE_PARTS_H
#include "core/arena.h"
#include "io/recipe.h"
#include <locale.h>

typedef enum recipe_kind {
    KIND_TEXT,
    KIND_PATH,
    KIND_PATHS,
    KIND_INT,
    KIND_REAL,
    KIND_BOOL,
    KIND_CHOICE,
    KIND_INTS_OR_AUTO,
    KIND_INT_OR_AUTO,
    KIND_INT_OR_NULL,
    KIND_TEXT_OR_AUTO,
    KIND_PATH_OR_AUTO,
    KIND_DEVICES
} recipe_kind;

typedef struct recipe_spec {
    const char *section, *key, *name; /* name: "section.key" */
    recipe_kind kind;
    const char *def; /* NULL: required */
    double min, max;
    const char *help;
} recipe_spec;

/* A scalar or a flat list of scalars, as it stands in YAML. */
typedef struct recipe_scalar {
    const char *text;
    int plain; /* not quoted and not a block */
    const char *where;
} recipe_scalar;

typedef struct recipe_node {
    const char *where; /* "FILE:LINE:COLUMN", "command line: optimizer.lr=3x" or "the default" */
    int is_list, n;    /* a scalar has n 1 */
    recipe_scalar *items;
} recipe_node;

/* FROM_BASE: a named drafter's field that it takes from the whole recipe. */
typedef enum recipe_origin {
    FROM_NOWHERE,
    FROM_FILE,
    FROM_OVERRIDE,
    FROM_DEFAULT,
    FROM_BASE
} recipe_origin;

typedef struct recipe_value {
    recipe_origin origin;
    const char *where;
    int is_auto; /* auto, or null where that is possible */
    int64_t whole;
    double real;
    int truth;
    const char *text;
    int n;              /* of a list */
    const char **texts; /* [n] */
    int64_t *ints;      /* [n] */
} recipe_value;

enum { RECIPE__DRAFTER_LIMIT = 32 };

struct recipe {
    arena *mem;
    const char *path;
    locale_t
        locale; /* "C": numbers are read and written with a point whatever the host program set */
    recipe_value values[RECIPE_FIELD_COUNT];
    const char *section_where[RECIPE_FIELD_COUNT]; /* of the file, by a section's first field */
    const char *drafters_where;                    /* of the section `drafters`, or NULL */
    recipe **drafters;                             /* [n_drafters], in the arena */
    int n_drafters;
    const char *name, *name_where; /* of a named drafter; NULL in the whole recipe */
};

const recipe_spec *recipe__spec(recipe_field f);
/* The field of section and key; ERR_RECIPE at `where` with a suggestion. key NULL: only the section is checked,
 * and *f is its first field. */
MUST_CHECK err recipe__find(const char *where, const char *section, const char *key,
                            recipe_field *f);
/* What sentences call a field: "section.key", and "drafters.NAME." before it for a named drafter's. */
MUST_CHECK err recipe__field_name(recipe *r, recipe_field f, const char **out);
/* A field's value in canonical form; the same with "key: " before it, indented, and a line's end after it. */
MUST_CHECK err recipe__add_value(str *out, const recipe *r, recipe_field f);
MUST_CHECK err recipe__add_field(str *out, const recipe *r, recipe_field f, int depth);

/* A new named drafter; ERR_RECIPE at `where` when the name is malformed or taken. */
MUST_CHECK err recipe__drafter_add(recipe *r, const char *where, const char *name, recipe **out);
/* The drafter of that name; ERR_RECIPE at `where` with a suggestion. */
MUST_CHECK err recipe__drafter_find(const recipe *r, const char *where, const char *name,
                                    recipe **out);
/* Whether a named drafter may set this section; unknown ones pass, recipe__find refuses them. */
MUST_CHECK err recipe__drafter_section(const recipe *drafter, const char *where,
                                       const char *section);
/* Fills what named drafters left out from the whole recipe, whose fields are all known by now. */
void recipe__drafters_fill(recipe *r);
/* The section `drafters` in canonical form; nothing without named drafters. */
MUST_CHECK err recipe__add_drafters(str *out, const recipe *r);

/* Reads the document and assigns every field in it. base: folder of relative paths. */
MUST_CHECK err recipe__read_file(recipe *r, const char *base, const char *text, size_t n);
/* Reads one "section.key=value". */
MUST_CHECK err recipe__read_override(recipe *r, const char *base, const char *text);
/* Checks node against the field and stores its value. */
MUST_CHECK err recipe__assign(recipe *r, recipe_field f, recipe_origin origin,
                              const recipe_node *node, const char *base);
/* Shortest decimal text that reads back as the same number. Needs the "C" locale in force. */
const char *recipe__real_text(double v, char buf[40]);
/* A formatted text in the recipe's arena. */
MUST_CHECK err recipe__text(recipe *r, const char **out, const char *fmt, ...) PRINTF_LIKE(3, 4);

#endif
