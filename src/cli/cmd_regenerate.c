/* paceline regenerate: lets the target answer prompts, many at once, and writes the conversations as training rows.
 *
 * Rows come in the order of the prompts; stopping and starting again goes on behind the last whole row. Answers are greedy
 * and do not depend on --batch: a sequence's bits are independent of its neighbours. */
#include "cli/answers.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "core/clock.h"
#include "text/utf8.h"
#include <stdio.h>
#include <string.h>

static const arg_spec spec[] = {
    {"--target", ARG_TEXT, "T", "target model: a GGUF file (needed)"},
    {"--prompts", ARG_TEXT, "P.jsonl", "prompts: lines with prompt, turns or messages (needed)"},
    {"--out", ARG_TEXT, "D.jsonl",
     "answers, in prompt order; an existing file is continued (needed)"},
    {"--where", ARG_TEXT, "KEY=VALUE", "only lines whose text field KEY is VALUE (split=train)"},
    {"--limit", ARG_INT, "N", "only the first N of them"},
    {"--max-new", ARG_INT, "N", "new tokens per answer at most (default 512)"},
    {"--batch", ARG_INT, "N", "sequences decoded together (default 32)"},
    {"--drafter", ARG_TEXT, "D", "drafter folder, to answer sooner with the same text"},
    {"--template", ARG_TEXT, "NAME", "chat template (default auto: the model's own)"},
    {"--threads", ARG_INT, "N", "CPU threads (default: usable CPUs)"},
    {NULL, ARG_FLAG, NULL, NULL},
};

/* One conversation under way or waiting for its predecessors to be written. */
typedef struct talk {
    chat_message *m; /* texts: the prompt's, borrowed; answers, owned */
    int n, turn, done, cut;
    decode_seq *q;
} talk;

typedef struct job {
    session s;
    arena *mem;
    prompt_set prompts;
    answers *out;
    decode_batch *batch;
    talk *talks;           /* [prompts.n] */
    int64_t next, written; /* first prompt not started; rows in the file */
    int64_t running, seqs, max_new, tokens;
    progress bar;
    double start;
    int64_t first; /* rows that were there at the start */
} job;

static err start_turn(job *j, int64_t i) {
    talk *t = &j->talks[i];
    chat_tokens c = {0};
    err e = chat_encode_prompt(j->s.chat, t->m, t->n, &c);
    if (!e)
        e = decode_add(
            j->batch,
            &(decode_request){.prompt = c.ids, .n_prompt = (int64_t)c.n, .max_new = j->max_new},
            &t->q);
    chat_tokens_free(&c);
    return err_context(e, "prompt '%s' (line %lld): ", j->prompts.items[i].id,
                       (long long)j->prompts.items[i].line);
}

static err start_talk(job *j, int64_t i) {
    const prompt *p = &j->prompts.items[i];
    talk *t = &j->talks[i];
    TRY(mem_new((size_t)(p->n + 1 + 2 * p->n_turns), sizeof *t->m, &t->m));
    memcpy(t->m, p->messages, (size_t)p->n * sizeof *t->m);
    t->n = p->n;
    j->running++;
    return start_turn(j, i);
}

/* Text that a JSON reader of ours takes back: a NUL, which a model may well emit, becomes U+FFFD as a broken
 * character does. */
static err add_without_nul(str *out, const char *s, size_t n) {
    for (size_t at = 0; at < n;) {
        size_t run = strnlen(s + at, n - at);
        TRY(str_add(out, s + at, run));
        at += run;
        if (at < n) TRY(str_add(out, "\xEF\xBF\xBD", 3));
        at += at < n;
    }
    return str_add(out, "", 0);
}

/* The answer as valid UTF-8: an incomplete character at a limit becomes U+FFFD once, as a stream would show it. */
static err answer_text(const job *j, const talk *t, str *out) {
    str bytes = {0}, text = {0};
    utf8_stream u = {0};
    int64_t n;
    const int32_t *ids = decode_tokens(t->q, &n);
    err e = session_text(&j->s, ids, n, &bytes);
    if (!e) e = utf8_push(&u, bytes.s ? bytes.s : "", bytes.n, &text);
    if (!e) e = utf8_flush(&u, &text);
    if (!e) e = add_without_nul(out, text.s ? text.s : "", text.n);
    str_free(&bytes);
    str_free(&text);
    return e;
}

static err finish_turn(job *j, int64_t i) {
    const prompt *p = &j->prompts.items[i];
    talk *t = &j->talks[i];
    str text = {0};
    int64_t n;
    decode_tokens(t->q, &n);
    j->tokens += n;
    err e = answer_text(j, t, &text);
    t->cut = decode_state(t->q) != DECODE_END_TOKEN;
    decode_remove(j->batch, t->q);
    t->q = NULL;
    if (e) return e;
    t->m[t->n++] = (chat_message){
        .role = "assistant", .content = text.s, .content_len = text.n}; /* the buffer moves */
    if (t->turn < p->n_turns && !t->cut) {
        const char *user = p->turns[t->turn++];
        t->m[t->n++] = (chat_message){.role = "user", .content = user, .content_len = strlen(user)};
        return start_turn(j, i);
    }
    t->done = 1;
    j->running--;
    return ERR_OK;
}

