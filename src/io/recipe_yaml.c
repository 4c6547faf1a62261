/* Recipe text: YAML events of libyaml, walked as sections of fields.
 *
 * A recipe is one document: a mapping of sections, each a mapping of fields, each a scalar or a flat list of
 * scalars; the section `drafters` is a mapping of names, each a mapping of sections again. Anchors, aliases, tags, directives, further documents, duplicate keys and unknown names are refused
 * where they stand. Types are not looked at here; recipe_value.c reads the scalars. */
#include "io/recipe_parts.h"
#include <stdio.h>
#include <string.h>
#include <yaml.h>

enum { LIST_LIMIT = 4096, TEXT_LIMIT = 1 << 20 };

typedef struct walk {
    recipe *r; /* what is being filled: the whole recipe or a named drafter of it */
    yaml_parser_t parser;
    yaml_event_t event; /* the one read last */
    int has_event;
    const char *base;
    const char *override; /* "command line: a.b=c"; NULL for a file */
} walk;

/* "FILE:LINE:COLUMN" of a mark, counted from 1. */
static err where_of(walk *w, yaml_mark_t mark, const char **out) {
    if (w->override) {
        *out = w->override;
        return ERR_OK;
    }
    return recipe__text(w->r, out, "%s:%zu:%zu", w->r->path, mark.line + 1, mark.column + 1);
}

static err refuse(walk *w, const char *what) {
    const char *where;
    TRY(where_of(w, w->event.start_mark, &where));
    return err_set(ERR_RECIPE, "%s: %s", where, what);
}

static err syntax_error(walk *w) {
    const yaml_parser_t *p = &w->parser;
    const char *problem = p->problem ? p->problem : "not YAML", *where;
    if (p->error == YAML_MEMORY_ERROR)
        return err_set(ERR_MEMORY, "%s: no memory to read this recipe", w->r->path);
    if (p->error == YAML_READER_ERROR)
        return err_set(ERR_RECIPE, "%s: byte %zu: %s; a recipe is UTF-8 text",
                       w->override ? w->override : w->r->path, p->problem_offset, problem);
    TRY(where_of(w, p->problem_mark, &where));
    const char *hint =
        strstr(problem, "cannot start any token") ? "; quote the text, and indent with spaces" : "";
    return err_set(ERR_RECIPE, "%s: %s%s%s%s", where, p->context ? p->context : "",
                   p->context ? ": " : "", problem, hint);
}

/* The next event, without the YAML that recipes do without. */
static err next(walk *w) {
    if (w->has_event) yaml_event_delete(&w->event);
    w->has_event = 0;
    if (!yaml_parser_parse(&w->parser, &w->event)) return syntax_error(w);
    w->has_event = 1;
    const yaml_event_t *e = &w->event;
    const void *anchor = NULL, *tag = NULL;
    switch (e->type) {
    case YAML_ALIAS_EVENT:
        return refuse(w, "aliases (*name) are not part of recipes; write the value");
    case YAML_SCALAR_EVENT: anchor = e->data.scalar.anchor, tag = e->data.scalar.tag; break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = e->data.sequence_start.anchor, tag = e->data.sequence_start.tag;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = e->data.mapping_start.anchor, tag = e->data.mapping_start.tag;
        break;
    case YAML_DOCUMENT_START_EVENT:
        if (e->data.document_start.version_directive ||
            e->data.document_start.tag_directives.start !=
                e->data.document_start.tag_directives.end)
            return refuse(w, "directives (%) are not part of recipes");
        break;
    default: break;
    }
    if (anchor)
        return refuse(
            w, "anchors (&name) are not part of recipes; write the value where it is needed");
    if (tag) return refuse(w, "tags (!name) are not part of recipes; the field decides the type");
    if (e->type == YAML_SCALAR_EVENT && memchr(e->data.scalar.value, 0, e->data.scalar.length))
        return refuse(w, "text cannot hold a NUL character");
    return ERR_OK;
}

static err read_scalar(walk *w, recipe_scalar *s) {
    char *copy = NULL;
    s->plain = w->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    TRY(where_of(w, w->event.start_mark, &s->where));
    TRY(arena_strdup(w->r->mem, (const char *)w->event.data.scalar.value, &copy));
    s->text = copy;
    return ERR_OK;
}

