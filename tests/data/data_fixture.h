/* What the data tests share: SmolLM2's tokenizer out of the committed fixture, its template, a folder for files.
 *
 * Header only: every data test is a program of its own. */
#ifndef TESTS_DATA_FIXTURE_H
#define TESTS_DATA_FIXTURE_H
#include "core/file.h"
#include "data/data.h"
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "support/smollm2_tokenizer.h"

typedef struct fixture {
    char dir[256];
    tokenizer *tok;
    chat_template *chat;
} fixture;

static inline int fixture_set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    zst_temp_dir(f->dir);
    f->tok = smollm2_tokenizer(f->dir, NULL, NULL);
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