static void free_talk(talk *t) {
    for (int i = 0; i < t->n; i++)
        if (!strcmp(t->m[i].role, "assistant")) mem_free((void *)(uintptr_t)t->m[i].content);
    mem_free(t->m);
    *t = (talk){0};
}

static err write_ready(job *j) {
    while (j->written < j->next && j->talks[j->written].done) {
        talk *t = &j->talks[j->written];
        TRY(answers_write(j->out, &j->prompts.items[j->written], t->m, t->n, t->cut));
        j->written++;
    }
    return ERR_OK;
}

static void draw(job *j, int force) {
    double s = clock_seconds() - j->start, rate = s > 0 ? (double)j->tokens / s : 0;
    int64_t made = j->written - j->first;
    char left[16] = "?", count[32];
    if (made > 0) clock_span(s / (double)made * (double)(j->prompts.n - j->written), left);
    progress_line(&j->bar, force, "%lld/%lld answers, %s tokens, %.0f tokens/s, %s left",
                  (long long)j->written, (long long)j->prompts.n, str_thousands(j->tokens, count),
                  rate, left);
}

static err work(job *j) {
    while (j->written < j->prompts.n) {
        int64_t still;
        while (j->running < j->seqs && j->next < j->prompts.n) TRY(start_talk(j, j->next++));
        TRY(decode_round(j->batch, &still));
        for (int64_t i = j->written; i < j->next; i++)
            if (j->talks[i].q && decode_state(j->talks[i].q) != DECODE_RUNNING)
                TRY(finish_turn(j, i));
        TRY(write_ready(j));
        draw(j, 0);
    }
    return ERR_OK;
}

/* Tokens of the longest conversation: its first prompt, then per further turn the turn, an answer and some header tokens. */
static err longest(const job *j, int64_t *out) {
    *out = 0;
    for (int64_t i = 0; i < j->prompts.n; i++) {
        const prompt *p = &j->prompts.items[i];
        chat_tokens c = {0};
        err e = chat_encode_prompt(j->s.chat, p->messages, p->n, &c);
        if (e) return err_context(e, "prompt '%s' (line %lld): ", p->id, (long long)p->line);
        int64_t n = (int64_t)c.n + j->max_new;
        for (int k = 0; k < p->n_turns; k++) n += (int64_t)strlen(p->turns[k]) + j->max_new + 16;
        if (n > *out) *out = n;
        chat_tokens_free(&c);
    }
    return ERR_OK;
}

static err prepare(job *j, const args *a) {
    const char *out;
    int64_t tokens;
    char digest[33];
    char *kept;
    TRY(args_need(a, "--out", &out));
    TRY(args_int(a, "--max-new", 512, 1, 1 << 24, &j->max_new));
    TRY(args_int(a, "--batch", 32, 1, 1024, &j->seqs));
    TRY(arena_create(&j->mem, "prompts", 0));
    TRY(session_prompts(&j->prompts, a, j->mem));
    TRY(session_open(&j->s, a, 0));
    target_digest(j->s.t, digest);
    TRY(arena_strdup(j->mem, digest, &kept));
    TRY(answers_open(&j->out, out, &j->prompts, kept, j->max_new, &j->written));
    TRY(arena_alloc(j->mem, (size_t)j->prompts.n, sizeof *j->talks, &j->talks));
    j->next = j->first = j->written;
    TRY(longest(j, &tokens));
    if (j->seqs > j->prompts.n - j->written) j->seqs = j->prompts.n - j->written;
    if (j->seqs == 0) return ERR_OK;
    return session_batch(&j->s, j->s.dr, j->seqs, tokens, &j->batch);
}

static err run(const args *a) {
    job j = {0};
    char span[16], count[32];
    err e = prepare(&j, a);
    if (!e) {
        if (j.first)
            fprintf(stderr, "%lld of %lld answers are there already\n", (long long)j.first,
                    (long long)j.prompts.n);
        j.start = clock_seconds();
        progress_start(&j.bar);
        e = work(&j);
        progress_end(&j.bar);
    }
    if (!e) {
        double s = clock_seconds() - j.start;
        printf("%lld answers, %s tokens in %s (%.0f tokens/s)\n", (long long)(j.written - j.first),
               str_thousands(j.tokens, count), clock_span(s, span),
               s > 0 ? (double)j.tokens / s : 0.0);
    }
    for (int64_t i = 0; j.talks && i < j.prompts.n; i++) {
        if (j.talks[i].q) decode_remove(j.batch, j.talks[i].q);
        free_talk(&j.talks[i]);
    }
    decode_free(j.batch);
    answers_close(j.out);
    session_close(&j.s);
    arena_destroy(j.mem);
    return e;
}

const command command_regenerate = {
    .name = "regenerate",
    .usage = "regenerate --target T --prompts P.jsonl --out D.jsonl [options]",
    .summary = "let the target answer prompts: training rows, batched and resumable",
    .spec = spec,
    .run = run,
};
