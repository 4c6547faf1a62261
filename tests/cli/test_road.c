/* The whole road end to end on a tiny random target: answers, plan, training, decoding both ways, inspection.
 *
 * The target is random, so its greedy text soon repeats itself and a drafter learns it quickly: acceptance well above 1
 * shows that every part fits. Nothing here judges speed. */
#include "support/files.h"
#include "support/run.h"
#include "support/chat_gguf.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <ctype.h>
#include <signal.h>

enum { PATIENCE = 300000 }; /* milliseconds, under sanitizers on a busy machine too */

static files_dir dir;
static run_result r;
static char target[600], prompts[600], answers[600], recipe[600], out[600], drafter[700];

#define RUN(...) run_program(&r, NULL, (const char *const[]){__VA_ARGS__, NULL})
#define EXPECT(want_code, want_text)                                                               \
    do {                                                                                           \
        if (r.code != (want_code) || !strstr(r.text, want_text))                                   \
            fail_msg("exit %d, wanted %d and '%s':\n%s", r.code, want_code, want_text, r.text);    \
    } while (0)

static int begin(void **state) {
    char text[8192] = "";
    (void)state;
    dir = files_begin();
    snprintf(target, sizeof target, "%s", files_at(&dir, "tiny.gguf"));
    chat_gguf_write(target, &(chat_gguf){.seed = 11});
    for (int i = 0; i < 12; i++)
        snprintf(
            text + strlen(text), sizeof text - strlen(text),
            "{\"id\": \"p%d\", \"kind\": \"%s\", \"split\": \"%s\", \"prompt\": \"word %d of the list\"}\n",
            i, i % 2 ? "odd" : "even", i < 8 ? "train" : "heldout", i * 7);
    snprintf(prompts, sizeof prompts, "%s", files_text(&dir, "prompts.jsonl", text));
    snprintf(answers, sizeof answers, "%s", files_at(&dir, "answers.jsonl"));
    snprintf(out, sizeof out, "%s", files_at(&dir, "run"));
    snprintf(drafter, sizeof drafter, "%s/drafter", out);
    snprintf(
        text, sizeof text,
        "target: {path: tiny.gguf}\ndata: {path: answers.jsonl, max_length: 256}\n"
        "drafter: {layers: 2, block_size: 4}\nanchors: {per_document: 32}\noptimizer: {lr: 3.0e-3}\n"
        "run: {epochs: 12, tokens_per_step: 256, tokens_per_row: 256, checkpoint_every: 10, evaluate_every: 1000, out: run}\n");
    snprintf(recipe, sizeof recipe, "%s", files_text(&dir, "recipe.yaml", text));
    return 0;
}

static int end(void **state) {
    (void)state;
    files_end(&dir);
    return 0;
}

static void answers_are_written_in_order_and_continued(void **state) {
    char *first, *again, *part;
    size_t n, m;
    (void)state;
    RUN("regenerate", "--target", target, "--prompts", prompts, "--where", "split=train",
        "--max-new", "48", "--batch", "3", "--out", answers);
    EXPECT(0, "8 answers");
    assert_int_equal(file_read(answers, &first, &n), 0);
    part = strchr(strchr(first, '\n') + 1, '\n') + 1; /* two whole rows and a cut third */
    files_write(&dir, "answers.jsonl", first, (size_t)(part - first) + 20);
    RUN("regenerate", "--target", target, "--prompts", prompts, "--where", "split=train",
        "--max-new", "48", "--batch", "8", "--out", answers);
    EXPECT(0, "2 of 8 answers are there already");
    assert_int_equal(file_read(answers, &again, &m), 0);
    assert_int_equal(n, m);
    assert_memory_equal(first, again, n); /* also: independent of --batch */
    free(first);
    free(again);
}

/* A random model emits every byte, NUL among them: what is written is read back, by regenerate and by training. */
static void answers_of_any_bytes_are_read_back(void **state) {
    char text[16384] = "", model[700], path[700], set[800];
    char *file;
    size_t n;
    (void)state;
    snprintf(model, sizeof model, "%s", files_at(&dir, "bytes.gguf"));
    chat_gguf_write(model, &(chat_gguf){.seed = 5});
    for (int i = 0; i < 40; i++) {
        snprintf(text + strlen(text), sizeof text - strlen(text), "{\"prompt\": \"");
        for (int k = 0; k <= i % 9; k++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "word %d ", i);
        snprintf(text + strlen(text), sizeof text - strlen(text), "\"}\n");
    }
    snprintf(path, sizeof path, "%s", files_text(&dir, "bytes.jsonl", text));
    for (int again = 0; again < 2; again++) {
        RUN("regenerate", "--target", model, "--prompts", path, "--max-new", "60", "--out",
            files_at(&dir, "bytes-out.jsonl"));
        EXPECT(0, again ? "40 of 40 answers are there already" : "40 answers");
    }
    assert_int_equal(file_read(files_at(&dir, "bytes-out.jsonl"), &file, &n), 0);
    assert_null(strstr(file, "\\u0000"));
    free(file);
    snprintf(set, sizeof set, "data.path=%s", files_at(&dir, "bytes-out.jsonl"));
    RUN("plan", recipe, set);
    EXPECT(0, "40 documents");
}

