/* SmolLM2's tokenizer out of the committed fixture, as it is or with a text in its file changed.
 *
 * Header only: tests/support is linked into tests of every folder and may not name the text folder. Include after
 * cmocka.h; what goes wrong before the tokenizer is loaded fails the test. */
#ifndef SUPPORT_SMOLLM2_TOKENIZER_H
#define SUPPORT_SMOLLM2_TOKENIZER_H
#include "support/zst.h"
#include "text/tokenizer.h"
#include <stdlib.h>
#include <string.h>

/* The first `from` of the file becomes `to`, of equal length; NULL: as it is. dir: a folder for the file. */
static inline err smollm2_load(const char *dir, const char *from, const char *to, tokenizer **t) {
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
    if (gguf_open(&g, path)) fail_msg("%s", err_text());
    err e = tokenizer_load_gguf(t, g);
    gguf_close(g); /* the tokenizer keeps nothing of the file */
    return e;
}

/* The same where it must load. */
static inline tokenizer *smollm2_tokenizer(const char *dir, const char *from, const char *to) {
    tokenizer *t = NULL;
    if (smollm2_load(dir, from, to, &t)) fail_msg("%s", err_text());
    return t;
}

#endif
