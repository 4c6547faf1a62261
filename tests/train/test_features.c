/* The feature store: bits that come back, what is refused, growth, damage, threads, and what kills, failing writes
 * and full disks leave.
 *
 * Kills and failures happen to this program again, with arguments, so that injected failures count from one. Every
 * document's tokens and taps follow from its number, so whoever reads knows what must come back. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/log.h"
#include "core/str.h"
#include "support/files.h"
#include "support/numbers.h"
#include "support/says.h"
#include "train/features.h"
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

enum { DOCS = 40, WIDTH = 24, MOST = 37, FILE_BYTES = 4096 };
static const features_shape shape = {"target abc, taps 1 5", DOCS, WIDTH, FILE_BYTES};

static uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 32;
}

typedef struct document {
    int64_t n;
    int32_t tokens[MOST];
    float taps[MOST * WIDTH];
} document;

/* Taps of all kinds of bits: normal, subnormal, infinite, NaN. */
static void make(document *d, int64_t doc, uint64_t version) {
    d->n = 1 + (int64_t)(mixed((uint64_t)doc + 1000 * version) % MOST);
    for (int64_t i = 0; i < d->n; i++)
        d->tokens[i] = (int32_t)(mixed((uint64_t)(doc * 64 + i) + 7 * version) % 50000);
    for (int64_t i = 0; i < d->n * WIDTH; i++) {
        const uint32_t bits = (uint32_t)mixed((uint64_t)(doc << 20 | i) + 13 * version);
        memcpy(&d->taps[i], &bits, sizeof bits);
    }
}

static err write_doc(features *f, int64_t doc) {
    document d;
    make(&d, doc, 0);
    return features_write(f, doc, d.tokens, d.n, d.taps);
}

/* 1: there and equal to its rounded taps; 0: absent; -1: other bits; -2: an error. */
static int look(features *f, int64_t doc, uint64_t version) {
    document d;
    float back[MOST * WIDTH + 1];
    make(&d, doc, version);
    if (!features_has(f, doc, d.tokens, d.n)) return 0;
    numbers_poison(back, MOST * WIDTH + 1);
    if (features_read(f, doc, d.tokens, d.n, back)) return -2;
    features_round(d.taps, (size_t)(d.n * WIDTH));
    const int equal = memcmp(back, d.taps, (size_t)(d.n * WIDTH) * sizeof *back) == 0;
    return equal && isnan(back[d.n * WIDTH]) ? 1 : -1;
}

static features *open_store(const char *dir, int64_t docs) {
    features *f;
    features_shape s = shape;
    s.docs = docs;
    assert_ok(features_open(&f, dir, &s));
    return f;
}

static void b42_size_is_stated_and_refused_when_the_disk_is_smaller(void **state) {
    (void)state;
    files_dir d = files_begin();
    uint64_t room = 0;
    char text[32];
    assert_int_equal(features_bytes(1, 5 * 2560), 25600);
    assert_int_equal(features_bytes(1000000ll * 2000, 5 * 2560), 51200000000000);
    assert_int_equal(features_bytes(INT64_MAX, 1 << 20), UINT64_MAX);
    assert_ok(file_free_bytes(d.path, &room));
    const char *deep = files_at(&d, "not/made/yet");
    assert_ok(features_check_room(deep, room / 2));
    assert_false(file_exists(files_at(&d, "not")));
    assert_says(features_check_room(files_at(&d, "taps"), UINT64_MAX / 4), ERR_REFUSED,
                "features.store", "/taps: ", "4,611,686,018,427,387,903 bytes", "bytes (", ") free",
                "computes taps in each epoch");
    assert_ok(features_check_room("relative/to/here", 0));
    assert_says(features_check_room(d.path, 51200000000000 + room), ERR_REFUSED,
                str_thousands((long long)(51200000000000 + room), text));
    files_end(&d);
}

