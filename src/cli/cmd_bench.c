/* paceline bench: decodes prompts plainly and with a drafter, one at a time, and compares: texts, acceptance, speed.
 *
 * Rates leave the prefill out. With --bigram the acceptance of a bigram table built from an answers file stands beside
 * the drafter's. With --check a single differing text is a failure. */
#include "cli/command.h"
#include "cli/bench_table.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "core/clock.h"
#include "core/file.h"
#include "data/data.h"
#include "data/prompts.h"
#include "decode/bigram.h"
#include <stdio.h>
#include <string.h>

static const arg_spec spec[] = {
    {"--target", ARG_TEXT, "T", "target model: a GGUF file (needed)"},
    {"--drafter", ARG_TEXT, "D", "drafter folder (needed)"},
    {"--prompts", ARG_TEXT, "P.jsonl", "prompts: lines with prompt, turns or messages (needed)"},
    {"--where", ARG_TEXT, "KEY=VALUE", "only lines whose text field KEY is VALUE (split=heldout)"},
    {"--limit", ARG_INT, "N", "only the first N of them"},
    {"--max-new", ARG_INT, "N", "new tokens per answer at most (default 128)"},
    {"--check", ARG_FLAG, NULL, "fail when any speculative text differs from the plain one"},
    {"--bigram", ARG_TEXT, "D.jsonl",
     "also the acceptance of a bigram table built from these answers"},
    {"--json", ARG_TEXT, "F", "write the figures as JSON"},
    {"--template", ARG_TEXT, "NAME", "chat template (default auto: the model's own)"},
    {"--threads", ARG_INT, "N", "CPU threads (default: usable CPUs)"},
    {NULL, ARG_FLAG, NULL, NULL},
};

typedef struct job {
    session s;
    arena *mem;
    prompt_set prompts;
    bigram *pairs;
    int64_t max_new;
    bench_table table;
    str rendered; /* ids of all prompts, for the digest */
    progress bar;
} job;

/* One answer by one way of decoding, kept until compared. */
typedef struct answer {
    decode_batch *b;
    decode_seq *q;
    const int32_t *ids;
    int64_t n;
} answer;

static void free_answer(answer *r) {
    if (r->q) decode_remove(r->b, r->q);
    decode_free(r->b);
    *r = (answer){0};
}

static err decode_one(const job *j, const drafter *dr, const chat_tokens *c, answer *r) {
    *r = (answer){0};
    TRY(session_batch(&j->s, dr, 1, (int64_t)c->n + j->max_new, &r->b));
    TRY(decode_add(
        r->b, &(decode_request){.prompt = c->ids, .n_prompt = (int64_t)c->n, .max_new = j->max_new},
        &r->q));
    TRY(decode_run(r->b));
    r->ids = decode_tokens(r->q, &r->n);
    return ERR_OK;
}

static void count(job *j, bench_line *l, const answer *plain, const answer *quick, int *same) {
    const decode_stats *ps = decode_get_stats(plain->q), *ss = decode_get_stats(quick->q);
    *same &= plain->n == quick->n &&
             !memcmp(plain->ids, quick->ids, (size_t)plain->n * sizeof *plain->ids);
    l->tokens += plain->n;
    if (plain->n < l->shortest) l->shortest = plain->n;
    l->plain_steps += plain->n - 1;
    l->spec_steps += quick->n - 1;
    l->plain_s += ps->decode_seconds;
    l->spec_s += ss->decode_seconds;
    decode_stats_add(&l->stats, ss);
    if (j->pairs)
        bigram_walk(j->pairs, j->table.block_size, plain->ids, plain->n, &l->bigram_rounds,
                    &l->bigram_committed);
}

static err one_turn(job *j, bench_line *l, const chat_message *m, int n, int *same, str *text) {
    chat_tokens c = {0};
    answer plain = {0}, spec_answer = {0};
    err e;
    TRY_GOTO(chat_encode_prompt(j->s.chat, m, n, &c), done);
    TRY_GOTO(str_add(&j->rendered, c.ids, c.n * sizeof *c.ids), done);
    TRY_GOTO(decode_one(j, NULL, &c, &plain), done);
    TRY_GOTO(decode_one(j, j->s.dr, &c, &spec_answer), done);
    count(j, l, &plain, &spec_answer, same);
    TRY_GOTO(session_text(&j->s, plain.ids, plain.n, text), done);
    e = str_add(text, "", 0);
done:
    free_answer(&plain);
    free_answer(&spec_answer);
    chat_tokens_free(&c);
    return e;
}

