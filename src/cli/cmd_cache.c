/* paceline cache: what the kernel cache holds, whether it is sound, and emptying it.
 *
 * Works on the folder alone: neither a GPU nor NVRTC is needed. Entries are read one by one and their times of use stay
 * as they are. Running programs are not disturbed: they go on with what they have in memory. */
#include "cli/command.h"
#include "cli/kernel_usage.h"
#include "core/arena.h"
#include "core/file.h"
#include "dev/kernel_folder.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const arg_spec spec[] = {
    {"--json", ARG_FLAG, NULL, "print one JSON object"},
    {NULL, ARG_FLAG, NULL, NULL},
};

static err print_and_free(json_t *j) {
    char *text = j ? json_dumps(j, 0) : NULL;
    json_decref(j);
    if (!text) return err_set(ERR_MEMORY, "no memory for the answer");
    printf("%s\n", text);
    free(text);
    return ERR_OK;
}

static void utc(int64_t ns, char out[24]) {
    time_t t = (time_t)(ns / 1000000000);
    struct tm parts;
    if (!gmtime_r(&t, &parts) || !strftime(out, 24, "%Y-%m-%dT%H:%M:%SZ", &parts)) out[0] = 0;
}

/* An entry whose key is that of its own recipe. */
static err read_sound(const kernel_folder *f, const kernel_folder_item *item, kernel_entry *e) {
    char path[PATH_MAX], key[KERNEL_KEY];
    TRY(kernel_folder_path(f, item->key, path));
    TRY(kernel_entry_read(e, path, NULL, 0));
    if (!e->bytes) return ERR_OK;
    file_hash_bytes(e->recipe, e->recipe_size, key);
    if (!strcmp(key, item->key)) return ERR_OK;
    kernel_entry_free(e);
    return err_set(ERR_FORMAT, "%s is damaged: its recipe has the key %s", path, key);
}

/* One walk over all entries for list and verify. */
typedef struct walk {
    const kernel_folder *f;
    int json, verify;
    json_t *rows;
    int sound, damaged;
    uint64_t bytes;
} walk;

static void tell_entry(walk *w, const kernel_folder_item *item, const kernel_entry *e) {
    char used[24];
    utc(item->used_ns, used);
    w->sound++;
    w->bytes += item->bytes;
    if (w->verify) return;
    if (w->json) {
        json_array_append_new(w->rows, json_pack("{s:s, s:s, s:s, s:I, s:s, s:s, s:f, s:o}", "key",
                                                 item->key, "name", e->name, "arch", e->arch,
                                                 "bytes", (json_int_t)item->bytes, "made", e->made,
                                                 "used", used, "compile_ms", e->compile_ms,
                                                 "functions", kernel_usage_json(e->usage)));
        return;
    }
    printf("%s %-7s %9llu %s %s\n", item->key, e->arch, (unsigned long long)item->bytes, used,
           e->name);
    kernel_usage_print(e->usage);
}

static err visit(walk *w, const kernel_folder_item *item) {
    kernel_entry e;
    err got = read_sound(w->f, item, &e);
    if (got == ERR_MEMORY) return got;
    if (got) {
        w->damaged++;
        if (w->json && w->verify)
            json_array_append_new(w->rows,
                                  json_pack("{s:s, s:s}", "key", item->key, "what", err_text()));
        else
            printf("%s\n", err_text());
        return ERR_OK;
    }
    if (e.bytes) tell_entry(w, item, &e);
    kernel_entry_free(&e);
    return ERR_OK;
}

static err walk_entries(const kernel_folder *f, int json, int verify) {
    kernel_folder_item *items;
    int n;
    TRY(kernel_folder_list(f, &items, &n));
    walk w = {.f = f, .json = json, .verify = verify, .rows = json_array()};
    err e = ERR_OK;
    for (int i = 0; i < n && !e; i++) e = visit(&w, &items[i]);
    mem_free(items);
    if (e || !json) {
        json_decref(w.rows);
        if (!e)
            printf("%d entr%s, %llu bytes, %d damaged, in %s\n", w.sound + w.damaged,
                   w.sound + w.damaged == 1 ? "y" : "ies", (unsigned long long)w.bytes, w.damaged,
                   f->path);
    } else {
        e = print_and_free(json_pack("{s:s, s:i, s:I, s:i, s:o}", "folder", f->path, "entries",
                                     w.sound + w.damaged, "bytes", (json_int_t)w.bytes, "damaged",
                                     w.damaged, verify ? "faults" : "kernels", w.rows));
    }
    if (!e && verify && w.damaged)
        e = err_set(
            ERR_FORMAT,
            "%d of %d entries of %s are damaged; each is rebuilt when it is needed, or 'paceline "
            "cache clear' removes all",
            w.damaged, w.sound + w.damaged, f->path);
    return e;
}

static err clear(const kernel_folder *f, int json) {
    int n;
    uint64_t bytes;
    if (!f->writable && !f->full && f->made) return err_set(ERR_REFUSED, "%s", f->note);
    TRY(kernel_folder_clear(f, &n, &bytes));
    if (json)
        return print_and_free(json_pack("{s:s, s:i, s:I}", "folder", f->path, "removed", n, "bytes",
                                        (json_int_t)bytes));
    printf("%d entr%s, %llu bytes removed from %s\n", n, n == 1 ? "y" : "ies",
           (unsigned long long)bytes, f->path);
    return ERR_OK;
}

static err run(const args *a) {
    const char *what = a->positional[0];
    const int json = args_has(a, "--json");
    static const char *const words[] = {"list", "verify", "clear"};
    kernel_folder f;
    int which = -1;
    for (int i = 0; i < 3; i++)
        if (!strcmp(what, words[i])) which = i;
    if (which < 0)
        return err_set(ERR_USAGE, "'%s' is unknown; it must be list, verify or clear", what);
    TRY(kernel_folder_open(&f, NULL, 0));
    if (!f.readable && (!f.path[0] || f.made)) return err_set(ERR_REFUSED, "%s", f.note);
    return which == 2 ? clear(&f, json) : walk_entries(&f, json, which == 1);
}

const command command_cache = {
    .name = "cache",
    .usage = "cache list|verify|clear [--json]",
    .summary = "show, check or empty the cache of GPU kernels",
    .details =
        "The cache is the folder PACELINE_CACHE, else paceline/kernels in the user's cache folder.",
    .spec = spec,
    .min_pos = 1,
    .max_pos = 1,
    .run = run,
};
