/* paceline probe: model numbers of one row, for a check from outside: logits, taps, features, hidden states, loss, gradients.
 *
 * Everything is computed in fp32 by the code that trains; nothing here is a second implementation. With a GPU, attention is
 * computed there, so that its kernels can be judged inside a model. The target is
 * rounded to bf16 once on load, as always, unless --keep-f32. */
#include "cli/command.h"
#include "cli/probe_in.h"
#include "cli/open_dev.h"
#include "core/file.h"
#include "dev/dev_cuda.h"
#include "decode/decode.h"
#include "model/drafter.h"
#include "train/labels.h"
#include <stdio.h>
#include <string.h>

static const arg_spec spec[] = {
    {"--target", ARG_TEXT, "T", "target: a GGUF file or a Hugging Face folder (needed)"},
    {"--drafter", ARG_TEXT, "D", "drafter folder"},
    {"--in", ARG_TEXT, "I.safetensors",
     "int64 tokens [n], document [n] (default: one document); with a drafter also loss_mask [n], anchors [N] (needed)"},
    {"--out", ARG_TEXT, "O.safetensors", "where the numbers go (needed)"},
    {"--taps", ARG_TEXT, "A,B,...",
     "target layers to capture, counted from 0 (default: the drafter's)"},
    {"--gamma", ARG_REAL, "X", "decay of the loss over slots (default 4)"},
    {"--backward", ARG_FLAG, NULL, "also grad.<tensor> of the loss for every drafter tensor"},
    {"--keep-f32", ARG_FLAG, NULL, "keep the target's weights as they are in the file, in fp32"},
    {"--device", ARG_TEXT, "cpu|cuda:N",
     "where attention is computed (default cpu); on a GPU by its fp32 kernels, all else on the CPU"},
    {"--threads", ARG_INT, "N", "CPU threads (default: usable CPUs)"},
    {NULL, ARG_FLAG, NULL, NULL},
};

enum { MAX_OUT = 1024 };
typedef struct job {
    dev *d;
    cuda_system *sys; /* NULL: the CPU */
    target *t;
    arena *mem;
    st_file *file;
    probe_in in;
    int64_t taps[DRAFTER_MAX_TAPS];
    int n_taps;
    float *tap_values; /* [n, n_taps*H] */
    drafter_config cfg;
    drafter_layout layout;
    float *params, *grads;
    tensor out[MAX_OUT];
    int n_out;
} job;

static err put(job *j, const char *name, int ndim, const int64_t *dim, const float *data) {
    tensor *t = &j->out[j->n_out];
    char *copy;
    if (j->n_out == MAX_OUT) return err_set(ERR_INTERNAL, "more than %d output tensors", MAX_OUT);
    TRY(arena_strdup(j->mem, name, &copy));
    *t = (tensor){.name = copy, .type = DT_F32, .ndim = ndim, .data = data};
    for (int i = 0; i < ndim; i++) t->dim[i] = dim[i];
    j->n_out++;
    return ERR_OK;
}

static err put_taps(job *j) {
    int64_t n = j->in.row.n, h = target_get_config(j->t)->hidden;
    for (int i = 0; i < j->n_taps; i++) {
        float *one;
        char name[32];
        TRY(arena_alloc_raw(j->mem, (size_t)(n * h), sizeof *one, &one));
        for (int64_t r = 0; r < n; r++)
            memcpy(one + r * h, j->tap_values + (r * j->n_taps + i) * h, (size_t)h * sizeof *one);
        snprintf(name, sizeof name, "tap.%lld", (long long)j->taps[i]);
        TRY(put(j, name, 2, (int64_t[]){n, h}, one));
    }
    return ERR_OK;
}

static err run_target(job *j) {
    const target_config *c = target_get_config(j->t);
    const data_row *r = &j->in.row;
    float *logits;
    TRY(arena_alloc(j->mem, (size_t)(r->n * c->vocab), sizeof *logits, &logits));
    TRY(arena_alloc(j->mem, (size_t)(r->n * j->n_taps * c->hidden), sizeof *j->tap_values,
                    &j->tap_values));
    TRY(target_forward(j->t, j->d,
                       &(target_row){.n = r->n,
                                     .tokens = r->tokens,
                                     .document = r->document,
                                     .position = r->position,
                                     .taps = j->taps,
                                     .n_taps = j->n_taps,
                                     .taps_out = j->tap_values,
                                     .logits_out = logits},
                       j->mem));
    TRY(put(j, "logits", 2, (int64_t[]){r->n, c->vocab}, logits));
    return put_taps(j);
}

