/* Bad input to the program: each gives one sentence that says what and where, the right exit code, and leaves nothing half-written.
 *
 * Every case is one row: files are made once, a command is run, its exit code and a piece of its sentence are expected. */
#include "io/safetensors.h"
#include "support/files.h"
#include "support/run.h"
#include "support/chat_gguf.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

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
    RUN("attend", "--random", "1,2,1,8,8,16", "--device", "gpu");
    expect(2, "it is spelled cpu or cuda:N");
    RUN("probe", "--target", target, "--in", "a", "--out", at("b"), "--device", "cuda");
    expect(2, "it is spelled cpu or cuda:N");
    RUN("mask", "q >= kv", "--q", "10", "--kv", "10", "--device", "cuda:x");
    expect(2, "it is spelled cpu or cuda:N");
    RUN("mask", "--import", "a", "--device", "cuda:0");
    expect(2, "--device cuda:0 builds tiles and --import takes them from a file");
}

static void masks_point_at_the_fault(void **state) {
    (void)state;
    RUN("mask", "q = kv", "--q", "10", "--kv", "10");
    expect(2, "==");
    RUN("mask", "q >= kvv", "--q", "10", "--kv", "10");
    expect(2, "kv");
    RUN("mask", "--q", "10", "--kv", "10");
    expect(2, "an expression is needed");
    RUN("mask", "q >= kv", "--mod", "causal", "--q", "10", "--kv", "10");
    expect(2, "choose one");
    RUN("mask", "--mod", "casual", "--q", "10", "--kv", "10");
    expect(2, "'casual' is no mask of the gallery; did you mean causal?");
    RUN("mask", "--mod", "softcap", "--q", "10", "--kv", "10");
    expect(2, "'softcap' is a score of the gallery, and a mask is needed here");
    RUN("mask", "--mod", "alibaba", "--q", "10", "--kv", "10");
    expect(2, "there are noop, causal");
    RUN("mask", "q >= kv", "--q", "300", "--kv", "300", "--export", at("tiles.safetensors"));
    assert_true(r.code == 0 && strstr(r.text, "3 empty, 3 partial, 3 full"));
    RUN("mask", "--import", at("tiles.safetensors"));
    assert_true(r.code == 0 && strstr(r.text, "300 x 300 cells"));
    RUN("mask", "q > kv", "--q", "300", "--kv", "300", "--import", at("tiles.safetensors"));
    assert_true(r.code == 0 && strstr(r.text, "3 partial"));
    RUN("mask", "q >= kv", "--import", at("tiles.safetensors")); /* the file's extents */
    assert_true(r.code == 0 && strstr(r.text, "300 x 300 cells"));
    RUN("mask", "q < kv", "--q", "300", "--kv", "300", "--import", at("tiles.safetensors"));
    expect(1, "given as empty");
    RUN("mask", "q >= kv", "--q", "300", "--kv", "301", "--import", at("tiles.safetensors"));
    expect(1, "300 queries and 300 keys");
    RUN("mask", "--import", at("tiles.safetensors"), "--q", "300", "--kv", "299");
    expect(1, "300 queries and 300 keys, the tensors have 300 and 299");
    RUN("mask", "--import", at("tiles.safetensors"), "--tile", "64");
    expect(1, "--tile is 64 and the file's tiles are 128 x 128");
    RUN("mask", "q >= kv", "--q", "300", "--kv", "300", "--import", at("tiles.safetensors"),
        "--tile", "64");
    expect(1, "--tile is 64 and the file's tiles are 128 x 128");
    RUN("mask", "h == 0", "--heads", "3", "--q", "300", "--kv", "300", "--export",
        at("heads.safetensors"));
    assert_int_equal(r.code, 0);
    RUN("mask", "--import", at("heads.safetensors"), "--heads", "2");
    expect(1, "batch 1 and 3 heads, the tensors have batch 1 and 2 heads");
    RUN("mask", "h == 0", "--import", at("heads.safetensors"));
    assert_int_equal(r.code, 0);
    RUN("mask", "h == 1", "--import", at("heads.safetensors"));
    expect(1, "head 0 is given as full");
    RUN("mask", "--import", at("heads.safetensors"), "--heads", "3", "--batch", "5");
    assert_int_equal(r.code, 0);
    static const char *const of_text[][2] = {
        {"--let", "n=3"}, {"--in", "tiles.safetensors"}, {"--q0", "8"}, {"--kv0", "8"}};
    for (int i = 0; i < 4; i++) {
        RUN("mask", "--import", at("tiles.safetensors"), of_text[i][0], of_text[i][1]);
        expect(2, "belongs to an expression and none is given");
    }
    RUN("attend", "--random", "1,3,2,8,8,16", "--mask", "q >= kv");
    expect(1, "3");
    RUN("attend", "--random", "1,2,1,8,8,12");
    expect(1, "multiple of 8");
    RUN("attend", "--random", "1,32,8,4294967296,8,128");
    expect(1, "the tensors of this problem take 129 TiB and ");
    RUN("attend", "--random", "4294967296,4294967296,4294967296,1,1,8", "--backward");
    expect(1, "the tensors of this problem take ");
}