static void written_read_and_rounded_bits_are_equal(void **state) {
    (void)state;
    files_dir d = files_begin();
    const char *dir = files_at(&d, "store");
    features *f = open_store(dir, DOCS);
    uint64_t bytes = 0, want = 0;
    document doc;
    for (int i = 0; i < DOCS; i++) assert_int_equal(look(f, i, 0), 0);
    for (int i = DOCS - 1; i >= 0; i -= 2) assert_ok(write_doc(f, i));
    for (int i = 0; i < DOCS; i++) assert_int_equal(look(f, i, 0), i % 2);
    assert_ok(features_sync(f));
    for (int i = 0; i < DOCS; i += 2) assert_ok(write_doc(f, i));
    assert_ok(features_sync(f));
    assert_ok(features_sync(f));
    for (int i = 0; i < DOCS; i++) assert_int_equal(look(f, i, 0), 1);
    features_close(f);
    assert_true(
        file_exists(files_at(&d, "store/taps-00005.bin"))); /* a document lies in one file */
    dir = files_at(&d, "store");
    f = open_store(dir, DOCS);
    for (int i = 0; i < DOCS; i++) assert_int_equal(look(f, i, 0), 1);
    for (int i = 0; i < DOCS; i++) {
        make(&doc, i, 0);
        want += features_bytes(doc.n, WIDTH);
    }
    assert_ok(features_stored(dir, &shape, &bytes));
    assert_int_equal(bytes, want);
    features_close(f);
    files_end(&d);
}

/* A document longer than what is written at once. */
static void long_documents_pass_in_pieces(void **state) {
    (void)state;
    files_dir d = files_begin();
    const uint64_t seed = numbers_seed();
    const features_shape wide = {"wide", 3, 5000, 0};
    features *f;
    int32_t tokens[20] = {7};
    float *taps = numbers_new(20 * 5000, seed, 0, 1), *back = numbers_poisoned(20 * 5000);
    assert_ok(features_open(&f, files_at(&d, "store"), &wide));
    assert_ok(features_write(f, 2, tokens, 20, taps));
    assert_ok(features_write(f, 0, tokens, 7, taps));
    assert_ok(features_read(f, 2, tokens, 20, back));
    features_round(taps, 20 * 5000);
    assert_memory_equal(back, taps, 20 * 5000 * sizeof *taps);
    numbers_poison(back, 20 * 5000);
    assert_ok(features_read(f, 0, tokens, 7, back));
    assert_memory_equal(back, taps, 7 * 5000 * sizeof *taps);
    features_close(f);
    free(taps);
    free(back);
    files_end(&d);
}

/* Rounded values are bf16 values: rounding them again changes nothing, and the plain ones differ. */
static void rounding_is_to_bf16(void **state) {
    (void)state;
    const uint64_t seed = numbers_seed();
    float a[999], b[999];
    int moved = 0;
    numbers_fill(a, 999, seed, 0, 3);
    memcpy(b, a, sizeof b);
    features_round(b, 999);
    for (int i = 0; i < 999; i++) {
        uint32_t bits;
        memcpy(&bits, &b[i], 4);
        assert_int_equal(bits & 0xffff, 0);
        assert_true(fabsf(a[i] - b[i]) <= fabsf(a[i]) / 256);
        moved += a[i] != b[i];
    }
    assert_true(moved > 900);
}

