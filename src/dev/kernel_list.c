/* Collecting and compiling lists of kernels: see kernel_list.h.
 *
 * The threads ask the cache as any user would: what two of them want at once, one compiles. */
#include "dev/kernel_list.h"
#include "core/file.h"
#include "core/pool.h"
#include <stdlib.h>
#include <string.h>

err kernel_list_create(kernel_list *out) {
    memset(out, 0, sizeof *out);
    return arena_create(&out->mem, "kernel list", 0);
}

void kernel_list_destroy(kernel_list *l) {
    arena_destroy(l->mem);
    mem_free(l->specs);
    mem_free(l->images);
    memset(l, 0, sizeof *l);
}

static err copy_text(arena *a, const kernel_text *from, kernel_text *to) {
    char *name, *text;
    TRY(arena_strdup(a, from->name, &name));
    TRY(arena_strdup(a, from->text, &text));
    *to = (kernel_text){name, text};
    return ERR_OK;
}

static err copy_spec(arena *a, const kernel_spec *from, kernel_spec *to) {
    const kernel_text **headers;
    kernel_text *texts; /* the source, then headers, then hooks */
    const char **options;
    char *name, *option;
    int n = 0;
    *to = *from;
    TRY(arena_alloc(a, (size_t)from->n_headers, sizeof *headers, &headers));
    TRY(arena_alloc(a, 1 + (size_t)from->n_headers + (size_t)from->n_hooks, sizeof *texts, &texts));
    TRY(arena_alloc(a, (size_t)from->n_options, sizeof *options, &options));
    TRY(arena_strdup(a, from->name, &name));
    TRY(copy_text(a, from->source, &texts[n++]));
    for (int i = 0; i < from->n_headers; i++) {
        TRY(copy_text(a, from->headers[i], &texts[n]));
        headers[i] = &texts[n++];
    }
    to->hooks = &texts[n];
    for (int i = 0; i < from->n_hooks; i++) TRY(copy_text(a, &from->hooks[i], &texts[n++]));
    for (int i = 0; i < from->n_options; i++) {
        TRY(arena_strdup(a, from->options[i], &option));
        options[i] = option;
    }
    to->name = name, to->source = texts, to->headers = headers, to->options = options;
    return ERR_OK;
}

err kernel_list_add(void *ctx, const kernel_spec *spec) {
    kernel_list *l = ctx;
    TRY(mem_grow(&l->specs, &l->cap, (size_t)l->n + 1, sizeof *l->specs));
    TRY(copy_spec(l->mem, spec, &l->specs[l->n]));
    l->n++;
    return ERR_OK;
}

typedef struct work {
    kernel_list *l;
    kernel_cache *c;
    const char *arch;
} work;

static err compile_one(void *ctx, int64_t i, int thread) {
    work *w = ctx;
    (void)thread;
    return kernel_cache_get(w->c, &w->l->specs[i], w->arch, &w->l->images[i]);
}

err kernel_list_compile(kernel_list *l, kernel_cache *c, const char *arch, int threads) {
    pool *p;
    work w = {l, c, arch};
    TRY(kernel_cache_check_arch(c, arch));
    mem_free(l->images);
    l->images = NULL;
    TRY(mem_new((size_t)l->n + 1, sizeof *l->images, &l->images));
    TRY(pool_create(&p, threads));
    err e = pool_run(p, l->n, compile_one, &w);
    pool_destroy(p);
    return e;
}

static int by_key(const void *a, const void *b) {
    return strcmp((*(const kernel_image *const *)a)->key, (*(const kernel_image *const *)b)->key);
}

err kernel_list_digest(const kernel_list *l, char out[KERNEL_KEY]) {
    const kernel_image **sorted;
    str text = {0};
    char hash[KERNEL_KEY];
    TRY(mem_new((size_t)l->n + 1, sizeof *sorted, &sorted));
    for (int i = 0; i < l->n; i++) sorted[i] = l->images[i];
    if (l->n) qsort(sorted, (size_t)l->n, sizeof *sorted, by_key);
    err e = str_add(&text, "", 0);
    for (int i = 0; i < l->n && !e; i++) {
        if (i && !strcmp(sorted[i]->key, sorted[i - 1]->key)) continue;
        file_hash_bytes(sorted[i]->data, sorted[i]->size, hash);
        e = str_printf(&text, "%s %s\n", sorted[i]->key, hash);
    }
    if (!e) file_hash_bytes(text.s ? text.s : "", text.n, out);
    str_free(&text);
    mem_free(sorted);
    return e;
}
