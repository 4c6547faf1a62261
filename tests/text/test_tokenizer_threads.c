/* One tokenizer, many threads: encoding at the same moment gives the ids that one thread gets alone.
 *
 * A program of its own, so that the thread sanitizer's run stays short: it encodes part of the mixed text of
 * tests/fixtures/text and asserts in the main thread only. */
#include "core/arena.h"
#include "core/pool.h"
#include "support/zst.h"
#include "text/tokenizer.h"
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "support/smollm2_tokenizer.h"

#define FIXTURES "tests/fixtures/text/"
enum { TASKS = 6, BYTES = 100000 };

typedef struct ids {
    int32_t *v;
    size_t n, cap;
} ids;

typedef struct shared {
    const tokenizer *t;
    const char *text;
    ids got[TASKS];
} shared;

static err encode_task(void *ctx, int64_t task, int thread) {
    shared *s = ctx;
    ids *out = &s->got[task];
    (void)thread;
    return tokenizer_encode(s->t, s->text, BYTES, 1, &out->v, &out->n, &out->cap);
}

static void one_tokenizer_serves_many_threads(void **state) {
    (void)state;
    size_t n;
    char dir[256];
    zst_temp_dir(dir);
    char *data = zst_read(FIXTURES "mixed.txt.zst", &n);
    assert_true(n > BYTES);
    tokenizer *t = smollm2_tokenizer(dir, NULL, NULL);
    zst_temp_remove(dir);
    shared s = {.t = t, .text = data};
    ids alone = {0};
    assert_int_equal(tokenizer_encode(t, data, BYTES, 1, &alone.v, &alone.n, &alone.cap), ERR_OK);
    pool *p;
    assert_int_equal(pool_create(&p, 3), ERR_OK);
    assert_int_equal(pool_run(p, TASKS, encode_task, &s), ERR_OK);
    pool_destroy(p);
    for (int i = 0; i < TASKS; i++) {
        assert_int_equal(s.got[i].n, alone.n);
        assert_memory_equal(s.got[i].v, alone.v, alone.n * sizeof *alone.v);
        mem_free(s.got[i].v);
    }
    mem_free(alone.v);
    tokenizer_free(t);
    free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_tokenizer_serves_many_threads),
    };
    return cmocka_run_group_tests_name("tokenizer threads", tests, NULL, NULL);
}