/* The training loss over all slots, and its gradient at the drafter's hidden states. */
static err loss_and_gradient(job *j, const float *hidden, double gamma, float *d_hidden) {
    const packed *head = target_head(j->t);
    int64_t bs = j->cfg.block_size, rows = j->in.n_anchors * bs, h = j->cfg.hidden;
    int32_t *label;
    float *weight, *nll, *loss, decay[DECODE_MAX_BLOCK];
    void *work;
    double sum = 0, total = 0;
    TRY(arena_alloc(j->mem, (size_t)rows, sizeof *label, &label));
    TRY(arena_alloc(j->mem, (size_t)rows, sizeof *weight, &weight));
    TRY(arena_alloc(j->mem, (size_t)rows, sizeof *nll, &nll));
    TRY(arena_alloc(j->mem, 1, sizeof *loss, &loss));
    TRY(arena_alloc_raw(j->mem, nn_head_bytes(j->d, head, rows), 1, &work));
    labels_decay(gamma, bs, decay);
    labels_make(&j->in.row, j->in.anchor, j->in.n_anchors, bs, decay, label, weight);
    for (int64_t i = 0; i < rows; i++) total += (double)weight[i];
    TRY(nn_head_loss(j->d, &(head_args){.w = head,
                                        .vocab = target_get_config(j->t)->vocab,
                                        .n = rows,
                                        .x = hidden,
                                        .ldx = h,
                                        .label = label,
                                        .weight = weight,
                                        .scale = total > 0 ? (float)(1 / total) : 0,
                                        .nll = nll,
                                        .dx = d_hidden,
                                        .lddx = h,
                                        .workspace = work}));
    for (int64_t i = 0; i < rows; i++) sum += (double)weight[i] * (double)nll[i];
    *loss = total > 0 ? (float)(sum / total) : 0;
    TRY(put(j, "slot_nll", 2, (int64_t[]){j->in.n_anchors, bs}, nll));
    return put(j, "loss", 0, NULL, loss);
}

static err put_gradients(job *j) {
    for (int i = 0; i < j->layout.n; i++) {
        const drafter_tensor *t = &j->layout.t[i];
        char name[80];
        snprintf(name, sizeof name, "grad.%s", t->name);
        TRY(put(j, name, t->ndim, t->dim, j->grads + t->offset));
    }
    return ERR_OK;
}

static err run_drafter(job *j, double gamma, int backward) {
    const data_row *r = &j->in.row;
    int64_t rows = j->in.n_anchors * j->cfg.block_size, h = j->cfg.hidden;
    drafter_row dr = {.n = r->n,
                      .tokens = r->tokens,
                      .document = r->document,
                      .position = r->position,
                      .n_anchors = j->in.n_anchors,
                      .anchor = j->in.anchor,
                      .taps = j->tap_values};
    drafter_acts *acts = NULL;
    float *hidden, *features, *d_hidden;
    TRY(arena_alloc(j->mem, (size_t)(rows * h), sizeof *hidden, &hidden));
    TRY(arena_alloc(j->mem, (size_t)(rows * h), sizeof *d_hidden, &d_hidden));
    TRY(arena_alloc(j->mem, (size_t)(r->n * h), sizeof *features, &features));
    TRY(drafter_forward(&j->layout, j->params, j->t, j->d, &dr, hidden, features,
                        backward ? &acts : NULL, j->mem));
    TRY(put(j, "features", 2, (int64_t[]){r->n, h}, features));
    TRY(put(j, "hidden", 2, (int64_t[]){rows, h}, hidden));
    TRY(loss_and_gradient(j, hidden, gamma, d_hidden));
    if (!backward) return ERR_OK;
    TRY(arena_alloc(j->mem, (size_t)j->layout.total, sizeof *j->grads, &j->grads));
    TRY(drafter_backward(&j->layout, j->params, j->d, &dr, acts, d_hidden, j->grads, j->mem));
    return put_gradients(j);
}

static err load_drafter(job *j, const char *dir) {
    dtype stored;
    TRY(drafter_read_config(&j->cfg, dir));
    TRY(drafter_check_target(&j->cfg, j->t));
    TRY(drafter_layout_make(&j->layout, &j->cfg, j->mem));
    TRY(arena_alloc(j->mem, (size_t)j->layout.total, sizeof *j->params, &j->params));
    TRY(drafter_read_params(&j->layout, dir, j->params, &stored));
    j->n_taps = j->cfg.n_taps;
    memcpy(j->taps, j->cfg.taps, sizeof j->taps);
    return ERR_OK;
}

