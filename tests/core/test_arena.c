/* Arenas: zeroed and aligned memory, counting, caps, resets, failures on request.
 *
 * Memory is dirtied before each reset, so that a zeroed allocation cannot pass by luck, and a step that
 * repeats itself must not meet the system again. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "core/arena.h"

static int all_zero(const unsigned char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i]) return 0;
    return 1;
}

static void zeroed_and_aligned(void **state) {
    (void)state;
    arena *a;
    assert_int_equal(arena_create(&a, "test", 0), ERR_OK);
    assert_string_equal(arena_name(a), "test");
    arena_mark start = arena_get_mark(a);
    for (int round = 0; round < 3; round++) {
        for (size_t n = 0; n < 3000; n += 37) {
            unsigned char *p, *raw;
            assert_int_equal(arena_alloc(a, n, 3, &p), ERR_OK);
            assert_int_equal((uintptr_t)p % 64, 0);
            assert_true(all_zero(p, n * 3));
            memset(p, 0xab, n * 3); /* dirt for the next round */
            assert_int_equal(arena_alloc_raw(a, 1, n, &raw), ERR_OK);
            assert_int_equal((uintptr_t)raw % 64, 0);
            assert_true(raw >= p + n * 3 || raw < p);
            memset(raw, 0xcd, n);
        }
        arena_reset(a, start);
    }
    arena_destroy(a);
    arena_destroy(NULL);
}

static void counts_and_steady_steps(void **state) {
    (void)state;
    arena *a;
    arena_stats s, t;
    assert_int_equal(arena_create(&a, "test", 0), ERR_OK);
    char *p;
    assert_int_equal(arena_alloc(a, 100, 1, &p), ERR_OK);
    arena_get_stats(a, &s);
    assert_int_equal(s.used, 128);
    assert_int_equal(s.allocations, 1);
    arena_mark mark = arena_get_mark(a);
    uint64_t calls = 0;
    for (int step = 0; step < 10; step++) {
        for (int i = 0; i < 40; i++)
            assert_int_equal(arena_alloc_raw(a, (size_t)(i * 7919 % 90000), 3, &p), ERR_OK);
        assert_int_equal(arena_alloc(a, 1, 3000000, &p), ERR_OK); /* larger than a chunk */
        arena_get_stats(a, &t);
        if (step == 0) calls = t.system_calls;
        assert_int_equal(t.system_calls, calls);
        assert_true(t.reserved >= t.used && t.peak >= t.used);
        arena_reset(a, mark);
        arena_get_stats(a, &t);
        assert_int_equal(t.used, 128);
    }
    assert_true(t.peak > 3000000);
    arena_destroy(a);
}

static void marks_nest_and_keep_what_came_before(void **state) {
    (void)state;
    arena *a;
    assert_int_equal(arena_create(&a, "test", 0), ERR_OK);
    char *first, *second, *third;
    assert_int_equal(arena_strdup(a, "first", &first), ERR_OK);
    arena_mark outer = arena_get_mark(a);
    assert_int_equal(arena_alloc(a, 1, 500000, &second), ERR_OK);
    memset(second, 1, 500000);
    arena_mark inner = arena_get_mark(a);
    assert_int_equal(arena_alloc(a, 1, 900000, &third), ERR_OK);
    memset(third, 2, 900000);
    arena_reset(a, inner);
    assert_int_equal(second[499999], 1);
    arena_reset(a, outer);
    assert_string_equal(first, "first");
    assert_int_equal(arena_alloc(a, 1, 500000, &third), ERR_OK);
    assert_ptr_equal(third, second); /* the same chunk serves again, and is zero again */
    assert_true(all_zero((unsigned char *)third, 500000));
    arena_destroy(a);
}

static void cap_is_taken_at_once_and_never_exceeded(void **state) {
    (void)state;
    arena *a;
    arena_stats s;
    assert_int_equal(arena_create(&a, "step", 1024), ERR_OK);
    arena_get_stats(a, &s);
    assert_int_equal(s.reserved, 1024);
    assert_int_equal(s.system_calls, 1);
    char *p;
    assert_int_equal(arena_alloc(a, 1000, 1, &p), ERR_OK); /* 1024 with its alignment */
    assert_int_equal(arena_alloc(a, 1, 1, &p), ERR_MEMORY);
    assert_null(p);
    assert_non_null(strstr(err_text(), "step"));
    assert_non_null(strstr(err_text(), "1088 in all"));
    arena_get_stats(a, &s);
    assert_int_equal(s.system_calls, 1);
    assert_int_equal(s.used, 1024);
    arena_destroy(a);
    assert_int_equal(arena_create(&a, "huge", SIZE_MAX / 2), ERR_MEMORY);
    assert_null(a);
}

static void overflow_and_requested_failure(void **state) {
    (void)state;
    arena *a;
    void *p;
    assert_int_equal(arena_create(&a, "test", 0), ERR_OK);
    assert_int_equal(arena_alloc(a, SIZE_MAX / 2, 3, &p), ERR_MEMORY);
    assert_int_equal(arena_alloc(a, SIZE_MAX, 1, &p), ERR_MEMORY);
    arena_fail_at(a, 3);
    assert_int_equal(arena_alloc(a, 1, 1, &p), ERR_OK);
    assert_int_equal(arena_alloc_raw(a, 1, 1, &p), ERR_OK);
    assert_int_equal(arena_alloc(a, 1, 1, &p), ERR_MEMORY);
    assert_int_equal(arena_alloc(a, 1, 1, &p), ERR_OK); /* once */
    arena_fail_at(a, 1);
    arena_fail_at(a, 0);
    assert_int_equal(arena_alloc(a, 1, 1, &p), ERR_OK);
    arena_destroy(a);
}

static void heap_helpers(void **state) {
    (void)state;
    int *list = NULL;
    size_t cap = 0;
    for (size_t i = 0; i < 5000; i++) {
        assert_int_equal(mem_grow(&list, &cap, i + 1, sizeof *list), ERR_OK);
        list[i] = (int)i;
    }
    for (int i = 0; i < 5000; i++) assert_int_equal(list[i], i);
    assert_true(cap >= 5000 && cap < 10000);
    assert_int_equal(mem_grow(&list, &cap, SIZE_MAX / 2, sizeof *list), ERR_MEMORY);
    assert_int_equal(list[4999], 4999); /* the list survives */
    mem_free(list);
    char *p;
    assert_int_equal(mem_new(0, 8, &p), ERR_OK);
    assert_non_null(p);
    mem_free(p);
    assert_int_equal(mem_new(SIZE_MAX / 2, 8, &p), ERR_MEMORY);
    assert_null(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zeroed_and_aligned),
        cmocka_unit_test(counts_and_steady_steps),
        cmocka_unit_test(marks_nest_and_keep_what_came_before),
        cmocka_unit_test(cap_is_taken_at_once_and_never_exceeded),
        cmocka_unit_test(overflow_and_requested_failure),
        cmocka_unit_test(heap_helpers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
