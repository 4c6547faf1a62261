/* The answers file: see answers.h. A row is written by one write(2) in append mode, so a killed run
 * leaves at most one cut line, which has no newline at its end and is removed on the next start.
 * Rows that are there are never rewritten. */
#include "cli/answers.h"
#include "core/file.h"
#include "io/json.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct answers {
    int fd;
    char path[4096];
    const char *target;
    int64_t max_new;
};

static err check_row(const answers *w, const json_t *row, const prompt *p, int64_t line) {
    const char *id, *target;
    int64_t max_new;
    TRY(json_get_text(row, w->path, "id", &id));
    TRY(json_get_text(row, w->path, "target", &target));
    TRY(json_get_int(row, w->path, "max_new", &max_new));
    if (strcmp(id, p->id))
        return err_set(
            ERR_REFUSED,
            "%s:%lld answers prompt '%s' where '%s' is due: it belongs to other prompts; choose another --out",
            w->path, (long long)line, id, p->id);
    if (strcmp(target, w->target) || max_new != w->max_new)
        return err_set(
            ERR_REFUSED,
            "%s:%lld was made by another target or --max-new; choose another --out or remove the file",
            w->path, (long long)line);
    return ERR_OK;
}

static err check_rows(const answers *w, const prompt_set *prompts, const char *data, size_t size,
                      int64_t *done) {
    for (size_t at = 0; at < size; ++*done) {
        size_t n = (size_t)((const char *)memchr(data + at, '\n', size - at) - (data + at));
        char where[64];
        json_t *row;
        if (*done >= prompts->n)
            return err_set(
                ERR_REFUSED,
                "%s holds more rows than the %lld prompts: it belongs to other prompts; choose another --out",
                w->path, (long long)prompts->n);
        snprintf(where, sizeof where, "row %lld", (long long)*done + 1);
        err e = json_parse(&row, where, data + at, n);
        if (e) return err_context(e, "%s: ", w->path);
        e = check_row(w, row, &prompts->items[*done], *done + 1);
        json_decref(row);
        if (e) return e;
        at += n + 1;
    }
    return ERR_OK;
}

static err take_existing(answers *w, const prompt_set *prompts, int64_t *done) {
    char *data;
    size_t size;
    TRY(file_read(w->path, &data, &size));
    size_t whole = size;
    while (whole && data[whole - 1] != '\n') whole--;
    err e = ERR_OK;
    if (whole < size && ftruncate(w->fd, (off_t)whole))
        e = err_errno("%s could not be shortened to its whole rows", w->path);
    if (!e) e = check_rows(w, prompts, data, whole, done);
    mem_free(data);
    return e;
}

err answers_open(answers **out, const char *path, const prompt_set *prompts, const char *target,
                 int64_t max_new, int64_t *done) {
    answers *w;
    *done = 0;
    TRY(mem_new(1, sizeof *w, &w));
    snprintf(w->path, sizeof w->path, "%s", path);
    w->target = target;
    w->max_new = max_new;
    w->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    err e = w->fd < 0 ? err_errno("%s could not be opened for writing", path)
                      : take_existing(w, prompts, done);
    if (e) {
        answers_close(w);
        return e;
    }
    *out = w;
    return ERR_OK;
}

void answers_close(answers *w) {
    if (!w) return;
    if (w->fd >= 0) close(w->fd);
    mem_free(w);
}

static json_t *conversation(const chat_message *m, int n, int cut) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        json_t *o = json_object();
        json_object_set_new(o, "role", json_string(m[i].role));
        json_object_set_new(o, "content", json_stringn(m[i].content, m[i].content_len));
        if (cut && i == n - 1) json_object_set_new(o, "cut", json_true());
        json_array_append_new(list, o);
    }
    return list;
}

err answers_write(answers *w, const prompt *p, const chat_message *m, int n, int cut) {
    json_t *row = json_object();
    json_object_set_new(row, "id", json_string(p->id));
    if (p->source[0]) json_object_set_new(row, "source", json_string(p->source));
    json_object_set_new(row, "messages", conversation(m, n, cut));
    json_object_set_new(row, "target", json_string(w->target));
    json_object_set_new(row, "max_new", json_integer(w->max_new));
    char *text = json_dumps(row, JSON_COMPACT);
    json_decref(row);
    if (!text)
        return err_set(ERR_FORMAT, "the answer to prompt '%s' is no valid UTF-8 text", p->id);
    size_t len = strlen(text);
    text[len] = '\n'; /* the NUL's place: the row is written by its length */
    ssize_t wrote = write(w->fd, text, len + 1);
    free(text);
    if (wrote < 0) return err_errno("%s could not be written", w->path);
    if ((size_t)wrote != len + 1)
        return err_set(ERR_IO, "%s: the disk is full; the cut row is removed on the next start",
                       w->path);
    return ERR_OK;
}
