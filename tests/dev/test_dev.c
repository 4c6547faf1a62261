/* Device handles: what they say about themselves, scratch, bad switches, and libraries that are not taken.
 *
 * A library that was named and cannot be used must end in an error, never in another library. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "dev/dev.h"

static void facts(void **state) {
    (void)state;
    dev *d;
    dev_config cfg = {.threads = 3, .blas = "none"};
    assert_int_equal(dev_open_cpu(&d, &cfg), ERR_OK);
    assert_int_equal(dev_threads(d), 3);
    assert_int_equal(pool_threads(dev_pool(d)), 3);
    assert_string_equal(dev_blas_path(d), "plain C");
    assert_non_null(strstr(dev_blas_note(d), "asked for"));
    assert_true(strlen(dev_isa_name(dev_get_isa(d))) > 3);
    dev_close(d);
    dev_close(NULL);
    assert_int_equal(dev_open_cpu(&d, NULL), ERR_OK);
    assert_true(dev_threads(d) >= 1);
    assert_true(strlen(dev_blas_path(d)) > 0);
    dev_close(d);
}

static void scratch_is_kept_and_grown(void **state) {
    (void)state;
    dev *d;
    dev_config cfg = {.threads = 2, .blas = "none"};
    assert_int_equal(dev_open_cpu(&d, &cfg), ERR_OK);
    size_t before = dev_bytes(d);
    assert_int_equal(dev_scratch_reserve(d, 1000), ERR_OK);
    char *first = dev_scratch(d, 0), *second = dev_scratch(d, 1);
    assert_true(first && second && first != second);
    assert_int_equal((uintptr_t)first % 64, 0);
    assert_true(dev_bytes(d) >= before + 2000);
    memset(first, 1, 1000);
    memset(second, 2, 1000);
    assert_int_equal(dev_scratch_reserve(d, 500), ERR_OK);
    assert_ptr_equal(dev_scratch(d, 0), first);
    assert_int_equal(dev_scratch_reserve(d, 100000), ERR_OK);
    memset(dev_scratch(d, 1), 3, 100000);
    assert_int_equal(dev_scratch_reserve(d, SIZE_MAX - 10), ERR_MEMORY);
    assert_int_equal(dev_scratch_reserve(d, SIZE_MAX / 4), ERR_MEMORY);
    assert_int_equal(dev_scratch_reserve(d, 64), ERR_OK); /* and it works again afterwards */
    assert_non_null(dev_scratch(d, 1));
    dev_close(d);
}

static void switches(void **state) {
    (void)state;
    dev *d;
    dev_config cfg = {.blas = "none"};
    setenv("PACELINE_THREADS", "5", 1);
    assert_int_equal(dev_open_cpu(&d, &cfg), ERR_OK);
    assert_int_equal(dev_threads(d), 5);
    dev_close(d);
    static const char *const bad[] = {"0", "many", "2x", "1025", "-1"};
    for (int i = 0; i < 5; i++) {
        setenv("PACELINE_THREADS", bad[i], 1);
        assert_int_equal(dev_open_cpu(&d, &cfg), ERR_USAGE);
        assert_null(d);
        assert_non_null(strstr(err_text(), bad[i]));
    }
    unsetenv("PACELINE_THREADS");
    setenv("PACELINE_ISA", "portable", 1);
    assert_int_equal(dev_open_cpu(&d, &cfg), ERR_OK);
    assert_int_equal(dev_get_isa(d), DEV_ISA_PORTABLE);
    dev_close(d);
    setenv("PACELINE_ISA", "sse9", 1);
    assert_int_equal(dev_open_cpu(&d, &cfg), ERR_USAGE);
    unsetenv("PACELINE_ISA");
}

static void a_named_library_must_work(void **state) {
    (void)state;
    dev *d;
    char *before = getenv("PACELINE_BLAS"), *kept = before ? strdup(before) : NULL;
    static const char *const bad[] = {"no/such/libfile.so", "libc.so.6", "/dev/null"};
    for (int i = 0; i < 3; i++) {
        dev_config cfg = {.threads = 1, .blas = bad[i]};
        assert_int_equal(dev_open_cpu(&d, &cfg), ERR_REFUSED);
        assert_null(d);
        assert_non_null(strstr(err_text(), bad[i]));
        setenv("PACELINE_BLAS", bad[i], 1);
        cfg.blas = NULL;
        assert_int_equal(dev_open_cpu(&d, &cfg), ERR_REFUSED);
        assert_non_null(strstr(err_text(), "PACELINE_BLAS"));
    }
    setenv("PACELINE_BLAS", "none", 1);
    assert_int_equal(dev_open_cpu(&d, NULL), ERR_OK);
    assert_string_equal(dev_blas_path(d), "plain C");
    dev_close(d);
    if (kept)
        setenv("PACELINE_BLAS", kept, 1);
    else
        unsetenv("PACELINE_BLAS");
    free(kept);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(facts),
        cmocka_unit_test(scratch_is_kept_and_grown),
        cmocka_unit_test(switches),
        cmocka_unit_test(a_named_library_must_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
