/* Prints the gallery.
 *
 * JSON goes through the writer of io/json.h, so that texts with quotes and line ends come out right. */
#include "cli/mods_list.h"
#include "flex/mods.h"
#include "io/json.h"
#include <stdio.h>
#include <stdlib.h>

static const char *const types[] = {
    [EXPR_BOOL] = "condition", [EXPR_INT] = "integer", [EXPR_FLOAT] = "float"};

static void print_one(const mod *m) {
    printf("%s  (%s) %s\n", m->name, m->role == EXPR_MASK ? "mask" : "score", m->about);
    for (int i = 0; i < mods_captures(m); i++)
        printf("    %s: %s%s\n", m->capture[i].name, types[m->capture[i].type],
               m->capture[i].ndim == 2   ? " array of two dimensions"
               : m->capture[i].ndim == 1 ? " array"
                                         : "");
    printf("    ");
    for (const char *p = m->text; *p; p++) {
        putchar(*p);
        if (*p == '\n') printf("    ");
    }
    printf("\n\n");
}

static json_t *as_object(const mod *m) {
    json_t *list = json_array();
    for (int i = 0; i < mods_captures(m); i++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:i}", "name", m->capture[i].name, "type",
                                              types[m->capture[i].type], "dimensions",
                                              m->capture[i].ndim));
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:o}", "name", m->name, "role",
                     m->role == EXPR_MASK ? "mask" : "score", "text", m->text, "python", m->python,
                     "about", m->about, "captures", list);
}

err mods_list(int json) {
    json_t *all = json ? json_array() : NULL;
    for (int i = 0; i < mods_count(); i++) {
        if (json)
            json_array_append_new(all, as_object(mods_at(i)));
        else
            print_one(mods_at(i));
    }
    if (!json) return ERR_OK;
    char *text = json_dumps(all, JSON_INDENT(1));
    json_decref(all);
    if (!text) return err_set(ERR_MEMORY, "no memory for the gallery as JSON");
    puts(text);
    free(text);
    return ERR_OK;
}
