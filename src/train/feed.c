/* The feed's lock and its two counts: rows handed out and rows done.
 *
 * Reading a row touches its tokens' pages, so a slow disk shows here and nowhere else. An error of the stream ends the feed for
 * everyone and is returned to the one that met it. Rows are not computed here. */
#include "train/feed.h"
#include "train/row_buffer.h"
#include <pthread.h>

struct feed {
    pthread_mutex_t lock;
    pthread_cond_t turn;
    data_stream *stream;
    int64_t first_row, end_row;
    int64_t given, done;
    int64_t epoch; /* of the row given last */
    int epochs_in_turn, closed;
};

err feed_open(feed **out, data_stream *s, int64_t end_row, int epochs_in_turn) {
    feed *f = NULL;
    *out = NULL;
    TRY(mem_new(1, sizeof *f, &f));
    f->stream = s;
    f->first_row = data_stream_tell(s).rows;
    f->epoch = data_stream_tell(s).epoch;
    f->end_row = end_row;
    f->epochs_in_turn = epochs_in_turn;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->turn, NULL);
    *out = f;
    return ERR_OK;
}

void feed_free(feed *f) {
    if (!f) return;
    pthread_cond_destroy(&f->turn);
    pthread_mutex_destroy(&f->lock);
    mem_free(f);
}

static int must_wait(const feed *f) {
    return f->epochs_in_turn && f->given > f->done && data_stream_tell(f->stream).epoch != f->epoch;
}

err feed_next(feed *f, data_row *row, int64_t *index, int64_t *epoch) {
    const data_row *next = NULL;
    err e = ERR_OK;
    *index = -1;
    pthread_mutex_lock(&f->lock);
    while (!f->closed && must_wait(f)) pthread_cond_wait(&f->turn, &f->lock);
    if (!f->closed && f->first_row + f->given < f->end_row) {
        *epoch = f->epoch = data_stream_tell(f->stream).epoch;
        e = data_stream_next(f->stream, &next);
        if (e) {
            f->closed = 1;
            pthread_cond_broadcast(&f->turn);
        } else {
            row_buffer_copy(row, next);
            *index = f->first_row + f->given++;
        }
    }
    pthread_mutex_unlock(&f->lock);
    return e;
}

void feed_done(feed *f) {
    pthread_mutex_lock(&f->lock);
    f->done++;
    pthread_cond_broadcast(&f->turn);
    pthread_mutex_unlock(&f->lock);
}

void feed_close(feed *f) {
    pthread_mutex_lock(&f->lock);
    f->closed = 1;
    pthread_cond_broadcast(&f->turn);
    pthread_mutex_unlock(&f->lock);
}