static void other_stores_and_folders_are_refused(void **state) {
    (void)state;
    files_dir d = files_begin();
    features *f, *second;
    uint64_t bytes;
    f = open_store(files_at(&d, "store"), DOCS);
    assert_says(features_open(&second, d.name, &shape), ERR_REFUSED, "/store/lock is held by",
                "process");
    assert_null(second);
    assert_ok(features_stored(d.name, &shape, &bytes)); /* looking needs no lock */
    features_close(f);
    features_shape other = shape;
    other.key = "target xyz, taps 1 5";
    assert_says(features_open(&f, d.name, &other), ERR_REFUSED, "/store holds",
                "\"target abc, taps 1 5\"", "\"target xyz, taps 1 5\"", "choose another folder",
                "remove this one");
    assert_says(features_stored(d.name, &other, &bytes), ERR_REFUSED, "target xyz");
    other = shape;
    other.width = 8;
    assert_says(features_open(&f, d.name, &other), ERR_REFUSED, "24 values", "8;");
    other.width = 0;
    assert_says(features_open(&f, d.name, &other), ERR_RANGE, "/store");
    other = shape;
    other.file_bytes = 1; /* of a new store: this one keeps its own */
    assert_ok(features_open(&f, d.name, &other));
    assert_ok(write_doc(f, 1));
    features_close(f);
    files_text(&d, "store/features.json", "{\"format\": 9}");
    assert_says(features_open(&f, files_at(&d, "store"), &shape), ERR_REFUSED, "features.json",
                "format 9");
    files_text(&d, "store/features.json", "{\"for");
    assert_says(features_open(&f, files_at(&d, "store"), &shape), ERR_FORMAT, "features.json");
    assert_ok(file_make_dirs(files_at(&d, "mine")));
    files_text(&d, "mine/thesis.txt", "x");
    assert_says(features_open(&f, files_at(&d, "mine"), &shape), ERR_REFUSED, "no feature store",
                "thesis.txt");
    assert_false(file_exists(files_at(&d, "mine/lock")));
    assert_says(features_open(&f, files_at(&d, "mine/thesis.txt"), &shape), ERR_IO, "thesis.txt");
    assert_ok(features_stored(files_at(&d, "none"), &shape, &bytes));
    assert_int_equal(bytes, 0);
    assert_false(file_exists(d.name));
    other.file_bytes = 40;
    assert_ok(features_open(&f, files_at(&d, "small"), &other));
    assert_says(write_doc(f, 3), ERR_RANGE, "does not fit files of 40");
    assert_says(write_doc(f, DOCS), ERR_RANGE, "documents 0 to 39, not 40");
    features_close(f);
    files_end(&d);
}

/* Documents join behind; one whose tokens changed is absent, may be written anew, and moves no other. */
static void growth_keeps_and_changed_documents_are_absent(void **state) {
    (void)state;
    files_dir d = files_begin();
    document doc;
    const char *dir = files_at(&d, "store");
    features *f = open_store(dir, DOCS / 2);
    for (int i = 0; i < DOCS / 2; i++) assert_ok(write_doc(f, i));
    assert_ok(features_sync(f));
    features_close(f);
    f = open_store(dir, DOCS);
    for (int i = 0; i < DOCS; i++) assert_int_equal(look(f, i, 0), i < DOCS / 2);
    for (int i = DOCS / 2; i < DOCS; i++) assert_ok(write_doc(f, i));
    for (int i = 0; i < DOCS; i++) assert_int_equal(look(f, i, 1), 0);
    make(&doc, 3, 1);
    assert_ok(features_write(f, 3, doc.tokens, doc.n, doc.taps));
    assert_ok(features_sync(f));
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < DOCS; i++) assert_int_equal(look(f, i, 0), i != 3);
        assert_int_equal(look(f, 3, 1), 1);
        features_close(f);
        f = open_store(dir, DOCS);
    }
    features_close(f);
    f = open_store(dir, 5); /* the others are kept for when they come back */
    assert_int_equal(look(f, 4, 0), 1);
    assert_int_equal(look(f, 5, 0), 0);
    assert_ok(write_doc(f, 4));
    features_close(f);
    f = open_store(dir, DOCS);
    assert_int_equal(look(f, DOCS - 1, 0), 1);
    features_close(f);
    files_end(&d);
}

static void flip(const char *path, long at) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    const int byte = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(byte ^ 4, f);
    fclose(f);
}

static void count_warnings(void *ctx, log_level level, const char *line) {
    if (level == LOG_WARN && strstr(line, "marks are torn")) ++*(int *)ctx;
}

