/* paceline status: what the run in a folder does now, or how it ended and what it left.
 *
 * It reads the folder and looks at the process that the folder names; nothing is changed. With --watch it draws once a second until the
 * process has ended, in place on a terminal. */
#include "cli/command.h"
#include "cli/status_text.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static const arg_spec spec[] = {
    {"--json", ARG_FLAG, NULL, "one JSON object; with --watch one a second, each on a line"},
    {"--watch", ARG_FLAG, NULL, "again every second, until the process ends"},
    {NULL, ARG_FLAG, NULL, NULL},
};

static err show_json(const run_folder *f, int one_line) {
    json_t *o = status_text_json(f);
    char *text = json_dumps(o, one_line ? JSON_COMPACT : JSON_INDENT(1));
    json_decref(o);
    if (!text) return err_set(ERR_MEMORY, "no memory for the status as JSON");
    printf("%s\n", text);
    free(text);
    return ERR_OK;
}

static err show_text(const run_folder *f, int in_place) {
    str text = {0};
    err e = status_text(f, &text);
    if (!e) printf("%s%s", in_place ? "\033[H\033[J" : "", text.s);
    str_free(&text);
    return e;
}

static err run(const args *a) {
    const int watch = args_has(a, "--watch"), json = args_has(a, "--json");
    for (int first = 1;; first = 0) {
        run_folder f;
        err e = run_folder_read(&f, a->positional[0]);
        const int lives = f.where != LIVE_GONE;
        if (!e && !json && watch && !first && !isatty(STDOUT_FILENO)) printf("\n");
        if (!e) e = json ? show_json(&f, watch) : show_text(&f, watch && isatty(STDOUT_FILENO));
        run_folder_free(&f);
        if (e || !watch || !lives) return e;
        if (fflush(stdout)) return err_errno("standard output cannot be written");
        nanosleep(&(struct timespec){1, 0}, NULL);
    }
}

const command command_status = {
    .name = "status",
    .usage = "status RUN [--json] [--watch]",
    .summary = "what a run does: progress, roles and waiting, or how it ended",
    .details = "RUN is the run folder, run.out of the recipe.",
    .spec = spec,
    .min_pos = 1,
    .max_pos = 1,
    .run = run,
};
