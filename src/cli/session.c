/* Shared opening of models for the decoding commands: see session.h. Parts are opened in the order in
 * which they are cheapest to refuse: tokenizer and template before weights, the target before the
 * drafter that must fit it. */
#include "cli/session.h"
#include "cli/open_dev.h"
#include "core/clock.h"
#include "core/file.h"
#include <stdio.h>
#include <string.h>

static err load(session *s, const args *a) {
    const char *path, *dir = args_text(a, "--drafter", NULL),
                      *template = args_text(a, "--template", "auto");
    TRY(args_need(a, "--target", &path));
    if (file_is_dir(path))
        return err_set(
            ERR_REFUSED,
            "%s is a folder, which brings no tokenizer yet; give a GGUF file as --target", path);
    TRY(open_dev(a, &s->d));
    TRY(gguf_open(&s->file, path));
    TRY(tokenizer_load_gguf(&s->tok, s->file));
    TRY(chat_template_open(&s->chat, template, s->tok));
    TRY(target_load(&s->t, s->d, path, NULL));
    if (dir) TRY(drafter_load(&s->dr, dir, s->t));
    s->n_end = tokenizer_end_ids(s->tok, &s->end_ids);
    return ERR_OK;
}

err session_open(session *s, const args *a, int quiet) {
    double t0 = clock_seconds();
    char bytes[24], more[24];
    *s = (session){0};
    TRY(load(s, a));
    if (quiet) return ERR_OK;
    fprintf(stderr, "target %s: %lld layers, %s", target_path(s->t),
            (long long)target_get_config(s->t)->layers,
            str_bytes((double)target_bytes(s->t), bytes));
    if (s->dr)
        fprintf(stderr, "; drafter: block %lld, %s",
                (long long)drafter_get_config(s->dr)->block_size,
                str_bytes((double)drafter_bytes(s->dr), more));
    fprintf(stderr, "; %d threads, %s, matrices by %s%s%s; loaded in %.1f s\n", dev_threads(s->d),
            dev_isa_name(dev_get_isa(s->d)), dev_blas_version(s->d),
            *dev_blas_version(s->d) ? " " : "", dev_blas_path(s->d), clock_seconds() - t0);
    return ERR_OK;
}

void session_close(session *s) {
    if (s->dr) drafter_free(s->dr);
    if (s->t) target_free(s->t);
    if (s->chat) chat_template_free(s->chat);
    if (s->tok) tokenizer_free(s->tok);
    if (s->file) gguf_close(s->file);
    if (s->d) dev_close(s->d);
}

err session_batch(const session *s, const drafter *dr, int64_t seqs, int64_t tokens,
                  decode_batch **out) {
    int64_t context = target_get_config(s->t)->context;
    decode_config cfg = {.t = s->t,
                         .dr = dr,
                         .max_seqs = seqs,
                         .max_tokens = tokens < context ? tokens : context,
                         .end_ids = s->end_ids,
                         .n_end = s->n_end};
    return decode_create(out, s->d, &cfg);
}

err session_prompts(prompt_set *out, const args *a, arena *mem) {
    const char *path, *where = args_text(a, "--where", NULL);
    char *key = NULL, *value = NULL;
    int64_t limit;
    TRY(args_need(a, "--prompts", &path));
    TRY(args_int(a, "--limit", 0, 1, INT64_MAX, &limit));
    if (where) {
        TRY(arena_strdup(mem, where, &key));
        value = strchr(key, '=');
        if (!value || value == key)
            return err_set(ERR_USAGE, "--where needs KEY=VALUE, not '%s'", where);
        *value++ = 0;
    }
    return prompts_load(out, path, key, value, limit, mem);
}

err session_text(const session *s, const int32_t *ids, int64_t n, str *out) {
    for (int64_t i = 0; i < n; i++) {
        const char *bytes;
        size_t len;
        if (tokenizer_is_control(s->tok, ids[i])) continue;
        TRY(tokenizer_bytes(s->tok, ids[i], &bytes, &len));
        TRY(str_add(out, bytes, len));
    }
    return ERR_OK;
}
