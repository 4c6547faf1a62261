/* Bad input to the program: each gives one sentence that says what and where, the right exit code, and leaves nothing half-written.
 *
 * Every case is one row: files are made once, a command is run, its exit code and a piece of its sentence are expected. */
#include "support/files.h"
#include "support/run.h"
#include "support/chat_gguf.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static files_dir dir;
static run_result r;
static char target[600], prompts[600], recipe[600];

#define RUN(...) run_program(&r, NULL, (const char *const[]){__VA_ARGS__, NULL})

/* The sentence stands on one line that begins with the program's name; exit codes as --help says. */
static void expect(int code, const char *text) {
    const char *line = strstr(r.text, "paceline");
    if (r.code != code || !line || !strstr(line, text))
        fail_msg("exit %d, wanted %d and '%s':\n%s", r.code, code, text, r.text);
}

static char *at(const char *name) {
    static char path[8][700];
    static int turn;
    turn = (turn + 1) % 8;
    snprintf(path[turn], sizeof path[turn], "%s", files_at(&dir, name));
    return path[turn];
}

static const char rows[] =
    "{\"prompt\": \"one two\", \"response\": \"the one and the two and the three and so on\"}\n"
    "{\"prompt\": \"two\", \"response\": \"in the end the other one went on and on\"}\n";
static const char head[] = "target: {path: tiny.gguf}\ndata: {path: rows.jsonl, max_length: 96}\n";

static const char *make_recipe(const char *name, const char *text) {
    char whole[2048];
    snprintf(whole, sizeof whole, "%s%s", head, text);
    files_text(&dir, name, whole);
    return at(name);
}

static int begin(void **state) {
    (void)state;
    dir = files_begin();
    snprintf(target, sizeof target, "%s", files_at(&dir, "tiny.gguf"));
    chat_gguf_write(target, &(chat_gguf){.seed = 3, .context = 96});
    files_text(&dir, "rows.jsonl", rows);
    snprintf(prompts, sizeof prompts, "%s",
             files_text(&dir, "prompts.jsonl", "{\"prompt\": \"one\"}\n{\"prompt\": \"two\"}\n"));
    snprintf(
        recipe, sizeof recipe, "%s",
        make_recipe(
            "good.yaml",
            "drafter: {layers: 1, block_size: 4}\nrun: {epochs: 1, tokens_per_step: 128, tokens_per_row: 128, out: run}\n"));
    return 0;
}

static int end(void **state) {
    (void)state;
    files_end(&dir);
    return 0;
}

static void usage_errors_have_code_2(void **state) {
    (void)state;
    RUN("trian");
    expect(2, "did you mean train");
    RUN("mask", "q >= kv", "--q", "10");
    expect(2, "--kv is needed");
    RUN("mask", "q >= kv", "--q", "ten", "--kv", "10");
    expect(2, "--q needs a whole number, not 'ten'");
    RUN("mask", "q >= kv", "--q", "10", "--kv", "10", "--tiel", "64");
    expect(2, "did you mean --tile");
    RUN("generate", "--target", target);
    expect(2, "either --prompt P or --chat");
    RUN("attend", "--random", "1,2,1,8,8");
    expect(2, "six numbers");
    RUN("attend", "--random", "1,2,1,8,8,16", "--device", "cuda:0");
    expect(2, "this build knows cpu");
}

static void masks_point_at_the_fault(void **state) {
    (void)state;
    RUN("mask", "q = kv", "--q", "10", "--kv", "10");
    expect(1, "==");
    RUN("mask", "q >= kvv", "--q", "10", "--kv", "10");
    expect(1, "kv");
    RUN("attend", "--random", "1,3,2,8,8,16", "--mask", "q >= kv");
    expect(1, "3");
    RUN("attend", "--random", "1,2,1,8,8,12");
    expect(1, "multiple of 8");
}

static void recipes_point_at_the_fault(void **state) {
    (void)state;
    RUN("train", make_recipe("a.yaml", "drafter: {layrs: 2}\nrun: {out: run}\n"));
    expect(2, "layers");
    assert_non_null(strstr(r.text, "a.yaml:3:"));
    RUN("train", make_recipe("b.yaml", "drafter: {layers: 3x}\nrun: {out: run}\n"));
    expect(2, "3x");
    RUN("train", make_recipe("c.yaml", "drafter: {layers: 2}\n"));
    expect(2, "run.out");
    RUN("train", recipe, "optimizer.lr=fast");
    expect(2, "optimizer.lr");
    RUN("train", recipe, "drafter.mask_token=100000");
    expect(2, "mask");
    RUN("train", recipe, "drafter.taps=[1, 40]");
    expect(2, "40");
    RUN("train", at("absent.yaml"));
    expect(1, "absent.yaml");
    assert_false(file_exists(at("run")));
}

