/* The feed: one stream of rows, handed out by index to whichever target device asks next.
 *
 * Rows are numbered from the run's first, so what a row is does not depend on who computes it or when. Optionally an epoch's rows
 * are held back until all rows of the epoch before are done: a feature store needs that, so that each document's
 * taps are made in the first epoch that meets it. Any number of threads may ask. */
#ifndef TRAIN_FEED_H
#define TRAIN_FEED_H
#include "data/data.h"

typedef struct feed feed;
/* The stream (borrowed) stands at row `stream's cursor.rows`; rows before end_row are handed out. */
MUST_CHECK err feed_open(feed **out, data_stream *s, int64_t end_row, int epochs_in_turn);
void feed_free(feed *f);
/* Copies the next row; *index is its number, -1 when there is none or the feed was closed. May wait for an epoch's end. */
MUST_CHECK err feed_next(feed *f, data_row *row, int64_t *index, int64_t *epoch);
void feed_done(feed *f); /* a row that was handed out has its taps */
void feed_close(feed *f);

#endif
