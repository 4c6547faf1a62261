/* Error texts: set, prefixed, cut at the buffer's end, and kept apart by threads.
 *
 * The cut is checked by shape, not by an exact size: the buffer's length is no promise. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "core/err.h"

static void set_and_context(void **state) {
    (void)state;
    assert_int_equal(err_set(ERR_FORMAT, "line %d is cut", 7), ERR_FORMAT);
    assert_string_equal(err_text(), "line 7 is cut");
    assert_int_equal(err_context(ERR_FORMAT, "%s: ", "a.json"), ERR_FORMAT);
    assert_string_equal(err_text(), "a.json: line 7 is cut");
    assert_int_equal(err_context(ERR_OK, "never: "), ERR_OK);
    assert_string_equal(err_text(), "a.json: line 7 is cut");
    assert_int_equal(err_set(ERR_IO, "again: %s", err_text()),
                     ERR_IO); /* its own text as an argument */
    assert_string_equal(err_text(), "again: a.json: line 7 is cut");
    err_clear();
    assert_string_equal(err_text(), "");
}

static void errno_texts(void **state) {
    (void)state;
    errno = ENOSPC;
    assert_int_equal(err_errno("%s cannot be written", "x"), ERR_IO);
    assert_string_equal(err_text(), "x cannot be written: No space left on device");
    assert_int_equal(errno, ENOSPC);
    errno = ENOMEM;
    assert_int_equal(err_errno("map"), ERR_MEMORY);
}

static void long_texts_are_cut(void **state) {
    (void)state;
    char big[5000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    assert_int_equal(err_set(ERR_IO, "%s", big), ERR_IO);
    size_t n = strlen(err_text());
    assert_in_range(n, 1000, 4096);
    assert_int_equal(err_context(ERR_IO, "front "), ERR_IO);
    assert_int_equal(strlen(err_text()), n);
    assert_memory_equal(err_text(), "front xxx", 9);
}

static void *other_thread(void *out) {
    snprintf(out, 32, "[%s]", err_text());
    err e = err_set(ERR_IO, "theirs");
    return e == ERR_IO ? out : NULL;
}

static void threads_have_their_own(void **state) {
    (void)state;
    char theirs[32];
    pthread_t t;
    assert_int_equal(err_set(ERR_IO, "mine"), ERR_IO);
    assert_int_equal(pthread_create(&t, NULL, other_thread, theirs), 0);
    pthread_join(t, NULL);
    assert_string_equal(theirs, "[]");
    assert_string_equal(err_text(), "mine");
}

static err forwards(err code) {
    TRY(code);
    return ERR_OK;
}

static void names_and_try(void **state) {
    (void)state;
    assert_string_equal(err_name(ERR_OK), "ok");
    assert_string_equal(err_name(ERR_FORMAT), "malformed file");
    for (int i = 1; i < ERR_COUNT; i++) assert_string_not_equal(err_name((err)i), "unknown error");
    assert_string_equal(err_name(ERR_COUNT), "unknown error");
    assert_int_equal(forwards(ERR_SHAPE), ERR_SHAPE);
    assert_int_equal(forwards(ERR_OK), ERR_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_and_context),    cmocka_unit_test(errno_texts),
        cmocka_unit_test(long_texts_are_cut), cmocka_unit_test(threads_have_their_own),
        cmocka_unit_test(names_and_try),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
