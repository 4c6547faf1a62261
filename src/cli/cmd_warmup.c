/* paceline warmup: compiles every kernel that a recipe needs, or those of common head sizes, for one architecture, and leaves
 * them in the kernel cache.
 *
 * Of a recipe's files the target's config is read and no weights; data is not looked at. The architecture need not be here: no GPU is touched and none is needed. What is cached already is read and checked.
 * Afterwards the cache is read once more through a fresh handle, as the next start will, and that time is told. */
#include "cli/command.h"
#include "cli/kernel_usage.h"
#include "core/clock.h"
#include "core/pool.h"
#include "dev/cuda_system.h"
#include "dev/dev_kernels.h"
#include "dev/kernel_folder.h"
#include "dev/kernel_list.h"
#include "io/recipe.h"
#include "model/drafter.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>

static const arg_spec spec[] = {
    {"--arch", ARG_TEXT, "ARCH", "compile for ARCH, as sm_80 or sm_90a (default: the GPU here)"},
    {"--threads", ARG_INT, "N", "compile N kernels at a time (default: usable CPUs)"},
    {"--json", ARG_FLAG, NULL, "print one JSON object"},
    {NULL, ARG_FLAG, NULL, NULL},
};

/* The architecture asked for, or the one of the GPUs that are here; several kinds must be told apart by the user. */
static err choose_arch(const args *a, char out[KERNEL_ARCH]) {
    enum { DEVICES = 64 };
    static const char ask[] = "name one with --arch, like sm_90a";
    const char *named = args_text(a, "--arch", NULL);
    cuda_device *here;
    int n = 0, number;
    if (named) {
        TRY(kernel_check_arch(named, &number));
        snprintf(out, KERNEL_ARCH, "%s", named);
        return ERR_OK;
    }
    TRY(mem_new(DEVICES, sizeof *here, &here));
    err e = cuda_system_here(here, DEVICES, &n);
    if (e)
        e = err_set(ERR_USAGE, "there is no GPU here whose architecture could be taken (%s); %s",
                    err_text(), ask);
    for (int i = 1; i < n && !e; i++)
        if (strcmp(here[i].arch, here[0].arch) != 0)
            e = err_set(ERR_USAGE, "cuda:0 is of %s and cuda:%d of %s; %s", here[0].arch, i,
                        here[i].arch, ask);
    if (!e && n) e = kernel_device_arch(here[0].major, here[0].minor, out);
    if (!e && !n) e = err_set(ERR_USAGE, "there is no GPU here; %s", ask);
    mem_free(here);
    return e;
}

typedef struct warmup {
    char arch[KERNEL_ARCH], digest[KERNEL_KEY];
    int threads;
    kernel_list list;
    kernel_cache *cache;
    kernel_cache_stats stats;
    double ms, load_ms;
} warmup;

/* Reading all of it as the next start does: nothing may be compiled then. */
static err read_again(warmup *w) {
    kernel_cache *c;
    double start = clock_seconds();
    TRY(kernel_cache_open(&c, &(kernel_cache_config){.no_compile = 1}));
    err e = ERR_OK;
    for (int i = 0; i < w->list.n && !e; i++) {
        const kernel_image *image;
        e = kernel_cache_get(c, &w->list.specs[i], w->arch, &image);
        if (e == ERR_REFUSED)
            e = err_set(
                ERR_REFUSED,
                "the kernel '%s' was brought into %s and is not there any more, or changed: "
                "something else removes or writes there; run this again when it is done",
                w->list.specs[i].name, kernel_cache_folder(w->cache));
    }
    kernel_cache_close(c);
    w->load_ms = (clock_seconds() - start) * 1e3;
    return e;
}

/* ---- which kernels ---- */

enum { BLOCK = 16 }; /* stands for any block size: it is an argument of kernels */

static err list_model(warmup *w, const target_config *t, const drafter_config *d) {
    int number;
    TRY(kernel_check_arch(w->arch, &number));
    const size_t shared = (size_t)kernel_arch_shared(number);
    if (t) TRY(target_kernels(t, DT_BF16, shared, kernel_list_add, &w->list));
    return drafter_kernels(d, DT_BF16, shared, kernel_list_add, &w->list);
}

/* Without a recipe: the head sizes that models have, layers with a window and without. */
static err list_common(warmup *w) {
    static const int64_t sizes[] = {64, 128};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const target_config t = {.head_dim = sizes[i]};
        const drafter_config d = {
            .layers = 2, .head_dim = sizes[i], .block_size = BLOCK, .window = {0, BLOCK}};
        TRY(list_model(w, &t, &d));
    }
    return ERR_OK;
}

/* The parts of a drafter's config that its kernels depend on. */
static err drafter_of(const recipe *r, const target_config *t, drafter_config *out) {
    const char *init = recipe_text(r, RECIPE_drafter_init);
    if (init[0]) return drafter_read_config(out, init);
    *out = (drafter_config){.layers = recipe_int(r, RECIPE_drafter_layers),
                            .block_size = recipe_int(r, RECIPE_drafter_block_size),
                            .head_dim = recipe_is_auto(r, RECIPE_drafter_head_dim)
                                            ? t->head_dim
                                            : recipe_int(r, RECIPE_drafter_head_dim)};
    for (int64_t i = 0; i < out->layers && !recipe_is_auto(r, RECIPE_drafter_sliding_window); i++)
        out->window[i] = recipe_int(r, RECIPE_drafter_sliding_window);
    return ERR_OK;
}

static err list_recipe(warmup *w, const recipe *r) {
    target_config t;
    TRY(target_read_config(&t, recipe_text(r, RECIPE_target_path)));
    const int named = recipe_drafters(r);
    for (int i = 0; i < (named ? named : 1); i++) {
        drafter_config d;
        TRY(drafter_of(recipe_drafter(r, i), &t, &d));
        TRY(list_model(w, i ? NULL : &t, &d));
    }
    return ERR_OK;
}

