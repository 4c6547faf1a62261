/* Named drafters: the section `drafters` of a recipe, one complete recipe for each name.
 *
 * A named drafter is a recipe whose values are its own where the file or the command line gave one, and else the
 * whole recipe's, copied once everything is known; so all typed answers and places work on it as they are.
 * Which sections it may set is decided here: those that concern a drafter alone, and its devices. What drafters
 * mean together (two on one device, taps of different layers) is judged by those who place them. */
#include "core/str.h"
#include "io/recipe_parts.h"
#include <assert.h>
#include <string.h>

enum { NAME_LIMIT = 40 };

int recipe_drafters(const recipe *r) { return r->n_drafters; }

const char *recipe_drafter_name(const recipe *r, int i) {
    assert(i >= 0 && i < (r->n_drafters ? r->n_drafters : 1));
    return r->n_drafters ? r->drafters[i]->name : "";
}

const recipe *recipe_drafter(const recipe *r, int i) {
    assert(i >= 0 && i < (r->n_drafters ? r->n_drafters : 1));
    return r->n_drafters ? r->drafters[i] : r;
}

err recipe__field_name(recipe *r, recipe_field f, const char **out) {
    *out = recipe__spec(f)->name;
    if (!r->name) return ERR_OK;
    if (f == RECIPE_devices_drafter) return recipe__text(r, out, "drafters.%s.devices", r->name);
    return recipe__text(r, out, "drafters.%s.%s", r->name, recipe__spec(f)->name);
}

/* ---- names and sections ------------------------------------------------------------------------ */

static err check_name(const char *where, const char *name) {
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    const size_t good = strspn(name, allowed), n = strlen(name);
    if (n && !name[good] && n <= NAME_LIMIT) return ERR_OK;
    return err_set(ERR_RECIPE,
                   "%s: the drafter's name '%.80s' must be 1 to %d letters, digits, '-' and '_', "
                   "since it names a folder",
                   where, name, NAME_LIMIT);
}

err recipe__drafter_add(recipe *r, const char *where, const char *name, recipe **out) {
    TRY(check_name(where, name));
    for (int i = 0; i < r->n_drafters; i++)
        if (strcmp(r->drafters[i]->name, name) == 0)
            return err_set(ERR_RECIPE, "%s: drafter '%s' was given already, at %s", where, name,
                           r->drafters[i]->name_where);
    if (r->n_drafters == RECIPE__DRAFTER_LIMIT)
        return err_set(ERR_RECIPE, "%s: drafter '%s' is one too many; a run trains at most %d",
                       where, name, RECIPE__DRAFTER_LIMIT);
    if (!r->drafters)
        TRY(arena_alloc(r->mem, RECIPE__DRAFTER_LIMIT, sizeof *r->drafters, &r->drafters));
    recipe *d;
    TRY(arena_alloc(r->mem, 1, sizeof *d, &d));
    d->mem = r->mem;
    d->path = r->path;
    d->locale = r->locale;
    d->name = name;
    d->name_where = where;
    r->drafters[r->n_drafters++] = *out = d;
    return ERR_OK;
}

err recipe__drafter_find(const recipe *r, const char *where, const char *name, recipe **out) {
    const char *names[RECIPE__DRAFTER_LIMIT];
    for (int i = 0; i < r->n_drafters; i++) {
        names[i] = r->drafters[i]->name;
        *out = r->drafters[i];
        if (strcmp(names[i], name) == 0) return ERR_OK;
    }
    if (!r->n_drafters)
        return err_set(ERR_RECIPE, "%s: %s names no drafters; write a section 'drafters' there",
                       where, r->path);
    const char *near = str_nearest(name, names, r->n_drafters);
    return err_set(ERR_RECIPE, "%s: %s names no drafter '%.80s'%s%s%s", where, r->path, name,
                   near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

err recipe__drafter_section(const recipe *drafter, const char *where, const char *section) {
    static const char *const shared[] = {"target", "data", "features", "run"};
    if (strcmp(section, "drafters") == 0)
        return err_set(ERR_RECIPE, "%s: drafter '%s' cannot hold drafters again", where,
                       drafter->name);
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        if (strcmp(section, shared[i]) == 0)
            return err_set(ERR_RECIPE,
                           "%s: drafter '%s' cannot have a section '%s' of its own, since all "
                           "drafters of a run share target, data, features and run; it may set "
                           "drafter, anchors, loss, optimizer and devices",
                           where, drafter->name, section);
    return ERR_OK;
}

/* ---- values ------------------------------------------------------------------------------------ */

void recipe__drafters_fill(recipe *r) {
    for (int i = 0; i < r->n_drafters; i++)
        for (int f = 0; f < RECIPE_FIELD_COUNT; f++) {
            recipe_value *v = &r->drafters[i]->values[f];
            if (v->origin != FROM_NOWHERE) continue;
            *v = r->values[f];
            v->origin = FROM_BASE;
        }
}

static err add_drafter(str *out, const recipe *d) {
    const char *section = ""; /* the one being written */
    int own = 0;
    for (int f = 0; f < RECIPE_FIELD_COUNT; f++) own += d->values[f].origin != FROM_BASE;
    TRY(str_printf(out, "  %s:%s\n", d->name, own ? "" : " {}"));
    for (int f = 0; f < RECIPE_FIELD_COUNT; f++) {
        if (d->values[f].origin == FROM_BASE || f == RECIPE_devices_drafter) continue;
        if (strcmp(section, recipe__spec(f)->section) != 0) {
            section = recipe__spec(f)->section;
            TRY(str_printf(out, "    %s:\n", section));
        }
        TRY(recipe__add_field(out, d, (recipe_field)f, 3));
    }
    if (d->values[RECIPE_devices_drafter].origin == FROM_BASE) return ERR_OK;
    TRY(str_printf(out, "    devices: "));
    TRY(recipe__add_value(out, d, RECIPE_devices_drafter));
    return str_add(out, "\n", 1);
}

err recipe__add_drafters(str *out, const recipe *r) {
    if (r->n_drafters) TRY(str_printf(out, "drafters:\n"));
    for (int i = 0; i < r->n_drafters; i++) TRY(add_drafter(out, r->drafters[i]));
    return ERR_OK;
}
