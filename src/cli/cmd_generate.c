/* paceline generate: answers a prompt, or holds a chat, streaming text as it is committed. Greedy; with
 * a drafter the text is the same, token for token, only sooner. Text goes to standard output and
 * figures to standard error, so a pipe gets the text alone. */
#include "cli/command.h"
#include "cli/session.h"
#include "text/utf8.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const arg_spec spec[] = {
    {"--target", ARG_TEXT, "T", "target model: a GGUF file (needed)"},
    {"--drafter", ARG_TEXT, "D", "drafter folder; without it decoding is plain"},
    {"--prompt", ARG_TEXT, "P", "the user's message; - reads standard input"},
    {"--chat", ARG_FLAG, NULL, "a conversation: one message a line from standard input"},
    {"--raw", ARG_FLAG, NULL, "the prompt is continued as it stands, without a chat template"},
    {"--system", ARG_TEXT, "TEXT", "system message (default: the template's own)"},
    {"--max-new", ARG_INT, "N", "new tokens at most (default 512)"},
    {"--template", ARG_TEXT, "NAME", "chat template (default auto: the model's own)"},
    {"--threads", ARG_INT, "N", "CPU threads (default: usable CPUs)"},
    {"--quiet", ARG_FLAG, NULL, "text only, no figures on standard error"},
    {NULL, ARG_FLAG, NULL, NULL},
};

typedef struct stream {
    const session *s;
    utf8_stream utf8;
    str out;   /* pending characters */
    str whole; /* the answer's bytes, for the chat's history */
    err e;
} stream;

static void flush_text(stream *st) {
    if (st->out.n) fwrite(st->out.s, 1, st->out.n, stdout);
    fflush(stdout);
    str_clear(&st->out);
}

static err push(stream *st, int32_t token) {
    const char *bytes;
    size_t n;
    if (tokenizer_is_control(st->s->tok, token)) return ERR_OK;
    TRY(tokenizer_bytes(st->s->tok, token, &bytes, &n));
    TRY(str_add(&st->whole, bytes, n));
    TRY(utf8_push(&st->utf8, bytes, n, &st->out));
    flush_text(st);
    return ERR_OK;
}

static void on_token(void *ctx, int32_t token) {
    stream *st = ctx;
    if (!st->e) st->e = push(st, token);
}

static void print_figures(const decode_seq *q) {
    const decode_stats *st = decode_get_stats(q);
    int64_t n;
    decode_tokens(q, &n);
    fprintf(stderr, "%lld tokens in %.2f s (%.1f tokens/s), prefill %.2f s", (long long)n,
            st->decode_seconds, st->decode_seconds > 0 ? (double)n / st->decode_seconds : 0.0,
            st->prefill_seconds);
    if (st->rounds)
        fprintf(stderr, "; %lld rounds, tau %.2f", (long long)st->rounds, decode_tau(st));
    if (decode_state(q) == DECODE_LIMIT) fprintf(stderr, "; stopped at --max-new");
    if (decode_state(q) == DECODE_CONTEXT) fprintf(stderr, "; stopped at the end of the context");
    fprintf(stderr, "\n");
}

static err answer(const session *s, const int32_t *ids, int64_t n, int64_t max_new, int quiet,
                  stream *st) {
    decode_batch *b = NULL;
    decode_seq *q = NULL;
    err e;
    TRY_GOTO(session_batch(s, s->dr, 1, n + max_new, &b), done);
    TRY_GOTO(
        decode_add(
            b,
            &(decode_request){
                .prompt = ids, .n_prompt = n, .max_new = max_new, .on_token = on_token, .ctx = st},
            &q),
        done);
    TRY_GOTO(decode_run(b), done);
    TRY_GOTO(st->e, done);
    TRY_GOTO(utf8_flush(&st->utf8, &st->out), done);
    flush_text(st);
    printf("\n");
    fflush(stdout);
    if (!quiet) print_figures(q);
done:
    if (q) decode_remove(b, q);
    decode_free(b);
    return e;
}

static err answer_messages(const session *s, const chat_message *m, int n, int64_t max_new,
                           int quiet, stream *st) {
    chat_tokens c = {0};
    err e = chat_encode_prompt(s->chat, m, n, &c);
    if (!e) e = answer(s, c.ids, (int64_t)c.n, max_new, quiet, st);
    chat_tokens_free(&c);
    return e;
}