static err parse_taps(job *j, const char *text) {
    int64_t layers = target_get_config(j->t)->layers;
    while (*text) {
        size_t n = strcspn(text, ",");
        char number[24] = "";
        int64_t v;
        if (n < sizeof number) memcpy(number, text, n);
        if (!args_parse_int(number, &v) || v < 0 || v >= layers)
            return err_set(ERR_USAGE, "--taps needs layer numbers from 0 to %lld, not '%.*s'",
                           (long long)layers - 1, (int)n, text);
        if (j->n_taps == DRAFTER_MAX_TAPS)
            return err_set(ERR_USAGE, "--taps names more than %d layers", DRAFTER_MAX_TAPS);
        if (j->n_taps && v <= j->taps[j->n_taps - 1])
            return err_set(ERR_USAGE, "--taps must ascend");
        j->taps[j->n_taps++] = v;
        text += n + (text[n] == ',');
    }
    return ERR_OK;
}

/* What a drafter is judged by has no default: without anchors or loss mask every number would be 0. */
static err check_input(const job *j, int with_drafter) {
    static const char *const needed[] = {"anchors", "loss_mask"};
    const data_row *r = &j->in.row;
    const int64_t context = target_get_config(j->t)->context;
    for (int i = 0; with_drafter && i < 2; i++)
        if (!safetensors_find(j->file, needed[i]))
            return err_set(ERR_SHAPE, "%s: tensor '%s' is missing; --drafter needs it",
                           safetensors_path(j->file), needed[i]);
    for (int64_t i = 0; i < r->n; i++)
        if (r->position[i] >= context)
            return err_set(
                ERR_RANGE,
                "%s: the document of tokens[%lld] is longer than the target's context of "
                "%lld tokens; cut it",
                safetensors_path(j->file), (long long)i, (long long)context);
    return ERR_OK;
}

static err prepare(job *j, const args *a) {
    const char *path, *in, *out, *dir = args_text(a, "--drafter", NULL),
                                 *taps = args_text(a, "--taps", NULL);
    TRY(args_need(a, "--target", &path));
    TRY(args_need(a, "--in", &in));
    TRY(args_need(a, "--out", &out));
    if (args_has(a, "--backward") && !dir)
        return err_set(ERR_USAGE, "--backward needs --drafter: the target is frozen");
    if (dir && taps)
        return err_set(ERR_USAGE, "--taps is given and the drafter has its own: choose one");
    TRY(file_check_output(out));
    TRY(arena_create(&j->mem, "probe", 0));
    TRY(open_dev_any(a, &j->d, &j->sys));
    TRY(target_load(&j->t, j->d, path, &(target_options){.keep_f32 = args_has(a, "--keep-f32")}));
    TRY(safetensors_open(&j->file, in));
    TRY(probe_in_load(&j->in, j->file, target_get_config(j->t)->vocab, j->mem));
    TRY(check_input(j, dir != NULL));
    if (taps) TRY(parse_taps(j, taps));
    return dir ? load_drafter(j, dir) : ERR_OK;
}

static void tell(const job *j, const char *path) {
    printf("%d tensors in %s\n", j->n_out, path);
    if (j->sys)
        printf("attention was computed on cuda:%d (%s, %s) in fp32, everything else on the CPU\n",
               dev_cuda_index(j->d), dev_cuda_info(j->d)->name, dev_arch(j->d));
}

static err run(const args *a) {
    job *j;
    double gamma;
    TRY(args_real(a, "--gamma", 4, &gamma));
    if (gamma <= 0) return err_set(ERR_USAGE, "--gamma must be above 0");
    TRY(mem_new(1, sizeof *j, &j));
    err e = prepare(j, a);
    if (!e) e = run_target(j);
    if (!e && j->params) e = run_drafter(j, gamma, args_has(a, "--backward"));
    if (!e) e = safetensors_write(args_text(a, "--out", NULL), j->out, j->n_out, NULL, 0);
    if (!e) tell(j, args_text(a, "--out", NULL));
    safetensors_close(j->file);
    target_free(j->t);
    dev_close(j->d);
    cuda_system_close(j->sys);
    arena_destroy(j->mem);
    mem_free(j);
    return e;
}

const command command_probe = {
    .name = "probe",
    .usage = "probe --target T [--drafter D] --in I.safetensors --out O.safetensors [options]",
    .summary = "model numbers of one row, for a check from outside",
    .details =
        "out: logits [n,V], tap.<id> [n,H]; with a drafter features [n,H], hidden [N*block_size,H],\n"
        "slot_nll [N,block_size] (0 where a slot carries no loss), loss, and with --backward grad.<tensor>.",
    .spec = spec,
    .run = run,
};
