/* B42 at a size for tests: a thousand to eighty thousand rows. Rows prepared are counted, memory stays flat, the heartbeat comes.
 *
 * Memory is the kernel's own high-water mark (VmHWM, reset through clear_refs), which sees heap, stacks and mapped files alike. Every preparation
 * is a process of its own, so that none is served from what the C library kept of another; sets in memory, which must grow, show that
 * growth would be seen. 300 thousand rows and more are bench/bench_data.c's. */
#include "data/store_fixture.h"
#include "support/numbers.h"
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { MEMORY_IS_OURS = 0 }; /* sanitizers keep what was freed */
#else
enum { MEMORY_IS_OURS = 1 };
#endif

static long status_kb(const char *key) {
    char line[256];
    long kb = -1;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0) kb = atol(line + strlen(key));
    fclose(f);
    return kb;
}

/* Whether the mark could be put back to what is resident now. */
static int reset_peak(void) {
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f) return 0;
    const int ok = fputs("5", f) >= 0;
    return fclose(f) == 0 && ok;
}

typedef struct seen {
    int64_t beats, lines, done, all;
    int wrong;
} seen;

static void beat(void *ctx, int64_t lines, int64_t done, int64_t all) {
    seen *b = ctx;
    b->beats++;
    b->wrong |= lines < b->lines || done < b->done || done > all || (b->all && all != b->all);
    b->lines = lines;
    b->done = done;
    b->all = all;
}

typedef struct outcome {
    int64_t lines, documents; /* prepared; in the set */
    long peak_kb;             /* above what was resident before; -1: not known */
    size_t held;              /* data_memory */
    seen beats;
    err e;
    char text[512];
} outcome;

static void measure(const char *path, data_config cfg, outcome *o) {
    data_set *s = NULL;
    cfg.beat = beat;
    cfg.beat_ctx = &o->beats;
    malloc_trim(0); /* what the rows' text took */
    const int known = reset_peak();
    const long before = status_kb("VmHWM:");
    o->e = data_open(&s, &path, 1, &cfg);
    o->peak_kb = known ? status_kb("VmHWM:") - before : -1;
    snprintf(o->text, sizeof o->text, "%s", o->e ? err_text() : "");
    if (o->e) return;
    o->lines = data_get_work(s)->lines;
    o->held = data_memory(s);
    o->documents = data_count(s);
    data_close(s);
}

static outcome prepare(const char *path, data_config cfg, int64_t documents) {
    outcome o = {.peak_kb = -1};
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        measure(path, cfg, &o);
        _exit(write(ends[1], &o, sizeof o) != sizeof o); /* less than a pipe takes at once */
    }
    close(ends[1]);
    assert_true(pid > 0);
    assert_int_equal(read(ends[0], &o, sizeof o), sizeof o);
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    if (o.e) fail_msg("%s", o.text);
    assert_int_equal(o.documents, documents);
    assert_true(o.beats.beats >= 1 && !o.beats.wrong);
    assert_true(o.lines == 0 || o.beats.all > 0);
    return o;
}

static void write_rows(const fixture *f, uint64_t seed, int n, char path[512]) {
    str text = {0};
    store_rows(&text, seed, 0, n, 6);
    store_write(f, "many.jsonl", text.s, text.n, path);
    str_free(&text);
}

static void b42_memory_is_flat_and_rows_are_counted(void **state) {
    const fixture *f = *state;
    const uint64_t seed = numbers_seed();
    static const int sizes[] = {1000, 20000, 80000};
    char path[512], dir[512];
    outcome stored[3], held[3];
    data_config cfg = fixture_config(f);
    cfg.threads = 2;
    for (int i = 0; i < 3; i++) {
        write_rows(f, seed, sizes[i], path);
        cfg.store = store_at(f, "store", dir);
        stored[i] = prepare(path, cfg, sizes[i]);
        assert_int_equal(stored[i].lines, sizes[i]);
        assert_int_equal(prepare(path, cfg, sizes[i]).lines, 0);
        cfg.store = NULL;
        held[i] = prepare(path, cfg, sizes[i]);
        print_message("%d rows: peak %ld KiB, held %zu KiB with a store; %ld and %zu without\n",
                      sizes[i], stored[i].peak_kb, stored[i].held >> 10, held[i].peak_kb,
                      held[i].held >> 10);
    }
    assert_true(stored[2].held == stored[0].held);
    /* What 60,000 rows take in memory is the yardstick: threads' arenas and page cache blur a mark by some MiB. */
    const long grown_kb = (long)((held[2].held - held[1].held) >> 10);
    assert_true(grown_kb > 15 << 10);
    if (MEMORY_IS_OURS && stored[2].peak_kb >= 0) {
        assert_true(stored[2].peak_kb < stored[1].peak_kb + grown_kb / 2);
        assert_true(held[2].peak_kb > held[1].peak_kb + grown_kb / 2); /* the measure sees growth */
    }
}

static void b42_only_grown_rows_are_counted(void **state) {
    const fixture *f = *state;
    char path[512], dir[512];
    data_config cfg = fixture_config(f);
    cfg.store = store_at(f, "store", dir);
    cfg.shard_bytes = 1 << 20;
    write_rows(f, 4, 8000, path);
    assert_int_equal(prepare(path, cfg, 8000).lines, 8000);
    write_rows(f, 4, 9755, path);
    assert_int_equal(prepare(path, cfg, 9755).lines, 1755);
    assert_int_equal(prepare(path, cfg, 9755).lines, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b42_memory_is_flat_and_rows_are_counted),
        cmocka_unit_test(b42_only_grown_rows_are_counted),
    };
    return cmocka_run_group_tests_name("data at scale", tests, fixture_set_up, fixture_tear_down);
}