static void damage_is_named_and_never_read(void **state) {
    (void)state;
    files_dir d = files_begin();
    document a, doc;
    float back[MOST * WIDTH];
    int warned = 0;
    features *f = open_store(files_at(&d, "store"), DOCS);
    for (int i = 0; i < 8; i++) assert_ok(write_doc(f, i));
    assert_ok(features_sync(f));
    make(&a, 0, 0);
    make(&doc, 1, 0);
    flip(files_at(&d, "store/taps-00000.bin"), (long)features_bytes(a.n, WIDTH) + 5);
    assert_says(features_read(f, 1, doc.tokens, doc.n, back), ERR_FORMAT, "taps-00000.bin",
                "document 1 ", "damaged", "remove ");
    assert_int_equal(look(f, 0, 0), 1);
    assert_int_equal(look(f, 2, 0), 1);
    flip(files_at(&d, "store/taps-00000.bin"), (long)features_bytes(a.n, WIDTH) + 5);
    assert_int_equal(look(f, 1, 0), 1);
    assert_int_equal(truncate(d.name, (off_t)features_bytes(a.n, WIDTH) + 6), 0);
    assert_says(features_read(f, 1, doc.tokens, doc.n, back), ERR_FORMAT, "document 1 ",
                "taps-00000.bin", "ends at byte", "remove ");
    assert_int_equal(look(f, 0, 0), 1);
    features_close(f);
    /* A torn mark is none: the document is computed again. */
    log_set_sink(count_warnings, &warned);
    for (int field = 0; field < 32; field += 5) {
        flip(files_at(&d, "store/marks.bin"), 0 * 32 + field);
        f = open_store(files_at(&d, "store"), DOCS);
        assert_int_equal(look(f, 0, 0), 0);
        features_close(f);
        flip(files_at(&d, "store/marks.bin"), 0 * 32 + field);
    }
    log_set_sink(NULL, NULL);
    assert_int_equal(warned, 7);
    /* A log file that is gone, and a document never written. */
    assert_ok(file_remove_tree(files_at(&d, "store/taps-00000.bin")));
    f = open_store(files_at(&d, "store"), DOCS);
    assert_says(features_read(f, 0, a.tokens, a.n, back), ERR_IO, "taps-00000.bin");
    assert_false(file_exists(files_at(&d, "store/taps-00000.bin")));
    make(&doc, 30, 0);
    assert_says(features_read(f, 30, doc.tokens, doc.n, back), ERR_INTERNAL, "document 30");
    features_close(f);
    files_end(&d);
}

/* ---- threads ---- */

typedef struct crew {
    features *f;
    atomic_int next, failed, writing;
} crew;

static void *work(void *arg) {
    crew *c = arg;
    for (int i; (i = atomic_fetch_add(&c->next, 1)) < DOCS;) {
        if (write_doc(c->f, i) || look(c->f, i, 0) != 1) atomic_fetch_add(&c->failed, 1);
        const int before = look(c->f, i / 2, 0); /* another thread's, there or not */
        if (before < 0) atomic_fetch_add(&c->failed, 1);
    }
    atomic_fetch_sub(&c->writing, 1);
    return NULL;
}

static void *sync_often(void *arg) {
    crew *c = arg;
    while (atomic_load(&c->writing))
        if (features_sync(c->f)) atomic_fetch_add(&c->failed, 1);
    return NULL;
}

static void threads_write_read_and_sync_at_once(void **state) {
    (void)state;
    files_dir d = files_begin();
    crew c = {open_store(files_at(&d, "store"), DOCS), 0, 0, 4};
    pthread_t threads[6];
    for (int i = 0; i < 6; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, i < 4 ? work : sync_often, &c), 0);
    for (int i = 0; i < 6; i++) pthread_join(threads[i], NULL);
    assert_int_equal(c.failed, 0);
    assert_ok(features_sync(c.f));
    features_close(c.f);
    c.f = open_store(files_at(&d, "store"), DOCS);
    for (int i = 0; i < DOCS; i++) assert_int_equal(look(c.f, i, 0), 1);
    features_close(c.f);
    files_end(&d);
}

