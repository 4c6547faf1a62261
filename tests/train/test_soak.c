/* A long run of tiny steps: memory, open files, checkpoints and logs stay within bounds however long it goes on.
 *
 * `test_soak 20000` does as many updates; alone it does 600. Memory is what the system says of the process, not what arenas count. Samples
 * are taken in the watcher, after every tenth of the run. What leaks grows in every tenth; what the C library's pools or the system's large
 * pages add at one time or another does not, so it is the middle one of the tenths' growths that is judged. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "support/numbers.h"
#include "support/says.h"
#include "tiny_run.h"
#include <dirent.h>

enum { TENTHS = 10 };
static int64_t updates = 600;

static int64_t resident_bytes(void) {
    long long size = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%lld %lld", &size, &pages) != 2) pages = -1;
    if (f) fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

/* Entries of a folder whose names begin so. */
static int entries(const char *path, const char *begin) {
    int n = 0;
    DIR *d = opendir(path);
    if (!d) return -1;
    for (const struct dirent *e; (e = readdir(d));) n += !strncmp(e->d_name, begin, strlen(begin));
    closedir(d);
    return n;
}

typedef struct sample {
    int64_t resident, checkpoints, logs;
    int files;
} sample;
typedef struct watched {
    files_dir *d;
    sample at[TENTHS + 1];
    int least; /* open files at the quietest moment so far; 0: not looked at yet */
} watched;

/* Other threads open files for a moment, the watchdog twice a second: what is open at a quiet moment counts. There is one
 * unless something leaks. */
static int open_files(watched *w) {
    int n = entries("/proc/self/fd", "");
    for (int ms = 0; ms < 5000 && w->least && n > w->least; ms++) {
        usleep(1000);
        n = entries("/proc/self/fd", "");
    }
    if (!w->least || n < w->least) w->least = n;
    return n;
}

static void watch(void *ctx, const train_progress *p) {
    watched *w = ctx;
    if (p->update % (updates / TENTHS) != 0) return;
    sample *s = &w->at[p->update / (updates / TENTHS)];
    s->resident = resident_bytes();
    s->files = open_files(w);
    s->checkpoints = entries(files_at(w->d, "out/checkpoints"), "step-");
    s->logs = entries(files_at(w->d, "out"), "log.txt");
}

static int by_size(const void *a, const void *b) {
    const int64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}
static int64_t middle_growth(const watched *w) {
    int64_t grown[TENTHS - 1];
    for (int i = 1; i < TENTHS; i++) grown[i - 1] = w->at[i + 1].resident - w->at[i].resident;
    qsort(grown, TENTHS - 1, sizeof *grown, by_size);
    return grown[(TENTHS - 1) / 2];
}

static void a_long_run_stays_within_bounds(void **state) {
    (void)state;
    files_dir d;
    watched w = {.d = &d};
    recipe *r = NULL;
    train *t = NULL;
    char set[64];
    tiny_run_make(&d, 51);
    snprintf(set, sizeof set, "run.max_updates=%lld", (long long)updates);
    const char *const sets[] = {set,
                                "run.tokens_per_step=64",
                                "run.tokens_per_row=64",
                                "data.max_length=64",
                                "anchors.per_document=2",
                                "run.checkpoint_every=20",
                                "run.evaluate_every=100",
                                "run.evaluate_tokens=4",
                                "devices.target=[cpu:0, cpu:1]",
                                "devices.drafter=[cpu:2, cpu:3]",
                                NULL};
    assert_ok(tiny_run_open(&d, sets, NULL, &r, &t));
    assert_ok(train_run(t, watch, &w, NULL));
    train_close(t);
    recipe_free(r);
    for (int i = 1; i <= TENTHS; i++)
        printf("after %7lld updates: %6.1f MiB resident, %d open files, %lld checkpoints\n",
               (long long)(updates / TENTHS * i), (double)w.at[i].resident / 1048576, w.at[i].files,
               (long long)w.at[i].checkpoints);
    for (int i = 2; i <= TENTHS; i++) {
        assert_true(w.at[i].files <= w.at[1].files);
        assert_true(w.at[i].logs >= 1 && w.at[i].logs <= 3);
        assert_true(w.at[i].checkpoints <= 2 + 1); /* keep and the best */
    }
    /* The sanitizers keep freed memory for a while; without them the system's figure stands still. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(middle_growth(&w) <= 256 << 10);
#endif
    files_end(&d);
}

int main(int argc, char **argv) {
    if (argc == 2 && atoll(argv[1]) >= TENTHS) updates = atoll(argv[1]) / TENTHS * TENTHS;
    log_set_sink(tiny_run_quiet, NULL);
    files_in_memory();
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_long_run_stays_within_bounds)};
    return cmocka_run_group_tests_name("soak", tests, NULL, NULL);
}