/* The value that the present event begins, up to its end. name: the field, for sentences. */
static err read_node(walk *w, const char *name, recipe_node *node) {
    char what[160];
    *node = (recipe_node){0};
    TRY(where_of(w, w->event.start_mark, &node->where));
    if (w->event.type == YAML_SCALAR_EVENT) {
        node->n = 1;
        TRY(arena_alloc(w->r->mem, 1, sizeof *node->items, &node->items));
        return read_scalar(w, node->items);
    }
    if (w->event.type != YAML_SEQUENCE_START_EVENT) {
        snprintf(what, sizeof what, "%s must be a value or a list, got a mapping", name);
        return refuse(w, what);
    }
    node->is_list = 1;
    size_t cap = 0;
    recipe_scalar *items = NULL;
    err e = next(w);
    for (; !e && w->event.type != YAML_SEQUENCE_END_EVENT; e = e ? e : next(w)) {
        snprintf(what, sizeof what, "%s is a list of plain values, and here is no plain value",
                 name);
        if (w->event.type != YAML_SCALAR_EVENT) e = refuse(w, what);
        if (!e && node->n == LIST_LIMIT) e = refuse(w, "this list is too long");
        if (!e) e = mem_grow(&items, &cap, (size_t)node->n + 1, sizeof *items);
        if (!e) e = read_scalar(w, &items[node->n]);
        if (!e) node->n++;
    }
    if (!e) e = arena_alloc(w->r->mem, (size_t)node->n, sizeof *items, &node->items);
    if (!e && node->n) memcpy(node->items, items, (size_t)node->n * sizeof *items);
    mem_free(items);
    return e;
}

/* The value of field f, from the event after its key. */
static err read_value_of(walk *w, const char *where, recipe_field f) {
    recipe_node node;
    const char *name;
    TRY(recipe__field_name(w->r, f, &name));
    if (w->r->values[f].origin == FROM_FILE)
        return err_set(ERR_RECIPE, "%s: %s was given already, at %s", where, name,
                       w->r->values[f].where);
    TRY(next(w));
    TRY(read_node(w, name, &node));
    return recipe__assign(w->r, f, FROM_FILE, &node, w->base);
}

static err read_field(walk *w, const char *section) {
    recipe_scalar key;
    recipe_field f;
    if (w->event.type != YAML_SCALAR_EVENT) return refuse(w, "a field's name must be plain text");
    TRY(read_scalar(w, &key));
    TRY(recipe__find(key.where, section, key.text, &f));
    return read_value_of(w, key.where, f);
}

/* Notes that a section stands at `where`; *noted is where it stood before. */
static err note_section(const char **noted, const char *where, const char *name) {
    if (*noted)
        return err_set(ERR_RECIPE, "%s: section '%s' was given already, at %s", where, name,
                       *noted);
    *noted = where;
    return ERR_OK;
}

/* A section of fields, its name read already, as the last event. */
static err read_fields(walk *w, const recipe_scalar *name) {
    recipe_field first;
    TRY(recipe__find(name->where, name->text, NULL, &first));
    TRY(note_section(&w->r->section_where[first], name->where, name->text));
    TRY(next(w));
    if (w->event.type != YAML_MAPPING_START_EVENT) {
        char what[200];
        snprintf(what, sizeof what, "section '%s' must hold fields, as in '%s: {%s: ...}'",
                 name->text, name->text, recipe__spec(first)->key);
        return refuse(w, what);
    }
    TRY(next(w));
    while (w->event.type != YAML_MAPPING_END_EVENT) {
        TRY(read_field(w, name->text));
        TRY(next(w));
    }
    return ERR_OK;
}

/* "NAME: {section: {...}, devices: [...]}", at its name. */
static err read_drafter(walk *w) {
    recipe *whole = w->r, *drafter;
    recipe_scalar name, section;
    if (w->event.type != YAML_SCALAR_EVENT) return refuse(w, "a drafter's name must be plain text");
    TRY(read_scalar(w, &name));
    TRY(recipe__drafter_add(whole, name.where, name.text, &drafter));
    TRY(next(w));
    if (w->event.type != YAML_MAPPING_START_EVENT) {
        char what[200];
        snprintf(what, sizeof what,
                 "drafter '%s' must hold sections, as in '%s: {drafter: {layers: 2}}', or be {}",
                 name.text, name.text);
        return refuse(w, what);
    }
    w->r = drafter;
    TRY(next(w));
    while (w->event.type != YAML_MAPPING_END_EVENT) {
        if (w->event.type != YAML_SCALAR_EVENT)
            return refuse(w, "a section's name must be plain text");
        TRY(read_scalar(w, &section));
        TRY(recipe__drafter_section(drafter, section.where, section.text));
        if (strcmp(section.text, "devices") == 0)
            TRY(read_value_of(w, section.where, RECIPE_devices_drafter));
        else
            TRY(read_fields(w, &section));
        TRY(next(w));
    }
    w->r = whole;
    return ERR_OK;
}

static err read_drafters(walk *w, const recipe_scalar *name) {
    TRY(note_section(&w->r->drafters_where, name->where, name->text));
    TRY(next(w));
    if (w->event.type != YAML_MAPPING_START_EVENT)
        return refuse(w, "section 'drafters' must hold names, as in "
                         "'drafters: {small: {drafter: {layers: 1}}}'");
    TRY(next(w));
    while (w->event.type != YAML_MAPPING_END_EVENT) {
        TRY(read_drafter(w));
        TRY(next(w));
    }
    return ERR_OK;
}

static err read_section(walk *w) {
    recipe_scalar name;
    if (w->event.type != YAML_SCALAR_EVENT) return refuse(w, "a section's name must be plain text");
    TRY(read_scalar(w, &name));
    return strcmp(name.text, "drafters") == 0 ? read_drafters(w, &name) : read_fields(w, &name);
}

