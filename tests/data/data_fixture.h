/* What the data tests share: SmolLM2's tokenizer out of the committed fixture, its template, a folder for files.
 *
 * Header only, because tests/support is linked into tests of every folder and may not name the text folder. */
#ifndef TESTS_DATA_FIXTURE_H
#define TESTS_DATA_FIXTURE_H
#include "core/file.h"
#include "data/data.h"
#include "support/zst.h"
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

typedef struct fixture {
    char dir[256];
    tokenizer *tok;
    chat_template *chat;
} fixture;

/* from and to of equal length change the tokenizer's file first; NULL: as it is. */
static inline tokenizer *fixture_tokenizer(const char *dir, const char *from, const char *to) {
    size_t n;
    char *data = zst_read("tests/fixtures/text/smollm2_tokenizer.gguf.zst", &n), path[512];
    if (from) {
        char *at = memmem(data, n, from, strlen(from));
        assert_non_null(at);
        memcpy(at, to, strlen(from));
    }
    zst_write_temp(dir, "tokenizer.gguf", data, n, path);
    free(data);
    gguf *g;
    tokenizer *t = NULL;
    if (gguf_open(&g, path) || tokenizer_load_gguf(&t, g)) fail_msg("%s", err_text());
    gguf_close(g);
    return t;
}

static inline int fixture_set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    zst_temp_dir(f->dir);
    f->tok = fixture_tokenizer(f->dir, NULL, NULL);
    if (chat_template_open(&f->chat, "auto", f->tok)) fail_msg("%s", err_text());
    *state = f;
    return 0;
}

static inline int fixture_tear_down(void **state) {
    fixture *f = *state;
    chat_template_free(f->chat);
    tokenizer_free(f->tok);
    if (file_remove_tree(f->dir)) fail_msg("%s", err_text()); /* stores lie in it too */
    free(f);
    return 0;
}

static inline data_config fixture_config(const fixture *f) {
    return (data_config){.tok = f->tok, .chat = f->chat, .max_length = 512};
}

/* Opens one file of the given bytes. */
static inline err fixture_open(const fixture *f, const char *name, const char *bytes, size_t n,
                               const data_config *cfg, data_set **out) {
    char path[512];
    zst_write_temp(f->dir, name, bytes, n, path);
    const char *paths[] = {path};
    return data_open(out, paths, 1, cfg);
}

#endif
