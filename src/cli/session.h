/* What the decoding commands share: device, tokenizer, template, target and drafter, opened from
 * --target, --drafter, --template and --threads. One handle owns them all; session_close serves a
 * half-opened one too. */
#ifndef CLI_SESSION_H
#define CLI_SESSION_H
#include "cli/args.h"
#include "data/prompts.h"
#include "decode/decode.h"
#include "text/chat.h"

typedef struct session {
    dev *d;
    gguf *file;
    tokenizer *tok;
    chat_template *chat;
    target *t;
    drafter *dr; /* NULL without --drafter */
    const int32_t *end_ids;
    int n_end;
} session;

/* Prints what was loaded to stderr unless quiet. */
MUST_CHECK err session_open(session *s, const args *a, int quiet);
void session_close(session *s);
/* Room for decoding: tokens per sequence bounded by the context. */
MUST_CHECK err session_batch(const session *s, const drafter *dr, int64_t seqs, int64_t tokens,
                             decode_batch **out);
/* Prompts by --prompts, --where KEY=VALUE and --limit; memory from mem. */
MUST_CHECK err session_prompts(prompt_set *out, const args *a, arena *mem);
/* Text of ids as bytes, control tokens left out, appended to out. */
MUST_CHECK err session_text(const session *s, const int32_t *ids, int64_t n, str *out);

#endif
