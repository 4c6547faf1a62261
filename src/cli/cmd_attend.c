/* paceline attend: one attention problem from a file or at random, forward and on request backward.
 * Writes o and lse (and dq, dk, dv, d_NAME of the score's captured floats and of the sinks) as safetensors; --explain tells what was chosen and what it took.
 * It is a thin shell: checks of the problem are those of flex. */
#include "cli/attend_in.h"
#include "cli/attend_picture.h"
#include "cli/captures.h"
#include "cli/command.h"
#include "cli/open_dev.h"
#include "core/clock.h"
#include "core/file.h"
#include "dev/dev_cuda.h"
#include "flex/flex_cuda_host.h"
#include "flex/mods.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static const arg_spec spec[] = {
    {"--in", ARG_TEXT, "FILE", "safetensors with q, k, v (do, dlse); others are captured arrays"},
    {"--random", ARG_TEXT, "B,Hq,Hkv,L,S,D",
     "draw q, k, v (and do) instead; --in then gives captures only"},
    {"--type", ARG_TEXT, "f32|bf16", "type of drawn tensors (default f32)"},
    {"--seed", ARG_INT, "N", "seed of drawn tensors (default 1)"},
    {"--mask", ARG_TEXT, "E", "mask expression (default: everything visible)"},
    {"--score", ARG_TEXT, "E", "score expression over s, the scaled logit (default: s)"},
    {"--mask-mod", ARG_TEXT, "NAME", "a mask of the gallery instead (mask --mods lists it)"},
    {"--score-mod", ARG_TEXT, "NAME", "a score of the gallery instead"},
    {"--sinks", ARG_TEXT, "NAME",
     "tensor of --in with one logit a query head, added to the denominator"},
    {"--let", ARG_MANY, "NAME=VALUE", "a captured scalar; may be repeated"},
    {"--scale", ARG_REAL, "X", "factor of q.k (default 1/sqrt(D))"},
    {"--backward", ARG_FLAG, NULL, "also gradients; do is all ones when the file has none"},
    {"--out", ARG_TEXT, "FILE",
     "write o, lse and with --backward dq, dk, dv and d_NAME of captured floats"},
    {"--png", ARG_TEXT, "FILE", "draw the weights of one head of batch 0 as a PNG picture"},
    {"--png-head", ARG_INT, "H", "the query head to draw (default 0)"},
    {"--device", ARG_TEXT, "cpu|cuda:N",
     "where to compute (default cpu); on a GPU o and gradients are rounded to the tensors' type"},
    {"--threads", ARG_INT, "N", "CPU threads (default: usable CPUs)"},
    {"--explain", ARG_FLAG, NULL,
     "print what was chosen and why, bytes taken, and what a dense run would take"},
    {NULL, ARG_FLAG, NULL, NULL},
};

typedef struct job {
    attend_in in;
    captures cap, score;
    float *sinks;
    st_file *file;
    arena *mem;
    dev *d;
    cuda_system *sys; /* NULL: the CPU */
    flex_problem problem;
    flex_plan *plan;     /* on the CPU */
    flex_cuda_host *gpu; /* on a GPU */
    flex_io io;
    int left;
    int backward;
    double plan_s, forward_s, backward_s;
} job;

static int64_t capture_elements(const captures *c, int i) {
    return expr_value_count(&c->value[i], c->decl[i].ndim);
}

/* Room for the gradients of captured floats and sinks. */
static err learned(job *j) {
    for (int i = 0; i < j->score.n; i++) {
        if (j->score.decl[i].type != EXPR_FLOAT) continue;
        if (j->sinks && strcmp(j->score.decl[i].name, "sinks") == 0)
            return err_set(ERR_USAGE, "the gradients of --sinks and of the captured value 'sinks' "
                                      "would both be written as d_sinks; rename the value");
        TRY(arena_alloc(j->mem, (size_t)capture_elements(&j->score, i), sizeof(float),
                        &j->io.d_capture[i]));
    }
    if (!j->sinks) return ERR_OK;
    return arena_alloc(j->mem, (size_t)j->in.q_heads, sizeof(float), &j->io.d_sinks);
}

static err workspace(job *j) {
    if (!j->plan) return ERR_OK;
    size_t ws = flex_forward_workspace(j->plan, dev_threads(j->d)),
           wb = flex_backward_workspace(j->plan, dev_threads(j->d));
    return arena_alloc_raw(j->mem, j->backward && wb > ws ? wb : ws, 1, &j->io.workspace);
}

