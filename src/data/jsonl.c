/* One line of JSONL to one conversation, or to the sentence that says why not.
 *
 * Everything that could change or lose text is refused with line number and byte offset: invalid UTF-8, NUL,
 * duplicate keys, keys of a message that nothing here would read. Positions inside a line are columns (bytes,
 * from 1). It does not tokenize and does not know policies: see data.c. */
#include "core/arena.h"
#include "core/str.h"
#include "data/data_private.h"
#include "text/utf8.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const reason_names[DATA__REASONS] = {
    [DATA__TOO_LONG] = "line too long",
    [DATA__NUL] = "NUL byte",
    [DATA__BOM] = "byte-order mark",
    [DATA__UTF8] = "invalid UTF-8",
    [DATA__JSON] = "malformed JSON",
    [DATA__DUPLICATE] = "duplicate key",
    [DATA__SHAPE] = "not a conversation",
    [DATA__NAMING] = "from/value naming",
    [DATA__ROLE] = "unknown role",
    [DATA__NO_ANSWER] = "no answer",
    [DATA__CUT_AWAY] = "answers beyond max_length",
};

const char *data_reason_name(int reason) {
    return reason >= 0 && reason < DATA__REASONS ? reason_names[reason] : NULL;
}

err data__bad(const data__line *l, data__reason why, data__reason *reason, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    *reason = why;
    return err_set(ERR_FORMAT, "%s: line %" PRId64 " (at byte %" PRIu64 "): %s", l->path, l->number,
                   l->offset, text);
}

int data__blank(const data__line *l) {
    for (size_t i = 0; i < l->n; i++)
        if (!memchr(" \t\r", l->s[i], 3)) return 0;
    return 1;
}

void data__chat_free(data__chat *c) {
    json_decref(c->root);
    mem_free(c->m);
    *c = (data__chat){0};
}

/* What no JSON reader should see. */
static err check_bytes(const data__line *l, data__reason *reason) {
    if (l->n > DATA__LINE_MAX)
        return data__bad(l, DATA__TOO_LONG, reason,
                         "the line has %zu bytes; at most %d are read as one row", l->n,
                         DATA__LINE_MAX);
    const char *nul = memchr(l->s, 0, l->n);
    if (nul)
        return data__bad(l, DATA__NUL, reason,
                         "column %zu holds a NUL byte; the file is damaged or no text",
                         (size_t)(nul - l->s) + 1);
    if (l->n >= 3 && memcmp(l->s, "\xef\xbb\xbf", 3) == 0)
        return data__bad(l, DATA__BOM, reason,
                         "begins with a byte-order mark; save it as UTF-8 without one");
    size_t valid = utf8_valid(l->s, l->n);
    if (valid < l->n)
        return data__bad(l, DATA__UTF8, reason, "column %zu (byte 0x%02x) is not valid UTF-8",
                         valid + 1, (unsigned char)l->s[valid]);
    return ERR_OK;
}

static err parse_json(const data__line *l, json_t **root, data__reason *reason) {
    static const char own[] = "row: line 1, "; /* a line's own line number says nothing */
    err e = json_parse(root, "row", l->s, l->n);
    if (e != ERR_FORMAT) return e;
    const char *text = err_text();
    char problem[400];
    snprintf(problem, sizeof problem, "%s",
             strncmp(text, own, sizeof own - 1) == 0 ? text + sizeof own - 1 : text);
    /* the same text without the check for duplicates tells which of the two it was */
    json_t *again = json_loadb(l->s, l->n, 0, NULL);
    data__reason why = again ? DATA__DUPLICATE : DATA__JSON;
    json_decref(again);
    return data__bad(l, why, reason, "%s", problem);
}

static err add_message(data__chat *out, const char *role, const json_t *content, int cut) {
    TRY(mem_grow(&out->m, &out->cap, (size_t)out->n + 1, sizeof *out->m));
    out->m[out->n++] = (chat_message){.role = role,
                                      .content = json_string_value(content),
                                      .content_len = json_string_length(content),
                                      .cut = cut};
    return ERR_OK;
}

static err shape(const data__line *l, data__reason *reason, const char *what, int i,
                 const char *key) {
    if (i >= 0)
        return data__bad(l, DATA__SHAPE, reason, "message %d: %s '%.60s'", i + 1, what, key);
    return data__bad(l, DATA__SHAPE, reason, "%s '%.60s'", what, key);
}