/* Memory is taken on opening; what is written, synced and read later takes none. */
static void memory_is_flat(void **state) {
    (void)state;
    files_dir d = files_begin();
    const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
    features_shape s = shape;
    features *f;
    s.docs = 20000;
    s.file_bytes = 0;
    assert_ok(features_open(&f, files_at(&d, "store"), &s));
    const size_t opened = mallinfo2().uordblks + mallinfo2().hblkhd;
    assert_true(opened - before <= features_memory(s.docs) + 4096);
    for (int i = 0; i < 20000; i += 10) {
        assert_ok(write_doc(f, i));
        if (i % 5000 == 0) assert_ok(features_sync(f));
        assert_int_equal(look(f, i, 0), 1);
    }
    assert_true(mallinfo2().uordblks + mallinfo2().hblkhd <= opened);
    features_close(f);
    files_end(&d);
}

/* ---- kills and failures ---- */

enum { CHILD_DONE = 0, CHILD_TOLD = 7, CHILD_SILENT = 8 };

/* Writes what is missing, a sync after every third; one byte on fd `report` for each sync. */
static int child(const char *dir, int report) {
    features *f;
    features_shape s = shape;
    err e = features_open(&f, dir, &s);
    for (int i = 0, n = 0; i < DOCS && !e; i++) {
        if (look(f, i, 0) == 1) continue;
        e = write_doc(f, i);
        if (!e && (++n % 3 == 0 || i == DOCS - 1)) {
            e = features_sync(f);
            const char at = (char)(i + 1);
            if (!e && write(report, &at, 1) != 1) return 1;
        }
    }
    const int told = strstr(err_text(), "No space left on device") && strstr(err_text(), dir);
    features_close(f);
    return !e ? CHILD_DONE : told ? CHILD_TOLD : CHILD_SILENT;
}

