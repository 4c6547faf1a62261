/* Chat templates: messages → tokens with an exact loss mask (B28).
 *
 * Known templates are code, chosen by name or recognised by the file's own template text; an unknown
 * text is refused. The mask is 1 on an answer's content tokens and on the end-of-turn token that
 * closes it; headers, other roles and what the generation prompt supplies are 0. Content is encoded
 * as plain text: control tokens in it stay text. Boundaries are serving's: an answer's content is
 * encoded by itself, since its header came with the generation prompt, so
 *     chat_encode(prompt + answer) = chat_encode_prompt(prompt) ++ encode(answer) ++ end of turn ++ "\n"
 * always (a cut answer: without the last two). Other turns' headers and contents are encoded
 * together, as the reference encodes its rendering: ids differ from the reference's one-piece
 * encoding only where an answer begins with white space. */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H
#include "text/tokenizer.h"

typedef struct chat_message {
    const char *role, *content;
    size_t content_len;
    /* An answer, last in its conversation, that a limit stopped: no end-of-turn token follows it
     * ("cut": true in rows). */
    int cut;
} chat_message;
typedef struct chat_tokens {
    int32_t *ids;
    uint8_t *loss;
    size_t n, cap, loss_cap;
} chat_tokens; /* grow with mem_grow; free with chat_tokens_free */
void chat_tokens_free(chat_tokens *c);

typedef struct chat_template chat_template;
/* name: "auto" (recognise the tokenizer's own), "chatml-smollm2", "chatml". Sentence lists the known
 * names. */
MUST_CHECK err chat_template_open(chat_template **out, const char *name, const tokenizer *t);
void chat_template_free(chat_template *c);
const char *chat_template_name(const chat_template *c);
void chat_template_digest(const chat_template *c, char out[33]);
/* system, user, assistant: what every template here renders. */
int chat_role_known(const char *role);
/* Both encoders replace what out held. No begin token is added: templates that want one spell it.
 * Whole conversation, answers supervised. Unknown roles, no assistant turn, or nothing supervised:
 * ERR_FORMAT in a sentence. */
MUST_CHECK err chat_encode(const chat_template *c, const chat_message *m, int n, chat_tokens *out);
/* The prompt a model is asked with: all messages, then the generation prompt. loss all 0. */
MUST_CHECK err chat_encode_prompt(const chat_template *c, const chat_message *m, int n,
                                  chat_tokens *out);

#endif