static err outputs(job *j) {
    const attend_in *in = &j->in;
    int64_t rows = in->batch * in->q_heads * in->q_len,
            keys = in->batch * in->kv_heads * in->kv_len;
    float *ones;
    TRY(arena_alloc(j->mem, (size_t)(rows * in->v_dim), sizeof(float), &j->io.o.data));
    TRY(arena_alloc(j->mem, (size_t)rows, sizeof(float), &j->io.lse));
    TRY(workspace(j));
    j->io.q = attend_in_view(in->type, in->q, in->q_heads, in->q_len, in->dim);
    j->io.k = attend_in_view(in->type, in->k, in->kv_heads, in->kv_len, in->dim);
    j->io.v = attend_in_view(in->type, in->v, in->kv_heads, in->kv_len, in->v_dim);
    j->io.o = (flex_out){j->io.o.data, in->q_heads * in->q_len * in->v_dim, in->q_len * in->v_dim,
                         in->v_dim};
    j->io.left = &j->left;
    if (!j->backward) return ERR_OK;
    if (!in->d_o) {
        TRY(arena_alloc_raw(j->mem, (size_t)(rows * in->v_dim), sizeof *ones, &ones));
        for (int64_t i = 0; i < rows * in->v_dim; i++) ones[i] = 1;
        j->in.d_o = ones;
    }
    TRY(arena_alloc(j->mem, (size_t)(rows * in->dim), sizeof(float), &j->io.dq.data));
    TRY(arena_alloc(j->mem, (size_t)(keys * in->dim), sizeof(float), &j->io.dk.data));
    TRY(arena_alloc(j->mem, (size_t)(keys * in->v_dim), sizeof(float), &j->io.dv.data));
    j->io.d_o = attend_in_view(DT_F32, in->d_o, in->q_heads, in->q_len, in->v_dim);
    j->io.d_lse = in->d_lse;
    j->io.dq =
        (flex_out){j->io.dq.data, in->q_heads * in->q_len * in->dim, in->q_len * in->dim, in->dim};
    j->io.dk = (flex_out){j->io.dk.data, in->kv_heads * in->kv_len * in->dim, in->kv_len * in->dim,
                          in->dim};
    j->io.dv = (flex_out){j->io.dv.data, in->kv_heads * in->kv_len * in->v_dim,
                          in->kv_len * in->v_dim, in->v_dim};
    return learned(j);
}

static err make_problem(job *j, const args *a) {
    const attend_in *in = &j->in;
    double scale;
    TRY(args_real(a, "--scale", 0, &scale));
    flex_problem p = {.batch = in->batch,
                      .q_heads = in->q_heads,
                      .kv_heads = in->kv_heads,
                      .q_len = in->q_len,
                      .kv_len = in->kv_len,
                      .dim = in->dim,
                      .v_dim = in->v_dim,
                      .type = in->type,
                      .scale = (float)scale,
                      .zero_scale = args_has(a, "--scale"),
                      .mask = j->cap.program,
                      .env = j->cap.program ? &j->cap.env : NULL,
                      .score = j->score.program,
                      .score_env = j->score.program ? &j->score.env : NULL,
                      .sinks = j->sinks};
    for (int i = 0; j->backward && i < j->score.n; i++)
        p.score_grads |= (unsigned)(j->score.decl[i].type == EXPR_FLOAT) << i;
    j->problem = p;
    return ERR_OK;
}

/* On the CPU the plan says how much workspace the outputs need; on a GPU it is made when they are there. */
static err make_plan(job *j) {
    double t0 = clock_seconds();
    if (!j->sys) TRY(flex_plan_create(&j->plan, j->d, &j->problem, j->mem));
    TRY(outputs(j));
    if (j->sys) TRY(flex_cuda_host_open(&j->gpu, j->d, &j->problem, &j->io, j->backward, j->mem));
    j->plan_s = clock_seconds() - t0;
    return ERR_OK;
}

static err compute(job *j) {
    double t0 = clock_seconds();
    TRY(j->gpu ? flex_cuda_host_forward(j->gpu) : flex_forward(j->plan, j->d, &j->io));
    j->forward_s = clock_seconds() - t0;
    if (!j->backward) return ERR_OK;
    t0 = clock_seconds();
    TRY(j->gpu ? flex_cuda_host_backward(j->gpu) : flex_backward(j->plan, j->d, &j->io));
    j->backward_s = clock_seconds() - t0;
    return ERR_OK;
}