static err read_document(walk *w) {
    TRY(next(w)); /* start of the stream */
    TRY(next(w));
    if (w->event.type == YAML_STREAM_END_EVENT) return ERR_OK;
    TRY(next(w));
    if (w->event.type != YAML_MAPPING_START_EVENT)
        return refuse(w, "a recipe is a mapping of sections, as in 'target: {path: ...}'");
    TRY(next(w));
    while (w->event.type != YAML_MAPPING_END_EVENT) {
        TRY(read_section(w));
        TRY(next(w));
    }
    TRY(next(w)); /* end of the document */
    TRY(next(w));
    if (w->event.type != YAML_STREAM_END_EVENT)
        return refuse(w, "a recipe is one YAML document; a second one begins here");
    return ERR_OK;
}

/* The value of an override; text that is empty is an empty scalar. */
static err read_value(walk *w, recipe_field f) {
    recipe_scalar empty = {"", 1, w->override};
    recipe_node node = {w->override, 0, 1, &empty};
    const char *name;
    TRY(recipe__field_name(w->r, f, &name));
    if (w->r->values[f].origin == FROM_OVERRIDE)
        return err_set(ERR_RECIPE, "%s: %s was given already, in %s", w->override, name,
                       w->r->values[f].where);
    TRY(next(w));
    TRY(next(w));
    if (w->event.type != YAML_STREAM_END_EVENT) {
        TRY(next(w));
        TRY(read_node(w, name, &node));
        TRY(next(w));
        TRY(next(w));
        if (w->event.type != YAML_STREAM_END_EVENT) return refuse(w, "one value was expected");
    }
    return recipe__assign(w->r, f, FROM_OVERRIDE, &node, w->base);
}

static err start(walk *w, const char *text, size_t n) {
    if (n > TEXT_LIMIT)
        return err_set(ERR_RECIPE, "%s: %zu bytes are too many for a recipe",
                       w->override ? w->override : w->r->path, n);
    if (!yaml_parser_initialize(&w->parser))
        return err_set(ERR_MEMORY, "%s: no memory to read this recipe", w->r->path);
    yaml_parser_set_encoding(&w->parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&w->parser, (const unsigned char *)text, n);
    return ERR_OK;
}

static void finish(walk *w) {
    if (w->has_event) yaml_event_delete(&w->event);
    yaml_parser_delete(&w->parser);
}

err recipe__read_file(recipe *r, const char *base, const char *text, size_t n) {
    walk w = {.r = r, .base = base};
    TRY(start(&w, text, n));
    err e = read_document(&w);
    finish(&w);
    return e;
}

/* The field that "section.key" names; splits the text. */
static err find_field(walk *w, char *name, recipe_field *f) {
    char *dot = strchr(name, '.');
    if (dot) {
        *dot = 0;
        return recipe__find(w->override, name, dot + 1, f);
    }
    TRY(recipe__find(w->override, name, NULL, f)); /* suggests the field when name is a key */
    return err_set(ERR_RECIPE, "%s: a recipe key is set as section.key=value", w->override);
}

/* The field that "NAME.section.key" or "NAME.devices" names, and its drafter as what is filled. */
static err find_of_drafter(walk *w, char *name, recipe_field *f) {
    recipe *drafter;
    char *dot = strchr(name, '.');
    if (!dot)
        return err_set(ERR_RECIPE,
                       "%s: a key of one drafter is set as drafters.NAME.section.key=value, its "
                       "devices as drafters.NAME.devices=[cpu:5]",
                       w->override);
    *dot = 0;
    TRY(recipe__drafter_find(w->r, w->override, name, &drafter));
    w->r = drafter;
    char *section = dot + 1, *key = strchr(section, '.');
    if (key) *key = 0;
    TRY(recipe__drafter_section(drafter, w->override, section));
    if (strcmp(section, "devices") == 0) {
        *f = RECIPE_devices_drafter;
        if (!key) return ERR_OK;
        return err_set(ERR_RECIPE,
                       "%s: the devices of a drafter are set as drafters.%s.devices=[cpu:5]",
                       w->override, name);
    }
    if (key) *key = '.';
    return find_field(w, section, f);
}

err recipe__read_override(recipe *r, const char *base, const char *text) {
    walk w = {.r = r, .base = base};
    char name[128];
    recipe_field f;
    TRY(recipe__text(r, &w.override, "command line: %s", text));
    const char *equal = strchr(text, '=');
    if (!equal || (size_t)(equal - text) >= sizeof name)
        return err_set(ERR_RECIPE, "%s: a recipe key is set as section.key=value", w.override);
    memcpy(name, text, (size_t)(equal - text));
    name[equal - text] = 0;
    TRY(strcmp(name, "drafters") == 0 || strncmp(name, "drafters.", 9) == 0
            ? find_of_drafter(&w, name + 8 + (name[8] == '.'), &f)
            : find_field(&w, name, &f));
    TRY(start(&w, equal + 1, strlen(equal + 1)));
    err e = read_value(&w, f);
    finish(&w);
    return e;
}
