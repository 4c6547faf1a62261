/* A running run's live record and log file: see live_run.h.
 *
 * One lock around one record; the file is written by the thread that filled it in. The log's bound is fixed: three files
 * of 4 MiB. Who fills in what is the run's business. */
#include "train/live_run.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include "core/version.h"
#include <limits.h>
#include <pthread.h>
#include <stdio.h>

#define SECONDS_BETWEEN 0.5
enum { LOG_BYTES = 4 << 20, LOG_FILES = 3 };

struct live_run {
    char path[PATH_MAX];
    pthread_mutex_t lock;
    live_record *record;
    double last;
    int warned, logging, left;
};

static void write_record(live_run *x) {
    x->last = clock_seconds();
    if (x->left) return;
    if (live_write(x->path, x->record) == ERR_OK || x->warned) return;
    x->warned = 1;
    log_warn("the live record is not kept, so status shows less: %s", err_text());
}

static void open_log(live_run *x) {
    char path[PATH_MAX];
    err e = file_join(path, sizeof path, x->path, "log.txt");
    if (!e) e = log_file_open(path, LOG_BYTES, LOG_FILES);
    x->logging = e == ERR_OK;
    if (e) log_warn("%s", err_text());
}

err live_run_open(live_run **out, const char *run, int64_t supervisor) {
    *out = NULL;
    live_run *x;
    TRY(mem_new(1, sizeof *x, &x));
    err e = live_create(&x->record);
    if (!e) e = live_begin(x->record, VERSION_TEXT, supervisor);
    if (e) {
        live_free(x->record);
        mem_free(x);
        return e;
    }
    snprintf(x->path, sizeof x->path, "%s", run);
    pthread_mutex_init(&x->lock, NULL);
    open_log(x);
    write_record(x);
    log_file_line(LOG_INFO, "process %lld on %s begins in %s", (long long)x->record->process.pid,
                  x->record->process.host, run);
    *out = x;
    return ERR_OK;
}

live_record *live_run_begin(live_run *x) {
    pthread_mutex_lock(&x->lock);
    return x->record;
}

void live_run_end(live_run *x, int at_once) {
    if (at_once || clock_seconds() - x->last >= SECONDS_BETWEEN) write_record(x);
    pthread_mutex_unlock(&x->lock);
}

void live_run_leave(live_run *x) {
    pthread_mutex_lock(&x->lock);
    x->left = 1;
    pthread_mutex_unlock(&x->lock);
}

err live_run_close(live_run *x, err e) {
    if (!x) return e;
    if (!x->left) e = live_finish(x->path, x->record, e);
    if (x->logging) {
        log_file_line(e && e != ERR_STOPPED ? LOG_ERROR : LOG_INFO, "the run ends: %s",
                      e ? err_text() : "done");
        log_file_close();
    }
    pthread_mutex_destroy(&x->lock);
    live_free(x->record);
    mem_free(x);
    return e;
}

void live_run_drop(live_run *x) {
    char text[2048];
    if (!x) return;
    snprintf(text, sizeof text, "%s", err_text());
    err e = live_run_close(x, err_set(ERR_STOPPED, "closed before its first update"));
    (void)err_set(e, "%s", text);
}
