/* ChatML and SmolLM2's form of it: a turn is <|im_start|> role \n content <|im_end|> \n.
 *
 * A template is a row of a table, not text to be interpreted: a loss mask needs to know where an
 * answer begins and ends, which stock templates do not mark. Roles are system, user and assistant;
 * tools, pictures and reasoning parts are not rendered here, and a template text that is not in the
 * table is refused rather than guessed. */
#include "text/chat.h"
#include "core/arena.h"
#include "core/file.h"
#include "core/str.h"
#include <stdio.h>
#include <string.h>

/* Part of the digest: raise it when ids or masks change for the same conversation. */
static const char rule_version[] = "paceline chat 1";

#define TURNS(newline)                                                                             \
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '" newline                  \
    "' + message['content'] + '<|im_end|>' + '" newline                                            \
    "'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant" newline               \
    "' }}{% endif %}"
#define SMOLLM_TURNS(newline)                                                                      \
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "      \
    "'<|im_start|>system" newline "You are a helpful AI assistant named SmolLM, trained by "       \
    "Hugging Face<|im_end|>" newline                                                               \
    "' }}{% endif %}{{'<|im_start|>' + message['role'] + '" newline                                \
    "' + message['content'] + '<|im_end|>' + '" newline                                            \
    "'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant" newline               \
    "' }}{% endif %}"

typedef struct template_kind {
    const char *name;
    const char
        *default_system;  /* content of the system turn put before a chat without one; NULL: none */
    const char *texts[2]; /* template texts that mean this: line ends as such, and escaped */
} template_kind;

static const template_kind kinds[] = {
    {"chatml-smollm2",
     "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
     {SMOLLM_TURNS("\n"), SMOLLM_TURNS("\\n")}},
    {"chatml", NULL, {TURNS("\n"), TURNS("\\n")}},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };
#define KNOWN_NAMES "chatml-smollm2, chatml"

struct chat_template {
    const template_kind *kind;
    const tokenizer *t;
    int32_t start, end; /* ids of <|im_start|> and <|im_end|> */
    char digest[33];
};

void chat_tokens_free(chat_tokens *c) {
    mem_free(c->ids);
    mem_free(c->loss);
    *c = (chat_tokens){0};
}

static err find_kind(const char *name, const tokenizer *t, const template_kind **out) {
    const char *text = tokenizer_chat_template(t);
    int automatic = strcmp(name, "auto") == 0;
    for (int i = 0; i < KINDS; i++) {
        *out = &kinds[i];
        if (!automatic && strcmp(name, kinds[i].name) == 0) return ERR_OK;
        for (int k = 0; automatic && text && k < 2; k++)
            if (strcmp(text, kinds[i].texts[k]) == 0) return ERR_OK;
    }
    *out = NULL;
    if (!automatic)
        return err_set(ERR_REFUSED, "the chat template '%.64s' is not known (known: %s, or auto)",
                       name, KNOWN_NAMES);
    if (!text)
        return err_set(
            ERR_REFUSED,
            "the model's file brings no chat template to recognise; name one (known: %s)",
            KNOWN_NAMES);
    return err_set(ERR_REFUSED,
                   "the model's own chat template (it begins '%.48s') is not known, and where its "
                   "answers begin and end cannot be guessed; if it means one of %s, name that one",
                   text, KNOWN_NAMES);
}

static err need_token(const tokenizer *t, const template_kind *kind, const char *spelling,
                      int32_t *id) {
    *id = tokenizer_find(t, spelling);
    if (*id >= 0) return ERR_OK;
    return err_set(ERR_REFUSED,
                   "the chat template '%s' needs the control token %s, which the "
                   "model's tokenizer does not have",
                   kind->name, spelling);
}

err chat_template_open(chat_template **out, const char *name, const tokenizer *t) {
    *out = NULL;
    chat_template c = {.t = t};
    TRY(find_kind(name, t, &c.kind));
    TRY(need_token(t, c.kind, "<|im_start|>", &c.start));
    TRY(need_token(t, c.kind, "<|im_end|>", &c.end));
    char recipe[1024];
    int n = snprintf(recipe, sizeof recipe, "%s\n%s\n%s\n%s", rule_version, c.kind->name,
                     c.kind->texts[0], c.kind->default_system ? c.kind->default_system : "");
    if (n < 0 || (size_t)n >= sizeof recipe)
        return err_set(ERR_INTERNAL, "the text of chat template '%s' is too long", c.kind->name);
    file_hash_bytes(recipe, (size_t)n, c.digest);
    TRY(mem_new(1, sizeof c, out));
    **out = c;
    return ERR_OK;
}

void chat_template_free(chat_template *c) { mem_free(c); }
const char *chat_template_name(const chat_template *c) { return c->kind->name; }
void chat_template_digest(const chat_template *c, char out[33]) { memcpy(out, c->digest, 33); }

/* Gives every token that has no mark yet this one. */
static err mark(chat_tokens *out, size_t from, uint8_t loss) {
    TRY(mem_grow(&out->loss, &out->loss_cap, out->n, 1));
    if (out->n > from) memset(out->loss + from, loss, out->n - from);
    return ERR_OK;
}

static err add_text(const chat_template *c, const char *s, size_t n, uint8_t loss,
                    chat_tokens *out) {
    size_t from = out->n;
    TRY(tokenizer_encode(c->t, s, n, 0, &out->ids, &out->n, &out->cap));
    return mark(out, from, loss);
}

static err add_id(int32_t id, uint8_t loss, chat_tokens *out) {
    TRY(mem_grow(&out->ids, &out->cap, out->n + 1, sizeof *out->ids));
    out->ids[out->n++] = id;
    return mark(out, out->n - 1, loss);
}

/* One turn. An answer's content stands apart from its header, others' are encoded in one piece (see
 * chat.h); nothing follows the content of a cut answer. */
static err add_turn(const chat_template *c, const chat_message *m, int supervise,
                    chat_tokens *out) {
    int answer = strcmp(m->role, "assistant") == 0;
    uint8_t loss = answer && supervise;
    TRY(add_id(c->start, 0, out));
    str header = {0};
    err e = str_printf(&header, "%s\n", m->role);
    if (!e && !answer) e = str_add(&header, m->content, m->content_len);
    if (!e) e = add_text(c, header.s, header.n, 0, out);
    str_free(&header);
    TRY(e);
    if (answer) TRY(add_text(c, m->content, m->content_len, loss, out));
    if (m->cut) return ERR_OK;
    TRY(add_id(c->end, loss, out));
    return add_text(c, "\n", 1, 0, out);
}

int chat_role_known(const char *role) {
    return strcmp(role, "system") == 0 || strcmp(role, "user") == 0 ||
           strcmp(role, "assistant") == 0;
}

static err check_message(const chat_template *c, const chat_message *m, int i, int may_be_cut) {
    const char *r = m->role;
    int answer = strcmp(r, "assistant") == 0;
    if (!chat_role_known(r))
        return err_set(ERR_FORMAT,
                       "message %d has the role '%.40s', which template '%s' does not know "
                       "(known: system, user, assistant)",
                       i + 1, r, c->kind->name);
    if (m->cut && (!answer || !may_be_cut))
        return err_set(
            ERR_FORMAT,
            "message %d is marked as cut, which only the answer that ends a conversation "
            "may be",
            i + 1);
    return ERR_OK;
}

static err add_turns(const chat_template *c, const chat_message *m, int n, int supervise,
                     chat_tokens *out) {
    out->n = 0;
    if (n <= 0) return err_set(ERR_FORMAT, "the conversation holds no messages");
    for (int i = 0; i < n; i++) TRY(check_message(c, &m[i], i, supervise && i == n - 1));
    const char *system = c->kind->default_system;
    if (system && strcmp(m[0].role, "system") != 0) {
        chat_message first = {.role = "system", .content = system, .content_len = strlen(system)};
        TRY(add_turn(c, &first, supervise, out));
    }
    for (int i = 0; i < n; i++) TRY(add_turn(c, &m[i], supervise, out));
    return ERR_OK;
}

err chat_encode(const chat_template *c, const chat_message *m, int n, chat_tokens *out) {
    TRY(add_turns(c, m, n, 1, out));
    size_t supervised = 0;
    for (size_t i = 0; i < out->n; i++) supervised += out->loss[i];
    if (supervised == 0)
        return err_set(
            ERR_FORMAT,
            "template '%s' finds no answer to learn from: none of the %d messages has the "
            "role assistant",
            c->kind->name, n);
    if (supervised == out->n)
        return err_set(ERR_INTERNAL, "template '%s' marks every token of a conversation as answer",
                       c->kind->name);
    return ERR_OK;
}

err chat_encode_prompt(const chat_template *c, const chat_message *m, int n, chat_tokens *out) {
    TRY(add_turns(c, m, n, 0, out));
    TRY(add_id(c->start, 0, out));
    return add_text(c, "assistant\n", 10, 0, out);
}