static err list_kernels(warmup *w, const args *a) {
    recipe *r = NULL;
    TRY(dev_kernels_each(w->arch, kernel_list_add, &w->list));
    if (!a->n_positional) return list_common(w);
    err e = recipe_load(&r, a->positional[0], a->positional + 1, a->n_positional - 1);
    if (!e) e = list_recipe(w, r);
    recipe_free(r);
    return e;
}

/* Asked before a cache is opened, which would go on without its folder. */
static err check_folder(void) {
    kernel_folder f;
    TRY(kernel_folder_open(&f, NULL, 1));
    return f.writable ? ERR_OK
                      : err_set(ERR_REFUSED, "what is compiled could not be kept: %s", f.note);
}

static err fill(warmup *w, const args *a) {
    TRY(list_kernels(w, a));
    TRY(check_folder());
    TRY(kernel_cache_open(&w->cache, NULL));
    TRY(kernel_cache_check_arch(w->cache, w->arch));
    double start = clock_seconds();
    TRY(kernel_list_compile(&w->list, w->cache, w->arch, w->threads));
    w->ms = (clock_seconds() - start) * 1e3;
    if (!kernel_cache_keeps(w->cache))
        return err_set(ERR_REFUSED, "the kernels were compiled and could not be kept in %s",
                       kernel_cache_folder(w->cache));
    kernel_cache_get_stats(w->cache, &w->stats);
    TRY(kernel_list_digest(&w->list, w->digest));
    return read_again(w);
}

/* ---- telling ---- */

/* Whether image i is the first of its kind in the list. */
static int is_first(const kernel_list *l, int i) {
    for (int j = 0; j < i; j++)
        if (l->images[j] == l->images[i]) return 0;
    return 1;
}

static const char *const origins[] = {"compiled", "adopted", "rebuilt"};

static err print_json(const warmup *w) {
    json_t *kernels = json_array();
    for (int i = 0; i < w->list.n; i++) {
        const kernel_image *m = w->list.images[i];
        if (!is_first(&w->list, i)) continue;
        json_array_append_new(kernels, json_pack("{s:s, s:s, s:I, s:s, s:f, s:o}", "name", m->name,
                                                 "key", m->key, "bytes", (json_int_t)m->size,
                                                 "origin", origins[m->origin], "ms", m->ms,
                                                 "functions", kernel_usage_json(m->usage)));
    }
    json_t *j =
        json_pack("{s:i, s:i, s:i, s:i, s:f, s:s, s:s, s:i, s:f, s:f, s:s, s:s, s:o}", "entries",
                  w->stats.entries, "compiled", w->stats.compiled, "adopted", w->stats.adopted,
                  "rebuilt", w->stats.rebuilt, "ms", w->ms, "digest", w->digest, "arch", w->arch,
                  "threads", w->threads, "compile_ms", w->stats.compile_ms, "load_ms", w->load_ms,
                  "compiler", kernel_cache_compiler(w->cache), "folder",
                  kernel_cache_folder(w->cache), "kernels", kernels);
    char *text = j ? json_dumps(j, JSON_REAL_PRECISION(6)) : NULL;
    json_decref(j);
    if (!text) return err_set(ERR_MEMORY, "no memory for the answer");
    printf("%s\n", text);
    free(text);
    return ERR_OK;
}

static err print_text(const warmup *w) {
    char bytes[24];
    printf("%-48s %-9s %10s %9s  function: registers, stack, spilled, shared\n", "kernel", "origin",
           "bytes", "ms");
    for (int i = 0; i < w->list.n; i++) {
        const kernel_image *m = w->list.images[i];
        if (!is_first(&w->list, i)) continue;
        printf("%-48s %-9s %10zu %9.1f\n", m->name, origins[m->origin], m->size, m->ms);
        kernel_usage_print(m->usage);
    }
    printf(
        "%d kernel%s for %s by %s: %d compiled, %d adopted, %d rebuilt in %.0f ms by %d threads\n",
        w->stats.entries, w->stats.entries == 1 ? "" : "s", w->arch,
        kernel_cache_compiler(w->cache), w->stats.compiled, w->stats.adopted, w->stats.rebuilt,
        w->ms, w->threads);
    printf("%s in %s; read again in %.1f ms\n", str_bytes((double)w->stats.bytes, bytes),
           kernel_cache_folder(w->cache), w->load_ms);
    return ERR_OK;
}

static err run(const args *a) {
    warmup w = {.threads = 0};
    int64_t threads;
    TRY(args_int(a, "--threads", pool_cpus(), 1, 1024, &threads));
    TRY(choose_arch(a, w.arch));
    TRY(kernel_list_create(&w.list));
    w.threads = (int)threads;
    err e = fill(&w, a);
    if (!e) e = args_has(a, "--json") ? print_json(&w) : print_text(&w);
    kernel_cache_close(w.cache);
    kernel_list_destroy(&w.list);
    return e;
}

const command command_warmup = {
    .name = "warmup",
    .usage = "warmup [RECIPE [key=value ...]] [--arch ARCH] [--threads N] [--json]",
    .summary = "compile every GPU kernel into the kernel cache",
    .details =
        "The cache is the folder PACELINE_CACHE, else paceline/kernels in the user's cache folder. A run after\n"
        "it compiles nothing; PACELINE_NO_COMPILE=1 holds it to that. No GPU is needed when --arch is given.",
    .spec = spec,
    .min_pos = 0,
    .max_pos = ARGS_MAX_POSITIONAL,
    .run = run,
};
