/* A CUDA plan in words: kernel and why, tiles, proofs, bytes beside the tensors, bytes of a dense run.
 *
 * Says what was decided and what it costs; decides nothing itself. */
#include "flex/blockmask_lists.h"
#include "flex/flex_cuda_private.h"

static err explain_cut(const char *name, const flex_cuda__cut *c, str *out) {
    return str_printf(
        out, "  %s: blocks of %d threads, %d x %d cells a step, %u bytes of shared memory\n", name,
        32 * c->warps, c->bm, c->bn, c->shared);
}

static err explain_kernels(const flex_cuda_plan *p, str *out) {
    const flex_problem *q = &p->p;
    if (p->plain)
        return str_printf(out,
                          "kernels: plain fp32, a warp for each row, because tensor cores would "
                          "round fp32; for checks, not for speed\n");
    TRY(str_printf(out,
                   "kernels: tensor cores (mma.sync, sm_80 and later), %s with fp32 sums, head "
                   "dimensions %lld and %lld\n",
                   dtype_name(q->type), (long long)q->dim, (long long)q->v_dim));
    TRY(explain_cut("forward", &p->forward, out));
    TRY(explain_cut("gradients by queries", &p->dq, out));
    return explain_cut("gradients by keys", &p->dkv, out);
}

static err explain_proofs(const flex_cuda_plan *p, str *out) {
    if (p->p.score) TRY(str_printf(out, "score: integers in %d bits\n", p->score_narrow ? 32 : 64));
    if (p->check)
        TRY(str_printf(out,
                       "loads: not all proven inside their arrays; a kernel of its own looks at "
                       "every visible cell before forward\n"));
    for (int i = 0; i < p->n_wanted; i++) {
        const flex_gpu_capture *w = &p->wanted[i];
        TRY(str_printf(out, "gradient of `%s`, %lld elements: %s %lld warps\n",
                       expr_capture(p->p.score, w->capture)->name, w->elements,
                       w->owners ? "added in place by" : "summed in double in slots of", w->slots));
    }
    return ERR_OK;
}

err flex_cuda_explain(const flex_cuda_plan *p, str *out) {
    const flex_problem *q = &p->p;
    const double tiles = (double)(p->mask.empty + p->mask.partial + p->mask.full),
                 dense = 4.0 * (double)q->batch * (double)q->q_heads * (double)q->q_len *
                         (double)q->kv_len;
    char a[24], b[24], c[24];
    TRY(explain_kernels(p, out));
    TRY(blockmask_explain(&p->mask, out));
    TRY(explain_proofs(p, out));
    return str_printf(out,
                      "share of tiles visited: %.4f\nbytes beside the tensors: %s of tables, %s of "
                      "workspace; dense fp32 scores would take %s\n",
                      tiles > 0 ? 1.0 - (double)p->mask.empty / tiles : 0.0,
                      str_bytes((double)p->tables_bytes, a), str_bytes((double)p->workspace, b),
                      str_bytes(dense, c));
}