static void files_are_named(void **state) {
    char *data;
    size_t n;
    (void)state;
    RUN("train", recipe, "data.path=/nonexistent/rows.jsonl");
    expect(1, "/nonexistent/rows.jsonl");
    files_text(&dir, "empty.jsonl", "");
    char set[800];
    snprintf(set, sizeof set, "data.path=%s", at("empty.jsonl"));
    RUN("train", recipe, set);
    expect(1, "empty.jsonl");
    files_text(&dir, "bad.jsonl",
               "{\"prompt\": \"a\", \"response\": \"b c d e\"}\n{\"prompt\": \n");
    snprintf(set, sizeof set, "data.path=%s", at("bad.jsonl"));
    RUN("train", recipe, set);
    expect(1, "bad.jsonl: line 2");
    files_text(&dir, "allbad.jsonl", "nothing\nhere\n");
    snprintf(set, sizeof set, "data.path=%s", at("allbad.jsonl"));
    RUN("train", recipe, set, "data.lenient=true");
    expect(1, "allbad.jsonl");
    assert_int_equal(file_read(target, &data, &n), 0);
    files_write(&dir, "cut.gguf", data, n - 5000);
    free(data);
    snprintf(set, sizeof set, "target.path=%s", at("cut.gguf"));
    RUN("train", recipe, set);
    expect(1, "cut.gguf");
    RUN("generate", "--target", at("cut.gguf"), "--prompt", "x");
    expect(1, "cut.gguf");
    RUN("generate", "--target", prompts, "--prompt", "x");
    expect(1, "prompts.jsonl");
}

static void other_models_are_refused_by_name(void **state) {
    (void)state;
    chat_gguf_write(at("other.gguf"), &(chat_gguf){.architecture = "mamba"});
    RUN("generate", "--target", at("other.gguf"), "--prompt", "x");
    expect(1, "mamba");
    chat_gguf_write(at("pre.gguf"), &(chat_gguf){.pre = "unheard-of"});
    RUN("generate", "--target", at("pre.gguf"), "--prompt", "x");
    expect(1, "unheard-of");
    chat_gguf_write(at("rope.gguf"), &(chat_gguf){.rope_scaling = "spiral"});
    RUN("generate", "--target", at("rope.gguf"), "--prompt", "x");
    expect(1, "spiral");
}

static void prompts_longer_than_the_context_are_refused(void **state) {
    char text[400];
    (void)state;
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    RUN("generate", "--target", target, "--prompt", text, "--max-new", "4");
    expect(1, "96");
}

static void a_drafter_for_another_target_is_refused(void **state) {
    char set[800];
    (void)state;
    RUN("train", recipe, "--quiet");
    assert_int_equal(r.code, 0);
    snprintf(set, sizeof set, "%s/drafter", at("run"));
    chat_gguf_write(at("second.gguf"), &(chat_gguf){.seed = 4, .context = 96});
    RUN("generate", "--target", at("second.gguf"), "--drafter", set, "--prompt", "x");
    expect(1, "use the target it was trained with");
    chat_gguf_write(at("wide.gguf"), &(chat_gguf){.seed = 3, .context = 96, .hidden = 64});
    RUN("generate", "--target", at("wide.gguf"), "--drafter", set, "--prompt", "x");
    expect(1, "64");
    RUN("generate", "--target", target, "--drafter", at("run"), "--prompt", "x");
    expect(1, "run");
}

static void outputs_that_cannot_be_written_are_named_and_left_alone(void **state) {
    (void)state;
    RUN("train", recipe, "run.out=/proc/nowhere/run");
    expect(1, "/proc/nowhere");
    RUN("attend", "--random", "1,1,1,8,8,16", "--out", "/proc/nowhere/o.safetensors");
    expect(1, "/proc/nowhere");
    RUN("regenerate", "--target", target, "--prompts", prompts, "--max-new", "4", "--out",
        "/proc/nowhere/o.jsonl");
    expect(1, "/proc/nowhere");
    for (int i = 1; i <= 40;
         i +=
         3) { /* a disk that is full at the i-th write: nothing half-written, a later run goes on */
        char fail[64], out[800];
        snprintf(fail, sizeof fail, "PACELINE_FAIL_WRITE=%d", i);
        snprintf(out, sizeof out, "run.out=%s", at("full"));
        run_program(&r, (const char *const[]){fail, NULL},
                    (const char *const[]){"train", recipe, out, "--quiet", NULL});
        if (r.code == 0) break;
        expect(1, "No space left");
    }
    char out[800];
    snprintf(out, sizeof out, "run.out=%s", at("full"));
    RUN("train", recipe, out, "--quiet");
    assert_int_equal(r.code, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usage_errors_have_code_2),
        cmocka_unit_test(masks_point_at_the_fault),
        cmocka_unit_test(recipes_point_at_the_fault),
        cmocka_unit_test(files_are_named),
        cmocka_unit_test(other_models_are_refused_by_name),
        cmocka_unit_test(prompts_longer_than_the_context_are_refused),
        cmocka_unit_test(a_drafter_for_another_target_is_refused),
        cmocka_unit_test(outputs_that_cannot_be_written_are_named_and_left_alone),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