/* Tiles from a file that lacks an array: a fault of the file, told with the array's name. */
static void lists_of_tiles_come_in_pairs(void **state) {
    (void)state;
    static const int32_t one[1] = {1}, zero[1] = {0};
    static const tensor t[] = {{"kv_num_blocks", DT_I32, 3, {1, 1, 1}, one},
                               {"kv_indices", DT_I32, 4, {1, 1, 1, 1}, zero},
                               {"full_kv_num_blocks", DT_I32, 3, {1, 1, 1}, zero},
                               {"q_num_blocks", DT_I32, 3, {1, 1, 1}, one}};
    static const struct {
        int first, n;
        const char *says;
    } cases[] = {{0, 1, "'kv_indices' is missing; kv_num_blocks and kv_indices are needed"},
                 {1, 1, "'kv_num_blocks' is missing; kv_num_blocks"},
                 {0, 3, "'full_kv_indices' is missing; counts and indices come in pairs"}};
    static const char *const meta[][2] = {
        {"q_len", "8"}, {"kv_len", "8"}, {"block_q", "8"}, {"block_kv", "8"}};
    assert_int_equal(safetensors_write(at("pairs.st"), t, 2, meta, 4), 0);
    RUN("mask", "--import", at("pairs.st"));
    assert_true(r.code == 0 && strstr(r.text, "0 empty, 1 partial, 0 full"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(safetensors_write(at("pairs.st"), t + cases[i].first, cases[i].n, meta, 4),
                         0);
        RUN("mask", "--import", at("pairs.st"));
        expect(1, cases[i].says);
    }
    const tensor q[] = {t[0], t[1], t[3]};
    assert_int_equal(safetensors_write(at("pairs.st"), q, 3, meta, 4), 0);
    RUN("mask", "--import", at("pairs.st"));
    expect(1, "'q_indices' is missing; counts and indices come in pairs");
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

/* The program run by a shell, for what redirections do; %s in the command stands for the program. */
static void shell(const char *format) {
    const char *program = getenv("PACELINE_PROGRAM");
    char command[3000];
    snprintf(command, sizeof command, format, program && *program ? program : "build/paceline");
    FILE *f = popen(command, "r");
    assert_non_null(f);
    r.text[fread(r.text, 1, sizeof r.text - 1, f)] = 0;
    int status = pclose(f);
    r.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* A closed standard stream must not become one of the program's own files: the prompt was once read out of the model. */
static void closed_streams_are_errors(void **state) {
    char command[2000];
    (void)state;
    snprintf(command, sizeof command,
             "'%%s' generate --target '%s' --prompt - --max-new 2 --quiet <&- 2>&1", target);
    shell(command);
    expect(1, "standard input");
    snprintf(command, sizeof command, "'%%s' mask 'kv <= q' --q 9 --kv 9 2>&1 >&-");
    shell(command);
    expect(1, "standard output could not be written");
    shell("'%s' --help 2>&1 >/dev/full");
    expect(1, "standard output could not be written");
    snprintf(command, sizeof command, "'%%s' train '%s' 'run.out=%s' --quiet >&- 2>&-", recipe,
             at("closed"));
    shell(command);
    assert_int_equal(r.code, 0);
}

/* A limit on file sizes is a sentence, not the end of the process. */
static void a_file_size_limit_is_told(void **state) {
    char command[2000];
    (void)state;
    snprintf(command, sizeof command,
             "ulimit -f 4; '%%s' attend --random 1,2,2,64,64,64 --out '%s' 2>&1", at("big.st"));
    shell(command);
    expect(1, "File too large");
    assert_false(file_exists(at("big.st")));
}

/* Little stack or address space: an answer or a sentence, never a crash. The plain product keeps its blocks on the stack. */
static void small_limits_do_not_crash(void **state) {
    char command[2000];
    int refused = 0;
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* they reserve address space of their own */
#endif
    snprintf(command, sizeof command, "ulimit -s 128; PACELINE_BLAS=none '%%s' plan '%s' 2>&1",
             recipe);
    shell(command);
    assert_int_equal(r.code, 0);
    /* From where the loader gets through to where everything fits, which is another place with other libraries. */
    for (int kib = 10000; kib < 1000000; kib += kib / 20) {
        snprintf(command, sizeof command,
                 "ulimit -v %d; PACELINE_BLAS=none PACELINE_THREADS=2 '%%s' plan '%s' 2>&1", kib,
                 recipe);
        shell(command);
        if (r.code == 127) continue; /* not even the loader got through */
        if (r.code != 0 && r.code != 1) fail_msg("ulimit -v %d: exit %d\n%s", kib, r.code, r.text);
        if (r.code == 0) break;
        refused++;
    }
    assert_int_equal(r.code, 0);
    assert_true(refused > 0);
}

/* What regenerate finds at --out and did not write stays as it is, to the byte. */
static void files_that_are_not_answers_are_left_alone(void **state) {
    static const char *const texts[] = {"one line\nand an open end", "no line end at all",
                                        "{\"id\":\"x\",\"mine\":1}\n{\"id\": 2"};
    char *now;
    size_t n;
    (void)state;
    for (int i = 0; i < 3; i++) {
        files_text(&dir, "mine.txt", texts[i]);
        RUN("regenerate", "--target", target, "--prompts", prompts, "--max-new", "2", "--out",
            at("mine.txt"));
        expect(1, "mine.txt");
        assert_int_equal(file_read(at("mine.txt"), &now, &n), 0);
        assert_string_equal(now, texts[i]);
        free(now);
    }
    RUN("regenerate", "--target", target, "--prompts", prompts, "--max-new", "2", "--out",
        "/dev/full");
    expect(1, "no regular file");
    /* The same id with another text is another prompt. */
    RUN("regenerate", "--target", target, "--prompts", prompts, "--max-new", "2", "--out",
        at("kept.jsonl"));
    assert_int_equal(r.code, 0);
    files_text(&dir, "changed.jsonl", "{\"prompt\": \"one!\"}\n{\"prompt\": \"two\"}\n");
    RUN("regenerate", "--target", target, "--prompts", at("changed.jsonl"), "--max-new", "2",
        "--out", at("kept.jsonl"));
    expect(1, "another text of prompt");
    int fd = open(at("kept.jsonl"), O_RDWR);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    RUN("regenerate", "--target", target, "--prompts", prompts, "--max-new", "2", "--out",
        at("kept.jsonl"));
    expect(1, "another process");
    close(fd);
}

/* Nothing that was asked for is dropped or read as something else. */
static void a_scale_of_zero_is_zero(void **state) {
    (void)state; /* log 8 for every row: all keys weigh the same */
    RUN("attend", "--random", "1,1,1,4,8,8", "--scale", "0");
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.text, "mean lse 2.079442"));
}

static void options_without_effect_are_refused(void **state) {
    (void)state;
    run_program(&r, (const char *const[]){"PACELINE_LOG=loud", NULL},
                (const char *const[]){"mask", "kv < 3", "--q", "8", "--kv", "8", NULL});
    expect(2, "PACELINE_LOG is 'loud'");
    RUN("mask", "kv < n", "--q", "8", "--kv", "8", "--let", "n=99999999999999999999");
    expect(2, "64 bits");
    RUN("mask", "kv < n", "--q", "8", "--kv", "8", "--let", "n=3", "--let", "m=4");
    expect(2, "does not use `m`");
    RUN("generate", "--target", target, "--prompt", "x", "--raw", "--system", "y");
    expect(2, "--system");
    RUN("generate", "--target", target, "--prompt", "x", "--raw", "--template", "auto");
    expect(2, "--template");
}

/* A run writes recipe.yaml, best and drafter: not among files that are somebody's. */
static void a_folder_of_other_files_is_no_run_folder(void **state) {
    char set[800], *before, *after;
    size_t n;
    (void)state;
    snprintf(set, sizeof set, "run.out=%s", dir.path);
    make_recipe("recipe.yaml", "drafter: {layers: 1, block_size: 4}\nrun: {out: run}\n");
    assert_int_equal(file_read(at("recipe.yaml"), &before, &n), 0);
    RUN("train", at("recipe.yaml"), set, "--quiet");
    expect(1, "is no run folder");
    assert_int_equal(file_read(at("recipe.yaml"), &after, &n), 0);
    assert_string_equal(before, after);
    assert_false(file_exists(at("lock")));
    free(before);
    free(after);
}

static void probe_with(const int64_t *document, int64_t n_document, int with_loss, int with_anchors,
                       const char *drafter) {
    static int64_t tokens[200], loss[200], anchors[] = {1, 3};
    tensor t[4] = {{"tokens", DT_I64, 1, {n_document > 100 ? 200 : 8}, tokens},
                   {"document", DT_I64, 1, {n_document}, document}};
    int n = 2;
    for (int i = 0; i < 200; i++) tokens[i] = 30 + i % 40, loss[i] = 1;
    if (with_loss) t[n++] = (tensor){"loss_mask", DT_I64, 1, {t[0].dim[0]}, loss};
    if (with_anchors) t[n++] = (tensor){"anchors", DT_I64, 1, {2}, anchors};
    assert_int_equal(safetensors_write(at("probe.st"), t, n, NULL, 0), 0);
    RUN("probe", "--target", target, "--in", at("probe.st"), "--out", at("probe-out.st"),
        drafter ? "--drafter" : "--threads", drafter ? drafter : "1");
}

/* Rows that the numbers would be meaningless for. */
static void rows_of_probe_are_checked(void **state) {
    static const int64_t falling[8] = {0, 0, 1, 1, 0, 0, 0, 0}, one[200] = {0};
    char drafter[800];
    (void)state;
    snprintf(drafter, sizeof drafter, "%s/drafter", at("run"));
    probe_with(falling, 8, 1, 1, NULL);
    expect(1, "probe.st: document[4] is smaller");
    probe_with(one, 5, 1, 1, NULL);
    expect(1, "probe.st: tensor 'document' has shape [5]");
    probe_with(one, 200, 1, 1, NULL);
    expect(1, "context of 96");
    probe_with(one, 8, 0, 1, drafter);
    expect(1, "'loss_mask' is missing");
    probe_with(one, 8, 1, 0, drafter);
    expect(1, "'anchors' is missing");
    assert_false(file_exists(at("probe-out.st")));
    probe_with(one, 8, 1, 1, drafter);
    assert_int_equal(r.code, 0);
}

/* Before the work begins, not after it. */
static void outputs_are_tried_first(void **state) {
    (void)state;
    RUN("attend", "--in", "/nonexistent/in.st", "--out", "/nonexistent/out.st");
    expect(1, "/nonexistent/out.st");
    RUN("bench", "--target", "/nonexistent/t.gguf", "--drafter", "d", "--prompts", "/nonexistent/p",
        "--json", "/nonexistent/j.json");
    expect(1, "/nonexistent/j.json");
    RUN("probe", "--target", "/nonexistent/t.gguf", "--in", "/nonexistent/i.st", "--out",
        "/nonexistent/o.st");
    expect(1, "/nonexistent/o.st");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_streams_are_errors),
        cmocka_unit_test(a_file_size_limit_is_told),
        cmocka_unit_test(small_limits_do_not_crash),
        cmocka_unit_test(files_that_are_not_answers_are_left_alone),
        cmocka_unit_test(a_scale_of_zero_is_zero),
        cmocka_unit_test(options_without_effect_are_refused),
        cmocka_unit_test(outputs_are_tried_first),
        cmocka_unit_test(usage_errors_have_code_2),
        cmocka_unit_test(masks_point_at_the_fault),
        cmocka_unit_test(lists_of_tiles_come_in_pairs),
        cmocka_unit_test(recipes_point_at_the_fault),
        cmocka_unit_test(files_are_named),
        cmocka_unit_test(other_models_are_refused_by_name),
        cmocka_unit_test(prompts_longer_than_the_context_are_refused),
        cmocka_unit_test(a_drafter_for_another_target_is_refused),
        cmocka_unit_test(a_folder_of_other_files_is_no_run_folder),
        cmocka_unit_test(rows_of_probe_are_checked),
        cmocka_unit_test(outputs_that_cannot_be_written_are_named_and_left_alone),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
