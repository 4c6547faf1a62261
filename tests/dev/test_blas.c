/* Which CBLAS libraries are taken: stubs that are right, wrong, unsteady, of another interface, or of wide integers.
 *
 * A wrong one must be refused with its path wherever it comes from, and never end this process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "dev/gemm.h"
#include "support/says.h"
#include "support/stubs.h"

static void a_right_library_is_taken_and_named(void **state) {
    (void)state;
    char path[PATH_MAX];
    dev *d;
    library_record_list list;
    assert_ok(
        dev_open_cpu(&d, &(dev_config){.threads = 2, .blas = stubs_path("blas_right", path)}));
    assert_string_equal(dev_blas_path(d), path);
    assert_string_equal(dev_blas_version(d), "OpenBLAS 9.9.1");
    assert_ok(dev_libraries(d, &list));
    assert_int_equal(list.n, 1);
    assert_string_equal(list.items[0].path, path);
    assert_string_equal(list.items[0].version, "OpenBLAS 9.9.1");
    float a[6] = {1, 2, 3, 4, 5, 6}, c[4];
    assert_ok(gemm_f32(d, &(gemm_args){.m = 2,
                                       .n = 2,
                                       .k = 3,
                                       .tb = 1,
                                       .alpha = 1,
                                       .a = a,
                                       .lda = 3,
                                       .b = a,
                                       .ldb = 3,
                                       .c = c,
                                       .ldc = 2}));
    assert_true(c[0] == 14 && c[1] == 32 && c[2] == 32 && c[3] == 77);
    dev_close(d);
    assert_ok(dev_open_cpu(&d, &(dev_config){.threads = 1, .blas = "none"}));
    assert_string_equal(dev_blas_version(d), "");
    dev_close(d);
}

static void refused(const char *name, const char *why) {
    char path[PATH_MAX];
    dev *d;
    stubs_path(name, path);
    for (int threads = 1; threads <= 3; threads += 2) {
        dev_config cfg = {.threads = threads, .blas = path};
        assert_says(dev_open_cpu(&d, &cfg), ERR_REFUSED, path, why);
        assert_null(d);
    }
}

static void b59_wrong_products_are_refused(void **state) {
    (void)state;
    refused("blas_wrong", "computes a wrong matrix product");
}
static void b59_unsteady_bits_are_refused(void **state) {
    (void)state;
    refused("blas_unsteady", "twice with different bits");
}
static void b59_another_interface_is_refused(void **state) {
    (void)state;
    refused("blas_crash", "ends a process that multiplies with it");
}
static void b59_wide_integers_are_refused(void **state) {
    (void)state;
    refused("blas_wide", "64-bit integers");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_library_is_taken_and_named),
        cmocka_unit_test(b59_wrong_products_are_refused),
        cmocka_unit_test(b59_unsteady_bits_are_refused),
        cmocka_unit_test(b59_another_interface_is_refused),
        cmocka_unit_test(b59_wide_integers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