static err answer_raw(const session *s, const char *text, size_t len, int64_t max_new, int quiet,
                      stream *st) {
    int32_t *ids = NULL;
    size_t n = 0, cap = 0;
    err e = ERR_OK;
    if (tokenizer_bos(s->tok) >= 0) {
        e = mem_grow(&ids, &cap, 1, sizeof *ids);
        if (!e) ids[n++] = tokenizer_bos(s->tok);
    }
    if (!e) e = tokenizer_encode(s->tok, text, len, 1, &ids, &n, &cap);
    if (!e && !n) e = err_set(ERR_USAGE, "the prompt is empty");
    if (!e) e = answer(s, ids, (int64_t)n, max_new, quiet, st);
    mem_free(ids);
    return e;
}

static err read_stdin(str *out) {
    char buf[4096];
    size_t n;
    while ((n = fread(buf, 1, sizeof buf, stdin)) > 0) TRY(str_add(out, buf, n));
    while (out->n && out->s[out->n - 1] == '\n') out->s[--out->n] = 0;
    return ferror(stdin) ? err_errno("standard input") : ERR_OK;
}

static err one_prompt(const session *s, const args *a, int64_t max_new) {
    const char *text = args_text(a, "--prompt", ""), *system = args_text(a, "--system", NULL);
    stream st = {.s = s};
    str input = {0};
    chat_message m[2];
    int n = 0;
    err e;
    if (!strcmp(text, "-"))
        TRY_GOTO(read_stdin(&input), done);
    else
        TRY_GOTO(str_add(&input, text, strlen(text)), done);
    if (system)
        m[n++] = (chat_message){.role = "system", .content = system, .content_len = strlen(system)};
    m[n++] = (chat_message){.role = "user", .content = input.s, .content_len = input.n};
    e = args_has(a, "--raw") ? answer_raw(s, input.s, input.n, max_new, args_has(a, "--quiet"), &st)
                             : answer_messages(s, m, n, max_new, args_has(a, "--quiet"), &st);
done:
    str_free(&input);
    str_free(&st.out);
    str_free(&st.whole);
    return e;
}

typedef struct history {
    chat_message *m;
    size_t cap;
    int n;
} history;

static err remember(history *h, const char *role, const char *text, size_t len) {
    char *copy;
    TRY(mem_grow(&h->m, &h->cap, (size_t)h->n + 1, sizeof *h->m));
    TRY(mem_new(len + 1, 1, &copy));
    memcpy(copy, text, len);
    h->m[h->n++] = (chat_message){.role = role, .content = copy, .content_len = len};
    return ERR_OK;
}

static err chat_turn(const session *s, history *h, const char *line, size_t len, int64_t max_new,
                     int quiet) {
    stream st = {.s = s};
    err e = remember(h, "user", line, len);
    if (!e) e = answer_messages(s, h->m, h->n, max_new, quiet, &st);
    if (!e) e = remember(h, "assistant", st.whole.s ? st.whole.s : "", st.whole.n);
    str_free(&st.out);
    str_free(&st.whole);
    return e;
}

static err chat(const session *s, const args *a, int64_t max_new) {
    const char *system = args_text(a, "--system", NULL);
    history h = {0};
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    err e = system ? remember(&h, "system", system, strlen(system)) : ERR_OK;
    while (!e) {
        fprintf(stderr, "> ");
        n = getline(&line, &cap, stdin);
        if (n < 0) break;
        while (n && (line[n - 1] == '\n' || line[n - 1] == '\r')) line[--n] = 0;
        if (n) e = chat_turn(s, &h, line, (size_t)n, max_new, args_has(a, "--quiet"));
    }
    if (!e) fprintf(stderr, "\n");
    for (int i = 0; i < h.n; i++) mem_free((void *)(uintptr_t)h.m[i].content);
    mem_free(h.m);
    free(line);
    return e;
}

static err run(const args *a) {
    session s = {0};
    int64_t max_new;
    TRY(args_int(a, "--max-new", 512, 1, 1 << 24, &max_new));
    if (args_has(a, "--chat") == args_has(a, "--prompt"))
        return err_set(ERR_USAGE, "either --prompt P or --chat is needed");
    if (args_has(a, "--chat") && args_has(a, "--raw"))
        return err_set(ERR_USAGE, "--raw goes with --prompt, not with --chat");
    if (args_has(a, "--raw") && (args_has(a, "--system") || args_has(a, "--template")))
        return err_set(ERR_USAGE,
                       "--raw continues the prompt without a template, so %s has no place",
                       args_has(a, "--system") ? "--system" : "--template");
    err e = session_open(&s, a, args_has(a, "--quiet"));
    if (!e) e = args_has(a, "--chat") ? chat(&s, a, max_new) : one_prompt(&s, a, max_new);
    session_close(&s);
    return e;
}

const command command_generate = {
    .name = "generate",
    .usage = "generate --target T [--drafter D] (--prompt P | --chat) [options]",
    .summary = "answer a prompt or chat, plainly or with a drafter (the same text)",
    .spec = spec,
    .run = run,
};
