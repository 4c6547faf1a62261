/* Metric rows: one JSON object a line, appended to a file (metrics.jsonl). A row is built field by field
 * and written with one write(2), so a killed process leaves at most one cut line, which row_open
 * removes on the next start. NaN and infinities are written as strings. */
#ifndef CORE_ROW_H
#define CORE_ROW_H
#include "core/err.h"
#include <stdint.h>

typedef struct row_file row_file;
MUST_CHECK err row_open(row_file **out,
                        const char *path); /* appends; creates; mends a cut last line */
void row_close(row_file *f);
void row_begin(row_file *f);
void row_int(row_file *f, const char *key, int64_t v);
void row_real(row_file *f, const char *key, double v);
void row_text(row_file *f, const char *key, const char *v);
void row_reals(row_file *f, const char *key, const double *v, int n);
MUST_CHECK err row_end(row_file *f);
/* Removes rows at the end whose integer field key is greater than max (a resumed run repeats them), from the
 * first of them on. An absent file is fine. */
MUST_CHECK err row_trim(const char *path, const char *key, int64_t max);

#endif