/* d_NAME, of the captured value's shape; a scalar's has one element. */
static err add_learned(const job *j, tensor *t, int *n) {
    for (int i = 0; i < j->score.n; i++) {
        const expr_decl *d = &j->score.decl[i];
        str name = {0};
        char *kept;
        if (!j->io.d_capture[i]) continue;
        TRY(str_printf(&name, "d_%s", d->name));
        err e = arena_strdup(j->mem, name.s, &kept);
        str_free(&name);
        TRY(e);
        t[*n] = (tensor){kept, DT_F32, d->ndim ? d->ndim : 1, {1}, j->io.d_capture[i]};
        for (int k = 0; k < d->ndim; k++) t[*n].dim[k] = j->score.value[i].dim[k];
        ++*n;
    }
    if (j->io.d_sinks) t[(*n)++] = (tensor){"d_sinks", DT_F32, 1, {j->in.q_heads}, j->io.d_sinks};
    return ERR_OK;
}

static err write_out(const job *j, const char *path) {
    const attend_in *in = &j->in;
    int n = j->backward ? 5 : 2;
    tensor t[5 + EXPR_MAX_CAPTURES + 1] = {
        {"o", DT_F32, 4, {in->batch, in->q_heads, in->q_len, in->v_dim}, j->io.o.data},
        {"lse", DT_F32, 3, {in->batch, in->q_heads, in->q_len}, j->io.lse},
        {"dq", DT_F32, 4, {in->batch, in->q_heads, in->q_len, in->dim}, j->io.dq.data},
        {"dk", DT_F32, 4, {in->batch, in->kv_heads, in->kv_len, in->dim}, j->io.dk.data},
        {"dv", DT_F32, 4, {in->batch, in->kv_heads, in->kv_len, in->v_dim}, j->io.dv.data},
    };
    if (j->backward) TRY(add_learned(j, t, &n));
    return safetensors_write(path, t, n, NULL, 0);
}

static err explain_gpu(const job *j) {
    str s = {0};
    err e = flex_cuda_host_explain(j->gpu, &s);
    if (!e) printf("%s", s.s);
    str_free(&s);
    return e;
}

static err explain(const job *j) {
    str s = {0};
    char took[24], dense[24];
    arena_stats st;
    if (j->gpu) return explain_gpu(j);
    err e = flex_plan_explain(j->plan, &s);
    if (e) return e;
    arena_get_stats(j->mem, &st);
    printf("%s", s.s ? s.s : "");
    printf(
        "taken      %s in all: inputs, outputs, block mask and workspace, and %s of device scratch\n",
        str_bytes((double)st.peak, took), str_bytes((double)dev_bytes(j->d), dense));
    printf("dense      %s for one fp32 score matrix, which is never made\n",
           str_bytes(flex_dense_bytes(j->plan), dense));
    str_free(&s);
    return ERR_OK;
}

/* Rows that saw something and have no finite LSE: their q or k hold NaN or infinity, or a scale is beyond fp32. */
static void report_not_finite(const job *j) {
    int64_t n = j->in.batch * j->in.q_heads * j->in.q_len, bad = 0, first = 0;
    for (int64_t i = n - 1; i >= 0; i--) {
        if (j->io.lse[i] < INFINITY) continue;
        bad++;
        first = i;
    }
    if (!bad) return;
    fprintf(
        stderr,
        "paceline attend: scores are not finite in %lld of %lld rows, first b %lld, h %lld, q %lld; "
        "look for NaN or infinity in q and k, or a scale too large\n",
        (long long)bad, (long long)n, (long long)(first / j->in.q_len / j->in.q_heads),
        (long long)(first / j->in.q_len % j->in.q_heads), (long long)(first % j->in.q_len));
}

static void report(const job *j) {
    double sum = 0;
    int64_t n = j->in.batch * j->in.q_heads * j->in.q_len, empty = 0, finite = 0;
    for (int64_t i = 0; i < n; i++) {
        empty += j->io.lse[i] == -INFINITY;
        if (!isfinite(j->io.lse[i])) continue;
        finite++;
        sum += (double)j->io.lse[i];
    }
    printf("plan %.3f ms, forward %.3f ms", 1e3 * j->plan_s, 1e3 * j->forward_s);
    if (j->backward) printf(", backward %.3f ms", 1e3 * j->backward_s);
    if (j->gpu) printf(" (copies between host and device counted in)");
    printf("; mean lse %.6f, rows that see nothing %lld\n", finite ? sum / (double)finite : 0.0,
           (long long)empty);
    report_not_finite(j);
    if (j->left)
        fprintf(
            stderr,
            "paceline attend: a load left its array and gave 0, first at b %lld, h %lld, q %lld, kv %lld\n",
            (long long)j->io.left_cell[0], (long long)j->io.left_cell[1],
            (long long)j->io.left_cell[2], (long long)j->io.left_cell[3]);
}

