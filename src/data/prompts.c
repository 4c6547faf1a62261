/* Prompts: see prompts.h. Lines are split at LF only (strings may hold U+2028); a trailing CR and blank
 * lines are fine. The file is read whole; kept strings are copied into the caller's arena.
 * No text is changed: neither trimmed nor normalised. */
#include "data/prompts.h"
#include "core/file.h"
#include "io/json.h"
#include <string.h>

typedef struct reader {
    const char *path, *key, *value;
    int64_t line;
    size_t offset;
    arena *a;
} reader;

static err bad(const reader *r, const char *what) {
    return err_set(ERR_FORMAT, "%s:%lld (byte %zu): %s", r->path, (long long)r->line, r->offset,
                   what);
}

static err copy_text(const reader *r, const json_t *j, const char **out) {
    char *s;
    size_t n = json_string_length(j);
    TRY(arena_alloc(r->a, n + 1, 1, &s));
    memcpy(s, json_string_value(j), n);
    *out = s;
    return ERR_OK;
}

static err read_turns(const reader *r, const json_t *turns, prompt *p) {
    size_t n = json_array_size(turns);
    const char **rest;
    chat_message *m;
    if (!json_is_array(turns) || n == 0)
        return bad(r, "\"turns\" must be a list of at least one text");
    for (size_t i = 0; i < n; i++)
        if (!json_is_string(json_array_get(turns, i)))
            return bad(r, "\"turns\" holds something that is not a text");
    TRY(arena_alloc(r->a, 1, sizeof *m, &m));
    TRY(arena_alloc(r->a, n, sizeof *rest, &rest));
    m->role = "user";
    m->content_len = json_string_length(json_array_get(turns, 0));
    TRY(copy_text(r, json_array_get(turns, 0), &m->content));
    for (size_t i = 1; i < n; i++) TRY(copy_text(r, json_array_get(turns, i), &rest[i - 1]));
    *p = (prompt){.messages = m, .n = 1, .turns = rest, .n_turns = (int)n - 1};
    return ERR_OK;
}

static err read_messages(const reader *r, const json_t *list, prompt *p) {
    size_t n = json_array_size(list);
    chat_message *m;
    if (!json_is_array(list) || n == 0)
        return bad(r, "\"messages\" must be a list of at least one message");
    TRY(arena_alloc(r->a, n, sizeof *m, &m));
    for (size_t i = 0; i < n; i++) {
        const json_t *role = json_object_get(json_array_get(list, i), "role"),
                     *text = json_object_get(json_array_get(list, i), "content");
        if (!json_is_string(role) || !json_is_string(text))
            return bad(r, "a message needs texts \"role\" and \"content\"");
        TRY(copy_text(r, role, &m[i].role));
        TRY(copy_text(r, text, &m[i].content));
        m[i].content_len = json_string_length(text);
    }
    if (strcmp(m[n - 1].role, "user"))
        return bad(r, "the last message must be the user's: there is nothing to answer");
    *p = (prompt){.messages = m, .n = (int)n};
    return ERR_OK;
}

static err read_prompt(const reader *r, const json_t *text, prompt *p) {
    chat_message *m;
    if (!json_is_string(text)) return bad(r, "\"prompt\" must be a text");
    TRY(arena_alloc(r->a, 1, sizeof *m, &m));
    m->role = "user";
    m->content_len = json_string_length(text);
    TRY(copy_text(r, text, &m->content));
    *p = (prompt){.messages = m, .n = 1};
    return ERR_OK;
}

static err read_names(const reader *r, const json_t *o, prompt *p) {
    const json_t *id = json_object_get(o, "id"), *source = json_object_get(o, "source");
    char name[32];
    char *copy;
    if (!source) source = json_object_get(o, "kind");
    if (source && !json_is_string(source)) return bad(r, "\"source\" or \"kind\" must be a text");
    if (id && !json_is_string(id) && !json_is_integer(id))
        return bad(r, "\"id\" must be a text or a whole number");
    p->source = "";
    p->line = r->line;
    if (source) TRY(copy_text(r, source, &p->source));
    if (json_is_string(id)) return copy_text(r, id, &p->id);
    if (id)
        snprintf(name, sizeof name, "%lld", (long long)json_integer_value(id));
    else
        snprintf(name, sizeof name, "line %lld", (long long)r->line);
    TRY(arena_strdup(r->a, name, &copy));
    p->id = copy;
    return ERR_OK;
}

static err read_object(const reader *r, const json_t *o, prompt *p, int *keep) {
    const json_t *prompt_text = json_object_get(o, "prompt"), *turns = json_object_get(o, "turns"),
                 *messages = json_object_get(o, "messages");
    *keep = 1;
    if (!json_is_object(o)) return bad(r, "a line must be a JSON object");
    if (r->key) {
        const char *v = json_string_value(json_object_get(o, r->key));
        *keep = v && !strcmp(v, r->value);
        if (!*keep) return ERR_OK;
    }
    if (!!prompt_text + !!turns + !!messages != 1)
        return bad(r, "exactly one of \"prompt\", \"turns\" and \"messages\" is needed");
    if (turns)
        TRY(read_turns(r, turns, p));
    else if (messages)
        TRY(read_messages(r, messages, p));
    else
        TRY(read_prompt(r, prompt_text, p));
    return read_names(r, o, p);
}

static err read_line(const reader *r, const char *text, size_t n, prompt *p, int *keep) {
    char where[64];
    json_t *o;
    *keep = 0;
    while (n && (text[n - 1] == '\r' || text[n - 1] == ' ' || text[n - 1] == '\t')) n--;
    if (!n) return ERR_OK;
    snprintf(where, sizeof where, "byte %zu", r->offset);
    err e = json_parse(&o, where, text, n);
    if (e) return err_context(e, "%s:%lld: ", r->path, (long long)r->line);
    e = read_object(r, o, p, keep);
    json_decref(o);
    return e;
}

static err read_all(reader *r, prompt_set *out, int64_t limit, const char *data, size_t size) {
    int64_t lines = 1;
    for (size_t i = 0; i < size; i++) lines += data[i] == '\n';
    TRY(arena_alloc(r->a, (size_t)lines, sizeof *out->items, &out->items));
    for (size_t at = 0; at < size && (limit <= 0 || out->n < limit);) {
        const char *nl = memchr(data + at, '\n', size - at);
        size_t n = nl ? (size_t)(nl - data) - at : size - at;
        int keep;
        r->line++;
        r->offset = at;
        TRY(read_line(r, data + at, n, &out->items[out->n], &keep));
        out->n += keep;
        at += n + 1;
    }
    if (out->n) return ERR_OK;
    if (r->key)
        return err_set(ERR_FORMAT, "%s holds no prompt with \"%s\": \"%s\"", r->path, r->key,
                       r->value);
    return err_set(ERR_FORMAT, "%s holds no prompts", r->path);
}

err prompts_load(prompt_set *out, const char *path, const char *key, const char *value,
                 int64_t limit, arena *a) {
    reader r = {.path = path, .key = key, .value = value, .a = a};
    char *data;
    size_t size;
    memset(out, 0, sizeof *out);
    TRY(file_read(path, &data, &size));
    err e = read_all(&r, out, limit, data, size);
    mem_free(data);
    return e;
}
