/* The answers file: see answers.h. A row is written by one write(2) in append mode, so a killed run
 * leaves at most one cut line, which has no newline at its end and is removed on the next start.
 * Rows that are there are never rewritten. */
#include "cli/answers.h"
#include "core/file.h"
#include "io/json.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct answers {
    int fd;
    char path[4096];
    const char *target;
    int64_t max_new;
};

/* Whether the row's conversation begins with the prompt's own messages. */
static int same_prompt(const json_t *row, const prompt *p) {
    const json_t *list = json_object_get(row, "messages");
    for (int i = 0; i < p->n; i++) {
        const json_t *text = json_object_get(json_array_get(list, (size_t)i), "content");
        if (!json_is_string(text) || json_string_length(text) != p->messages[i].content_len ||
            memcmp(json_string_value(text), p->messages[i].content, p->messages[i].content_len))
            return 0;
    }
    return 1;
}

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
    if (!same_prompt(row, p))
        return err_set(
            ERR_REFUSED,
            "%s:%lld answers another text of prompt '%s' than the one given now; choose another --out",
            w->path, (long long)line, id);
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

/* A cut line is removed only from a file that is ours: its whole rows answer these prompts, and the cut one
 * begins as a row does. */
static err remove_cut_row(const answers *w, const char *data, size_t whole, size_t size) {
    static const char start[] = "{\"id\":";
    size_t n = size - whole < sizeof start - 1 ? size - whole : sizeof start - 1;
    if (whole == size) return ERR_OK;
    if (memcmp(data + whole, start, n))
        return err_set(ERR_REFUSED,
                       "%s does not end with a row of answers, so it is left as it is; choose "
                       "another --out",
                       w->path);
    if (ftruncate(w->fd, (off_t)whole))
        return err_errno("%s could not be shortened to its whole rows", w->path);
    return ERR_OK;
}

static err take_existing(answers *w, const prompt_set *prompts, int64_t *done) {
    char *data;
    size_t size;
    TRY(file_read(w->path, &data, &size));
    size_t whole = size;
    while (whole && data[whole - 1] != '\n') whole--;
    err e = check_rows(w, prompts, data, whole, done);
    if (!e) e = remove_cut_row(w, data, whole, size);
    mem_free(data);
    return e;
}

/* Opened for this process alone: two writers would mix their rows. */
static err open_alone(answers *w) {
    struct stat st;
    w->fd = open(w->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (w->fd < 0) return err_errno("%s could not be opened for writing", w->path);
    if (fstat(w->fd, &st) || !S_ISREG(st.st_mode))
        return err_set(ERR_IO, "%s is no regular file, and answers are continued in one", w->path);
    if (flock(w->fd, LOCK_EX | LOCK_NB) == 0) return ERR_OK;
    if (errno == EWOULDBLOCK)
        return err_set(
            ERR_REFUSED,
            "%s is being written by another process; wait for it or choose another --out", w->path);
    return err_errno("%s cannot be locked", w->path);
}

err answers_open(answers **out, const char *path, const prompt_set *prompts, const char *target,
                 int64_t max_new, int64_t *done) {
    answers *w;
    *done = 0;
    TRY(mem_new(1, sizeof *w, &w));
    snprintf(w->path, sizeof w->path, "%s", path);
    w->target = target;
    w->max_new = max_new;
    w->fd = -1;
    err e = ERR_OK;
    if (strlen(path) >= sizeof w->path)
        e = err_set(ERR_RANGE, "the path %.60s... is longer than the system takes", path);
    if (!e) e = open_alone(w);
    if (!e) e = take_existing(w, prompts, done);
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