static err parse_message(const data__line *l, const json_t *one, int i, data__chat *out,
                         data__reason *reason) {
    if (!json_is_object(one))
        return data__bad(l, DATA__SHAPE, reason,
                         "message %d is not an object with role and content", i + 1);
    if (json_object_get(one, "from") || json_object_get(one, "value"))
        return data__bad(
            l, DATA__NAMING, reason,
            "message %d uses from/value; rename them to role/content (human is user, gpt is "
            "assistant)",
            i + 1);
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)one, key, v) {
        if (strcmp(key, "role") != 0 && strcmp(key, "content") != 0 && strcmp(key, "cut") != 0)
            return shape(l, reason, "nothing reads the key, which would be lost: remove", i, key);
    }
    const json_t *role = json_object_get(one, "role"), *content = json_object_get(one, "content");
    const json_t *cut = json_object_get(one, "cut");
    if (!json_is_string(role)) return shape(l, reason, "needs a text as", i, "role");
    if (!json_is_string(content)) return shape(l, reason, "needs a text as", i, "content");
    if (cut && !json_is_boolean(cut)) return shape(l, reason, "needs true or false as", i, "cut");
    if (!chat_role_known(json_string_value(role)))
        return data__bad(l, DATA__ROLE, reason,
                         "message %d has the role '%.40s' (known: system, user, assistant)", i + 1,
                         json_string_value(role));
    return add_message(out, json_string_value(role), content, json_is_true(cut));
}

static err parse_messages(const data__line *l, const json_t *list, data__chat *out,
                          data__reason *reason) {
    if (!json_is_array(list) || json_array_size(list) == 0)
        return shape(l, reason, "needs a list of at least one message as", -1, "messages");
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(parse_message(l, json_array_get(list, i), (int)i, out, reason));
    return ERR_OK;
}

static err parse_pair(const data__line *l, const json_t *root, data__chat *out,
                      data__reason *reason) {
    const json_t *prompt = json_object_get(root, "prompt"),
                 *response = json_object_get(root, "response");
    if (!json_is_string(prompt)) return shape(l, reason, "needs a text as", -1, "prompt");
    if (!json_is_string(response)) return shape(l, reason, "needs a text as", -1, "response");
    TRY(add_message(out, "user", prompt, 0));
    return add_message(out, "assistant", response, 0);
}

static err parse_root(const data__line *l, data__chat *out, data__reason *reason) {
    const json_t *root = out->root;
    if (!json_is_object(root))
        return data__bad(l, DATA__SHAPE, reason,
                         "is not an object; a row is {\"messages\": [...]} or "
                         "{\"prompt\": ..., \"response\": ...}");
    const json_t *list = json_object_get(root, "messages"), *cut = json_object_get(root, "cut");
    int pair = json_object_get(root, "prompt") || json_object_get(root, "response");
    if (list && pair)
        return data__bad(l, DATA__SHAPE, reason,
                         "holds messages and also prompt or response; keep one of the two");
    if (json_object_get(root, "conversations") || json_object_get(root, "conversation"))
        return data__bad(
            l, DATA__NAMING, reason,
            "uses conversations; rename it to messages, with role and content in each");
    if (!list && !pair)
        return data__bad(l, DATA__SHAPE, reason, "holds neither messages nor prompt and response");
    if (cut && !json_is_boolean(cut)) return shape(l, reason, "needs true or false as", -1, "cut");
    TRY(list ? parse_messages(l, list, out, reason) : parse_pair(l, root, out, reason));
    if (json_is_true(cut)) out->m[out->n - 1].cut = 1;
    return ERR_OK;
}

/* A mark of being cut is the chat's to judge, but its sentence would lack the line. */
static err check_cuts(const data__line *l, const data__chat *c, data__reason *reason) {
    for (int i = 0; i < c->n; i++)
        if (c->m[i].cut && (i != c->n - 1 || strcmp(c->m[i].role, "assistant") != 0))
            return data__bad(
                l, DATA__SHAPE, reason,
                "message %d is marked as cut, which only the answer that ends a conversation "
                "may be",
                i + 1);
    return ERR_OK;
}

err data__parse_line(const data__line *l, data__chat *out, data__reason *reason) {
    json_decref(out->root);
    out->root = NULL;
    out->n = 0;
    TRY(check_bytes(l, reason));
    TRY(parse_json(l, &out->root, reason));
    TRY(parse_root(l, out, reason));
    return check_cuts(l, out, reason);
}
