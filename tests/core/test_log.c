/* Log lines, environment switches, clocks and text helpers: what people get to read.
 *
 * The sink writes plain memory, so the thread sanitizer sees it if lines were not handed over one by one. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/clock.h"
#include "core/env.h"
#include "core/log.h"
#include "core/str.h"
#include "support/files.h"
#include "support/says.h"

typedef struct lines {
    int n, broken;
    log_level last;
    char text[200];
} lines;

static void keep(void *ctx, log_level level, const char *line) {
    lines *l = ctx;
    int a, b; /* plain memory: the sink is called under one lock */
    if (sscanf(line, "thread %d line %d end", &a, &b) != 2 || !strstr(line, "end")) l->broken++;
    l->n++;
    l->last = level;
    snprintf(l->text, sizeof l->text, "%s", line);
}

static void *log_often(void *id) {
    for (int i = 0; i < 500; i++) log_info("thread %d line %d end", (int)(intptr_t)id, i);
    return NULL;
}

static void lines_of_many_threads_stay_whole(void **state) {
    (void)state;
    lines l = {0};
    log_set_sink(keep, &l);
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, log_often, (void *)(intptr_t)i), 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    log_set_sink(NULL, NULL);
    assert_int_equal(l.n, 2000);
    assert_int_equal(l.broken, 0);
}

/* Bytes of the log's files together, each within its bound and made of whole lines that end so. */
static size_t check_log(files_dir *d, const char *name, size_t most, int files) {
    size_t all = 0;
    for (int k = 0; k <= files; k++) {
        char path[64], *text;
        size_t n;
        snprintf(path, sizeof path, k ? "%s.%d" : "%s", name, k);
        const char *at = files_at(d, path);
        if (k == files) {
            assert_false(file_exists(at));
            continue;
        }
        if (!file_exists(at)) continue;
        assert_ok(file_read(at, &text, &n));
        assert_true(n <= most);
        all += n;
        for (char *line = text; *line; line = strchr(line, '\n') + 1) {
            int a, b;
            char level[8];
            assert_non_null(strchr(line, '\n'));
            assert_int_equal(
                sscanf(line, "%*[0-9TZ:-] %7[a-z]: thread %d line %d end", level, &a, &b), 3);
            assert_string_equal(level, "info");
        }
        free(text);
    }
    return all;
}

static void a_run_s_file_keeps_its_bound(void **state) {
    (void)state;
    files_dir d = files_begin();
    lines l = {0};
    const size_t most = 10000;
    char *text;
    size_t n;
    log_set_sink(keep, &l);
    assert_ok(log_file_open(files_at(&d, "log.txt"), most, 3));
    assert_says(log_file_open(files_at(&d, "other.txt"), most, 3), ERR_REFUSED, "log.txt",
                "other.txt");
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, log_often, (void *)(intptr_t)i), 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    log_file_line(LOG_INFO, "thread 9 line 0 end"); /* to the file alone */
    log_file_close();
    log_file_close();
    log_file_line(LOG_INFO, "nowhere");
    log_info("thread 9 line 9 end"); /* after closing: to the sink alone */
    assert_int_equal(l.n, 2001);
    assert_int_equal(l.broken, 0);
    assert_ok(file_read(files_at(&d, "log.txt"), &text, &n));
    assert_non_null(strstr(text, "info: thread 9 line 0 end\n"));
    free(text);
    const size_t all = check_log(&d, "log.txt", most, 3);
    assert_true(all > 2 * most);
    /* Continued where it stood; one file alone is begun anew instead. */
    assert_ok(log_file_open(files_at(&d, "log.txt"), most, 3));
    log_info("thread 7 line 1 end");
    log_file_close();
    check_log(&d, "log.txt", most, 3);
    assert_ok(file_read(files_at(&d, "log.txt"), &text, &n));
    assert_non_null(strstr(text, "info: thread 7 line 1 end\n"));
    free(text);
    assert_ok(log_file_open(files_at(&d, "single"), most, 1));
    for (int i = 0; i < 1000; i++) log_info("thread 0 line %d end", i);
    log_file_close();
    assert_true(check_log(&d, "single", most, 1) > 0);
    log_set_sink(NULL, NULL);
    assert_says(log_file_open(files_at(&d, "none/log.txt"), most, 3), ERR_IO, "none/log.txt");
    assert_says(log_file_open(files_at(&d, "x"), 100, 3), ERR_RANGE, "100");
    assert_says(log_file_open(files_at(&d, "x"), most, 0), ERR_RANGE, "0 files");
    files_end(&d);
}