/* The expression given, or the gallery's, or NULL. */
static err choose_text(const args *a, const char *given, const char *by_name, expr_role role,
                       const char **text) {
    const char *name = args_text(a, by_name, NULL);
    const mod *m;
    *text = args_text(a, given, NULL);
    if (!name) return ERR_OK;
    if (*text) return err_set(ERR_USAGE, "%s and %s are given: choose one", given, by_name);
    TRY(mods_need(&m, name, role));
    *text = m->text;
    return ERR_OK;
}

static err execute(job *j, const args *a) {
    const char *let[ARGS_MAX_MANY],
        *in = args_text(a, "--in", NULL), *mask = args_text(a, "--mask", NULL),
        *score = args_text(a, "--score", NULL), *png = args_text(a, "--png", NULL);
    int n_let = args_many(a, "--let", let, ARGS_MAX_MANY);
    int64_t head;
    j->backward = args_has(a, "--backward");
    TRY(args_int(a, "--png-head", 0, 0, INT32_MAX, &head));
    if (!png && args_has(a, "--png-head"))
        return err_set(ERR_USAGE, "--png-head is given without --png");
    TRY(choose_text(a, "--mask", "--mask-mod", EXPR_MASK, &mask));
    TRY(choose_text(a, "--score", "--score-mod", EXPR_SCORE, &score));
    if (!mask && !score && n_let)
        return err_set(ERR_USAGE, "--let is given without --mask or --score");
    if (args_has(a, "--out")) TRY(file_check_output(args_text(a, "--out", NULL)));
    if (png) TRY(file_check_output(png));
    TRY(arena_create(&j->mem, "attend", 0));
    TRY(open_dev_plain(a, &j->d, &j->sys));
    if (in) TRY(safetensors_open(&j->file, in));
    TRY(attend_in_load(&j->in, a, j->file, j->backward, j->mem));
    TRY(attend_in_sinks(&j->in, j->file, args_text(a, "--sinks", NULL), j->mem, &j->sinks));
    if (mask) TRY(captures_open(&j->cap, EXPR_MASK, mask, score, j->file, let, n_let));
    if (score) TRY(captures_open(&j->score, EXPR_SCORE, score, mask, j->file, let, n_let));
    TRY(make_problem(j, a));
    if (png) TRY(attend_picture_check(&j->problem, head));
    TRY(make_plan(j));
    TRY(compute(j));
    if (args_has(a, "--out")) TRY(write_out(j, args_text(a, "--out", NULL)));
    if (png)
        TRY(attend_picture_png(j->plan ? flex_plan_problem(j->plan) : &j->problem, &j->io, &j->cap,
                               &j->score, head, png, j->mem));
    if (args_has(a, "--explain")) TRY(explain(j));
    report(j);
    return ERR_OK;
}

static err run(const args *a) {
    job j = {0};
    err e = execute(&j, a);
    captures_close(&j.cap);
    captures_close(&j.score);
    safetensors_close(j.file);
    flex_cuda_host_close(j.gpu);
    dev_close(j.d);
    cuda_system_close(j.sys);
    arena_destroy(j.mem);
    return e;
}

const command command_attend = {
    .name = "attend",
    .usage = "attend (--in T.safetensors | --random B,Hq,Hkv,L,S,D) [options]",
    .summary = "one attention problem: forward, LSE and gradients under any mask and score",
    .details =
        "Example, a draft-block mask of 64 blocks of 16 over 1,024 context keys:\n"
        "  paceline attend --random 1,8,2,1024,2048,64 --explain --let ctx=1024 --let bs=16 \\\n"
        "    --mask 'let blk = q // bs; (kv < ctx && kv < 16 * blk) || (kv >= ctx && (kv - ctx) // bs == blk)'",
    .spec = spec,
    .min_pos = 0,
    .max_pos = 0,
    .run = run,
};