/* Runs the child with NAME=value, kills it after us microseconds (0: not); *synced: documents it reported. */
static int run_child(const char *dir, const char *name, const char *value, long us, int *synced) {
    int ends[2];
    char fd[16], byte;
    files_must(pipe(ends) == 0, "pipe");
    const pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        snprintf(fd, sizeof fd, "%d", ends[1]);
        if (name) setenv(name, value, 1);
        execl("/proc/self/exe", "test_features", "child", dir, fd, (char *)NULL);
        _exit(99);
    }
    files_must(pid > 0, "fork");
    close(ends[1]);
    if (us) {
        usleep((useconds_t)us);
        kill(pid, SIGKILL);
    }
    *synced = 0;
    while (read(ends[0], &byte, 1) == 1) *synced = byte;
    close(ends[0]);
    int status;
    files_must(waitpid(pid, &status, 0) == pid, "waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* All that was synced is there, and what is there is right. Returns how many are. */
static int check_store(const char *dir, int synced) {
    features *f = open_store(dir, DOCS);
    int n = 0;
    for (int i = 0; i < DOCS; i++) {
        const int there = look(f, i, 0);
        if (there < 0 || (i < synced && !there))
            fail_msg("document %d of %d synced: %d %s", i, synced, there, err_text());
        n += there;
    }
    features_close(f);
    return n;
}

static void b42_marks_survive_kills_at_any_moment(void **state) {
    (void)state;
    files_dir d = files_begin();
    const uint64_t seed = numbers_seed();
    int kills = 0, between = 0, synced = 0, code;
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    assert_int_equal(run_child(files_at(&d, "store"), NULL, NULL, 0, &synced), CHILD_DONE);
    clock_gettime(CLOCK_MONOTONIC, &b);
    /* How long a run takes; where kills come too late, as after a slow first run, or always early, it follows. */
    long whole = (b.tv_sec - a.tv_sec) * 1000000 + (b.tv_nsec - a.tv_nsec) / 1000 + 2;
    for (int i = 0; i < 60; i++) {
        if (i % 6 == 0) assert_ok(file_remove_tree(files_at(&d, "store"))), synced = 0;
        const long us = 1 + (long)rng_below(seed, RNG_TEST, (uint64_t)i, 0, (uint64_t)whole);
        int now = 0;
        code = run_child(files_at(&d, "store"), NULL, NULL, us, &now);
        assert_true(code == CHILD_DONE || code == 128 + SIGKILL);
        kills += code != CHILD_DONE;
        whole = code == CHILD_DONE ? us + 1 : whole + whole / 8;
        if (now > synced) synced = now;
        const int there = check_store(d.name, synced);
        between += there > 0 && there < DOCS;
    }
    assert_true(kills > 0);
    printf("%d kills, %d between the first and the last document\n", kills, between);
    files_end(&d);
}

/* In the middle of every write and before every sync and rename: what was reported is there. */
static void kills_at_every_stage(void **state) {
    (void)state;
    static const char *const stages[] = {"write", "sync", "rename"};
    files_dir d = files_begin();
    char at[32];
    int counts[3] = {0};
    log_set_sink(count_warnings, &(int){0});
    for (int k = 0; k < 3; k++)
        for (int n = 1, code = -1, synced; code != CHILD_DONE; n++) {
            snprintf(at, sizeof at, "%s:%d", stages[k], n);
            assert_ok(file_remove_tree(files_at(&d, "store")));
            code = run_child(files_at(&d, "store"), "PACELINE_KILL_AT", at, 0, &synced);
            assert_true(code == CHILD_DONE || code == 128 + SIGKILL);
            check_store(d.name, synced);
            counts[k] += code != CHILD_DONE;
            if (n % 5) continue;
            assert_int_equal(run_child(d.name, NULL, NULL, 0, &synced), CHILD_DONE);
            assert_int_equal(check_store(d.name, DOCS), DOCS);
        }
    log_set_sink(NULL, NULL);
    assert_true(counts[0] > 2 * DOCS && counts[1] > 2 * (DOCS / 3) && counts[2] >= 1);
    files_end(&d);
}

/* A full disk at any write, sync or rename: the child says so, and the store goes on afterwards. Each mark is on
 * the disk before its sync has ended in one case alone, the failure of the next step after it: were marks written
 * before their data is synced, there would be more. */
static void a_full_disk_is_told_and_survived(void **state) {
    (void)state;
    files_dir d = files_begin();
    char at[32];
    int told = 0, ahead = 0;
    for (int n = 1, code = -1, synced; code != CHILD_DONE; n++) {
        snprintf(at, sizeof at, "%d", n);
        assert_ok(file_remove_tree(files_at(&d, "store")));
        code = run_child(files_at(&d, "store"), "PACELINE_FAIL_WRITE", at, 0, &synced);
        assert_true(code == CHILD_DONE || code == CHILD_TOLD);
        ahead += check_store(d.name, synced) > synced;
        told += code == CHILD_TOLD;
        if (n % 5) continue;
        assert_int_equal(run_child(d.name, NULL, NULL, 0, &synced), CHILD_DONE);
        assert_int_equal(check_store(d.name, DOCS), DOCS);
    }
    assert_true(told > 3 * DOCS);
    assert_int_equal(ahead, DOCS);
    files_end(&d);
}

int main(int argc, char **argv) {
    if (argc == 4) return child(argv[2], atoi(argv[3]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b42_size_is_stated_and_refused_when_the_disk_is_smaller),
        cmocka_unit_test(written_read_and_rounded_bits_are_equal),
        cmocka_unit_test(long_documents_pass_in_pieces),
        cmocka_unit_test(rounding_is_to_bf16),
        cmocka_unit_test(other_stores_and_folders_are_refused),
        cmocka_unit_test(growth_keeps_and_changed_documents_are_absent),
        cmocka_unit_test(damage_is_named_and_never_read),
        cmocka_unit_test(threads_write_read_and_sync_at_once),
        cmocka_unit_test(memory_is_flat),
        cmocka_unit_test(b42_marks_survive_kills_at_any_moment),
        cmocka_unit_test(kills_at_every_stage),
        cmocka_unit_test(a_full_disk_is_told_and_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