static void answers_of_other_prompts_are_refused(void **state) {
    (void)state;
    RUN("regenerate", "--target", target, "--prompts", prompts, "--max-new", "48", "--where",
        "split=heldout", "--out", answers);
    EXPECT(1, "belongs to other prompts");
    RUN("regenerate", "--target", target, "--prompts", prompts, "--max-new", "49", "--where",
        "split=train", "--out", answers);
    EXPECT(1, "--max-new");
}

static void plan_states_bytes_and_starts_nothing(void **state) {
    (void)state;
    RUN("plan", recipe);
    EXPECT(0, "8 documents");
    assert_false(file_exists(out));
}

/* Not a part of a word: the folder's name, which stands in the text, is drawn. */
static int says_nan(const char *text) {
    for (const char *p = text; (p = strstr(p, "nan")) != NULL; p += 3)
        if ((p == text || !isalnum((unsigned char)p[-1])) && !isalnum((unsigned char)p[3]))
            return 1;
    return 0;
}

static void training_ends_with_a_drafter(void **state) {
    (void)state;
    RUN("train", recipe);
    EXPECT(0, "update");
    assert_false(says_nan(r.text)); /* no evaluation was asked for: a dash */
    assert_true(file_exists(drafter));
}

static void speculative_text_is_the_plain_text_and_drafts_are_accepted(void **state) {
    const char *tau;
    char *json;
    size_t n;
    (void)state;
    RUN("bench", "--target", target, "--drafter", drafter, "--prompts", prompts, "--where",
        "split=heldout", "--max-new", "40", "--check", "--bigram", answers, "--json",
        files_at(&dir, "bench.json"));
    EXPECT(0, "identical");
    assert_int_equal(file_read(files_at(&dir, "bench.json"), &json, &n), 0);
    tau = strstr(strstr(json, "\"all\""), "\"tau\":");
    assert_non_null(tau);
    assert_true(atof(tau + 6) > 1.2);
    free(json);
}

static void generate_streams_the_same_text_with_and_without_drafter(void **state) {
    char plain[4096];
    (void)state;
    RUN("generate", "--target", target, "--prompt", "a word", "--max-new", "40", "--quiet");
    EXPECT(0, "");
    snprintf(plain, sizeof plain, "%.4000s", r.text);
    RUN("generate", "--target", target, "--drafter", drafter, "--prompt", "a word", "--max-new",
        "40", "--quiet");
    EXPECT(0, "");
    assert_string_equal(plain, r.text);
}

/* Interrupted when its first checkpoint is there, however long that takes. */
static void interrupt_saves_and_a_second_run_goes_on_to_the_same_bits(void **state) {
    char whole[33], stopped[33], path[900], part[700], output[600];
    int code = -1;
    (void)state;
    snprintf(path, sizeof path, "%s/model.safetensors", drafter);
    assert_int_equal(file_hash(path, whole), 0);
    snprintf(part, sizeof part, "run.out=%s", files_at(&dir, "run2"));
    snprintf(output, sizeof output, "%s", files_at(&dir, "output.txt"));
    const pid_t pid = run_start(NULL, (const char *const[]){"train", recipe, part, NULL}, output);
    snprintf(path, sizeof path, "%s", files_at(&dir, "run2/checkpoints/step-00000010"));
    for (int ms = 0; ms < PATIENCE && code < 0 && !file_exists(path); ms++) code = run_wait(pid, 1);
    if (code < 0) {
        assert_int_equal(kill(pid, SIGINT), 0);
        code = run_wait(pid, PATIENCE);
    }
    run_read(&r, output);
    if (code != 3 && code != 0) fail_msg("exit %d:\n%s", code, r.text); /* 0: it was at its end */
    RUN("train", recipe, part);
    EXPECT(0, "");
    snprintf(path, sizeof path, "%s/drafter/model.safetensors", files_at(&dir, "run2"));
    assert_int_equal(file_hash(path, stopped), 0);
    assert_string_equal(whole, stopped);
}

static void every_kind_of_path_is_inspected(void **state) {
    (void)state;
    RUN("inspect", target);
    EXPECT(0, "tokenizer.ggml.model");
    RUN("inspect", drafter);
    EXPECT(0, "fc.weight");
    RUN("inspect", out);
    EXPECT(0, "checkpoints");
    RUN("inspect", prompts);
    EXPECT(1, "neither GGUF nor safetensors");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_written_in_order_and_continued),
        cmocka_unit_test(answers_of_any_bytes_are_read_back),
        cmocka_unit_test(answers_of_other_prompts_are_refused),
        cmocka_unit_test(plan_states_bytes_and_starts_nothing),
        cmocka_unit_test(training_ends_with_a_drafter),
        cmocka_unit_test(speculative_text_is_the_plain_text_and_drafts_are_accepted),
        cmocka_unit_test(generate_streams_the_same_text_with_and_without_drafter),
        cmocka_unit_test(interrupt_saves_and_a_second_run_goes_on_to_the_same_bits),
        cmocka_unit_test(every_kind_of_path_is_inspected),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