static err one_prompt(job *j, const prompt *p) {
    bench_line *l = bench_table_find(&j->table, p->source);
    chat_message *m;
    arena_mark mark = arena_get_mark(j->mem);
    int n = p->n, same = 1;
    str *texts;
    if (!l) return err_set(ERR_RANGE, "more than %d sources of prompts", BENCH_MAX_SOURCES);
    TRY(arena_alloc(j->mem, (size_t)(p->n + 2 * p->n_turns + 1), sizeof *m, &m));
    TRY(arena_alloc(j->mem, (size_t)p->n_turns + 1, sizeof *texts, &texts));
    memcpy(m, p->messages, (size_t)p->n * sizeof *m);
    err e = ERR_OK;
    for (int turn = 0; turn <= p->n_turns && !e; turn++) {
        e = one_turn(j, l, m, n, &same, &texts[turn]);
        if (e || turn == p->n_turns) break;
        m[n++] = (chat_message){
            .role = "assistant", .content = texts[turn].s, .content_len = texts[turn].n};
        m[n++] = (chat_message){
            .role = "user", .content = p->turns[turn], .content_len = strlen(p->turns[turn])};
    }
    for (int turn = 0; turn <= p->n_turns; turn++) str_free(&texts[turn]);
    arena_reset(j->mem, mark);
    l->prompts++;
    l->identical += same;
    return err_context(e, "prompt '%s' (line %lld): ", p->id, (long long)p->line);
}

/* Successor counts over whole conversations, as a drafter would be trained on them: the walk then drafts from the same text. */
static err build_bigram(job *j, const char *path) {
    data_set *set;
    data_config cfg = {
        .tok = j->s.tok, .chat = j->s.chat, .max_length = target_get_config(j->s.t)->context};
    TRY(bigram_create(&j->pairs, target_get_config(j->s.t)->vocab));
    TRY(data_open(&set, (const char *const[]){path}, 1, &cfg));
    err e = ERR_OK;
    for (int64_t i = 0; i < data_count(set) && !e; i++) {
        data_doc d;
        e = data_fetch(set, i, &d);
        if (!e) e = bigram_add(j->pairs, d.tokens, d.n);
    }
    data_close(set);
    return e ? e : bigram_finish(j->pairs);
}

static err prepare(job *j, const args *a) {
    const char *dir, *answers = args_text(a, "--bigram", NULL);
    TRY(args_need(a, "--drafter", &dir));
    TRY(args_int(a, "--max-new", 128, 1, 1 << 24, &j->max_new));
    if (args_has(a, "--json")) TRY(file_check_output(args_text(a, "--json", NULL)));
    TRY(arena_create(&j->mem, "prompts", 0));
    TRY(session_prompts(&j->prompts, a, j->mem));
    TRY(session_open(&j->s, a, 0));
    j->table.block_size = drafter_get_config(j->s.dr)->block_size;
    return answers ? build_bigram(j, answers) : ERR_OK;
}

static err work(job *j) {
    double start = clock_seconds();
    progress_start(&j->bar);
    for (int64_t i = 0; i < j->prompts.n; i++) {
        char left[16] = "?";
        if (i) clock_span((clock_seconds() - start) / (double)i * (double)(j->prompts.n - i), left);
        progress_line(&j->bar, 0, "%lld/%lld prompts, %s left", (long long)i,
                      (long long)j->prompts.n, left);
        TRY(one_prompt(j, &j->prompts.items[i]));
    }
    progress_end(&j->bar);
    file_hash_bytes(j->rendered.s, j->rendered.n, j->table.digest);
    return ERR_OK;
}

static err conclude(const job *j, const args *a) {
    const char *json = args_text(a, "--json", NULL);
    int64_t differ = 0;
    bench_table_print(&j->table);
    if (json) TRY(bench_table_json(&j->table, json));
    for (int i = 0; i < j->table.n; i++)
        differ += j->table.line[i].prompts - j->table.line[i].identical;
    if (differ && args_has(a, "--check"))
        return err_set(ERR_NUMERIC, "%lld of %lld speculative texts differ from the plain ones",
                       (long long)differ, (long long)j->prompts.n);
    return ERR_OK;
}

static err run(const args *a) {
    job *j;
    TRY(mem_new(1, sizeof *j, &j));
    err e = prepare(j, a);
    if (!e) e = work(j);
    progress_end(&j->bar);
    if (!e) e = conclude(j, a);
    bigram_free(j->pairs);
    session_close(&j->s);
    arena_destroy(j->mem);
    str_free(&j->rendered);
    mem_free(j);
    return e;
}

const command command_bench = {
    .name = "bench",
    .usage = "bench --target T --drafter D --prompts P.jsonl [options]",
    .summary = "plain against speculative decoding: acceptance, speed, identical texts",
    .details =
        "tau: committed tokens per round, bonus included; accepted: drafts accepted per round; rejecting: rounds in\n"
        "which a draft was rejected. Rates are tokens a second without the prefill, one prompt at a time.",
    .spec = spec,
    .run = run,
};
