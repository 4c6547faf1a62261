/* Runs out of boxes, in both directions.
 *
 * In Z order the boxes over any row come with rising start, and over any column too, so a line's runs are made by
 * appending and joining with the last one: one pass to count, one to write, no sorting and no transposing. */
#include "core/str.h"
#include "flex/blockmask_private.h"
#include <string.h>

/* A box seen from one side: the lines it covers and its extent along them. */
typedef struct side {
    int32_t line, lines, start, length;
} side;

static side seen_from(const blockmask__builder *w, const blockmask__box *x, int columns) {
    int32_t nq = (int32_t)blockmask__length(x->level, x->q, w->out->q_tiles),
            nk = (int32_t)blockmask__length(x->level, x->k, w->out->kv_tiles);
    return columns ? (side){x->k, nk, x->q, nq} : (side){x->q, nq, x->k, nk};
}

/* Counts the runs of each line into start[1 + line]. end[line]: 2 * (one past the last run) + its kind. */
static void count_runs(const blockmask__builder *w, int columns, int64_t lines, int64_t *start,
                       int64_t *end) {
    int64_t entries = w->args.batch * w->args.heads;
    for (int64_t e = 0; e < entries; e++) {
        for (int64_t i = 0; i < lines; i++) end[i] = -1;
        for (int64_t i = w->first[e]; i < w->first[e + 1]; i++) {
            side s = seen_from(w, &w->box[i], columns);
            int64_t from = 2 * (int64_t)s.start + w->box[i].full, to = from + 2 * (int64_t)s.length;
            for (int32_t l = s.line; l < s.line + s.lines; l++) {
                start[1 + e * lines + l] += end[l] != from;
                end[l] = to;
            }
        }
    }
    for (int64_t i = 0; i < entries * lines; i++) start[i + 1] += start[i];
}

/* Writes the runs; next[line] is where the line's next run goes. */
static void write_runs(const blockmask__builder *w, int columns, int64_t lines,
                       const int64_t *start, int64_t *next, block_run *run) {
    for (int64_t e = 0; e < w->args.batch * w->args.heads; e++) {
        for (int64_t i = 0; i < lines; i++) next[i] = start[e * lines + i];
        for (int64_t i = w->first[e]; i < w->first[e + 1]; i++) {
            side s = seen_from(w, &w->box[i], columns);
            int32_t full = w->box[i].full;
            for (int32_t l = s.line; l < s.line + s.lines; l++) {
                block_run *last = run + next[l] - 1;
                int joins = next[l] > start[e * lines + l] && last->full == full &&
                            last->start + last->length == s.start;
                if (joins)
                    last->length += s.length;
                else
                    run[next[l]++] = (block_run){s.start, s.length, full};
            }
        }
    }
}

static err one_side(blockmask__builder *w, arena *a, int columns, const int64_t **out_start,
                    const block_run **out_run) {
    int64_t lines = columns ? w->out->kv_tiles : w->out->q_tiles,
            entries = w->args.batch * w->args.heads;
    size_t n = (size_t)(entries * lines) + 1, boxes = w->cap * sizeof *w->box;
    int64_t *start, *line;
    block_run *run;
    TRY(blockmask__afford(w, boxes + w->out->bytes + (n + (size_t)lines) * sizeof *start));
    TRY(arena_alloc(a, n, sizeof *start, &start));
    TRY(mem_new((size_t)lines + 1, sizeof *line, &line));
    count_runs(w, columns, lines, start, line);
    size_t runs = (size_t)start[n - 1];
    err e = blockmask__afford(w, boxes + w->out->bytes + (n + (size_t)lines) * sizeof *start +
                                     runs * sizeof *run);
    if (!e) e = arena_alloc_raw(a, runs, sizeof *run, &run);
    if (!e) {
        write_runs(w, columns, lines, start, line, run);
        *out_start = start;
        *out_run = run;
        w->out->bytes += n * sizeof *start + runs * sizeof *run;
    }
    mem_free(line);
    return e;
}

err blockmask__runs(blockmask__builder *w, arena *a) {
    TRY(one_side(w, a, 0, &w->out->row_start, &w->out->row_run));
    return one_side(w, a, 1, &w->out->col_start, &w->out->col_run);
}