static void levels(void **state) {
    (void)state;
    lines l = {0};
    log_set_sink(keep, &l);
    log_set_level(LOG_WARN);
    log_debug("no");
    log_info("no");
    assert_int_equal(l.n, 0);
    log_warn("disk %d%% full", 90);
    assert_int_equal(l.n, 1);
    assert_int_equal(l.last, LOG_WARN);
    assert_string_equal(l.text, "disk 90% full");
    log_lines(LOG_INFO, "below\nthe level");
    assert_int_equal(l.n, 1);
    log_lines(LOG_WARN, "one\n\ntwo\nthree");
    assert_int_equal(l.n, 4);
    assert_string_equal(l.text, "three");
    log_error("yes");
    assert_int_equal(l.last, LOG_ERROR);
    log_set_level(LOG_INFO);
    log_set_sink(NULL, NULL);
    log_level level;
    assert_int_equal(log_parse_level("debug", &level), 1);
    assert_int_equal(level, LOG_DEBUG);
    assert_int_equal(log_parse_level("loud", &level), 0);
}

static void switches(void **state) {
    (void)state;
    setenv("PACELINE_LOG", "", 1);
    assert_null(env_get(ENV_PACELINE_LOG));
    setenv("PACELINE_LOG", "warn", 1);
    assert_string_equal(env_get(ENV_PACELINE_LOG), "warn");
    unsetenv("PACELINE_LOG");
    assert_null(env_get(ENV_PACELINE_LOG));
    for (int k = 0; k < ENV_COUNT; k++) {
        assert_memory_equal(env_name((env_key)k), "PACELINE_", 9);
        assert_true(strlen(env_help((env_key)k)) > 10);
    }
}

static void clocks(void **state) {
    (void)state;
    char buf[21], span[16];
    double t = clock_seconds();
    assert_true(clock_seconds() >= t);
    clock_utc(buf);
    assert_int_equal(strlen(buf), 20);
    assert_int_equal(buf[19], 'Z');
    assert_string_equal(clock_span(12.2, span), "12s");
    assert_string_equal(clock_span(200, span), "3m20s");
    assert_string_equal(clock_span(3840, span), "1h04m");
    assert_string_equal(clock_span(59.9, span), "1m00s");
    assert_string_equal(clock_span(-3, span), "0s");
    assert_true(strlen(clock_span(1e300, span)) < 16);
}

static void strings(void **state) {
    (void)state;
    str s = {0};
    assert_int_equal(str_add(&s, "ab\0c", 4), ERR_OK);
    assert_int_equal(str_printf(&s, "%d-%s", 17, "x"), ERR_OK);
    assert_int_equal(s.n, 8);
    assert_memory_equal(s.s, "ab\0c17-x", 9);
    str_clear(&s);
    assert_string_equal(s.s, "");
    for (int i = 0; i < 1000; i++) assert_int_equal(str_printf(&s, "%03d", i), ERR_OK);
    assert_int_equal(s.n, 3000);
    assert_memory_equal(s.s + 2997, "999", 4);
    str_free(&s);
    assert_null(s.s);
    char buf[32];
    assert_string_equal(str_thousands(1234567, buf), "1,234,567");
    assert_string_equal(str_thousands(-123, buf), "-123");
    assert_string_equal(str_thousands(0, buf), "0");
    assert_string_equal(str_thousands(-1000, buf), "-1,000");
    assert_string_equal(str_bytes(512, buf), "512 B");
    assert_string_equal(str_bytes(1536.0 * 1024 * 1024, buf), "1.5 GiB");
    assert_string_equal(str_bytes(312 * 1024, buf), "312 KiB");
}

static void suggestions(void **state) {
    (void)state;
    const char *const keys[] = {"max_length", "mask_token", "warmup", "lr", "epochs"};
    assert_string_equal(str_nearest("max_lenght", keys, 5), "max_length");
    assert_string_equal(str_nearest("epoch", keys, 5), "epochs");
    assert_string_equal(str_nearest("wramup", keys, 5), "warmup");
    assert_null(str_nearest("tokenizer", keys, 5));
    assert_null(str_nearest("zz", keys, 5));
    assert_null(str_nearest("", keys, 5));
    assert_string_equal(str_nearest("WARMUP", keys, 5), "warmup");
    assert_string_equal(str_nearest("LR", keys, 5),
                        "lr"); /* another word of two letters would not do */
    assert_null(str_nearest("foo", (const char *const[]){"log", "for2"}, 2));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_of_many_threads_stay_whole),
        cmocka_unit_test(a_run_s_file_keeps_its_bound),
        cmocka_unit_test(levels),
        cmocka_unit_test(switches),
        cmocka_unit_test(clocks),
        cmocka_unit_test(strings),
        cmocka_unit_test(suggestions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
