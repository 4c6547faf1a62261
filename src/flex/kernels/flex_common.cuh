/* What all attention kernels share: elements, the walk over runs of tiles, cells.
 *
 * The text in front defines ELEMENT (0 fp32, 1 bf16, 2 fp16), D, DV, HAS_MASK, HAS_SCORE, and brings the hooks. */
#define INFINITE __int_as_float(0x7f800000)
#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f
#define ALL 0xffffffffu

#if ELEMENT == 0
typedef float element;
PX_FN float element_float(element x) { return x; }
PX_FN element element_of(float x) { return x; }
#else
typedef unsigned short element;
PX_FN float element_float(element x) { return ELEMENT == 1 ? px_bf16_bits(x) : px_f16_bits(x); }
PX_FN unsigned element_pair(float low, float high) {
    return ELEMENT == 1 ? ptx_bf16_pair(low, high) : ptx_f16_pair(low, high);
}
PX_FN element element_of(float x) { return (element)element_pair(x, 0.0f); }
#endif

PX_FN float fast_exp2(float x) { return ptx_exp2(x); }

/* Row l of (b, h). */
PX_FN element *view_row(const flex_gpu_view *v, px_i64 b, px_i64 h, px_i64 l) {
    return (element *)v->data + (b * v->sb + h * v->sh + l * v->sl);
}

/* Steps of so many keys (or queries) through the runs of one row (or column) of tiles. */
typedef struct walk {
    const flex_gpu_run *run, *end;
    px_i64 at, stop;
    int full;
} walk;

PX_FN px_i64 mask_line(const flex_gpu_args *a, px_i64 b, px_i64 h) {
    return (a->mask_batch == 1 ? 0 : b) * a->mask_heads + (a->mask_heads == 1 ? 0 : h);
}
PX_FN walk walk_runs(const px_i64 *start, const flex_gpu_run *runs, px_i64 line) {
    walk w;
    w.run = runs + start[line];
    w.end = runs + start[line + 1];
    w.at = w.stop = 0;
    w.full = 0;
    return w;
}
PX_FN walk walk_row(const flex_gpu_args *a, px_i64 b, px_i64 h, px_i64 tile) {
    return walk_runs(a->row_start, a->row_run, mask_line(a, b, h) * a->q_tiles + tile);
}
PX_FN walk walk_column(const flex_gpu_args *a, px_i64 b, px_i64 h, px_i64 tile) {
    return walk_runs(a->col_start, a->col_run, mask_line(a, b, h) * a->kv_tiles + tile);
}
/* To the next step below limit; 0 when there is none. */
PX_FN int walk_next(walk *w, int tile, int step, px_i64 limit) {
    w->at += step;
    if (w->at >= w->stop) {
        if (w->run == w->end) return 0;
        w->at = (px_i64)w->run->start * tile;
        w->stop = w->at + (px_i64)w->run->length * tile;
        if (w->stop > limit) w->stop = limit;
        w->full = w->run->full;
        w->run++;
    }
    return 1;
}

/* One cell by the hooks, nothing hoisted. */
PX_FN int cell_is_visible(const flex_gpu_args *a, px_i64 b, px_i64 h, px_i64 q, px_i64 kv, int full) {
    if (q >= a->q_len || kv >= a->kv_len) return 0;
#if HAS_MASK
    if (full) return 1;
    mask_tile_64 t;
    mask_q_64 r;
    mask_kv_64 c;
    mask_by_tile_64(&a->mask_env, b, h, &t);
    mask_by_q_64(&a->mask_env, &t, b, h, q, &r);
    mask_by_kv_64(&a->mask_env, &t, b, h, kv, &c);
    return mask_cell_64(&a->mask_env, &t, &r, &c, b, h, q, kv);
#else
    return 1;
#endif
}

/* The score of a scaled logit; *slope: its derivative, where SLOPE says that the text has it. */
PX_FN float cell_score(const flex_gpu_args *a, px_i64 b, px_i64 h, px_i64 q, px_i64 kv, float s, float *slope) {
    *slope = 1.0f;
#if HAS_SCORE && HAS_SLOPE
    slope_tile_64 t;
    slope_q_64 r;
    slope_kv_64 c;
    slope_by_tile_64(&a->score_env, b, h, &t);
    slope_by_q_64(&a->score_env, &t, b, h, q, &r);
    slope_by_kv_64(&a->score_env, &t, b, h, kv, &c);
    return slope_cell_64(&a->score_env, &t, &r, &c, b, h, q, kv, s, slope);
#elif HAS_SCORE
    score_tile_64 t;
    score_q_64 r;
    score_kv_64 c;
    score_by_tile_64(&a->score_env, b, h, &t);
    score_by_q_64(&a->score_env, &t, b, h, q, &r);
    score_by_kv_64(&a->score_env, &t, b, h, kv, &c);
    return score_cell_64(&a->score_env, &t, &r, &c, b, h, q, kv, s);
#else
    return s;
#endif
}

/* The end of a row: sum over its weights with the sink, in place; what its outputs are multiplied with; its LSE.
 * top: the largest score in natural units. */
PX_FN float row_finish(const flex_gpu_args *a, px_i64 b, px_i64 h, px_i64 q, float top, float sum) {
    float sink = a->sinks ? a->sinks[h] : -INFINITE, lse = -INFINITE, by = 0.0f;
    if (!(sum == 0.0f && sink == -INFINITE)) {
        float most = sum == 0.0f ? sink : fmaxf(top, sink);
        float keep = sum == 0.0f ? 0.0f : fast_exp2((top - most) * LOG2E);
        float all = sum * keep + (sink == -INFINITE ? 0.0f : fast_exp2((sink - most) * LOG2E));
        if (sum != sum) all = sum;
        lse = most + logf(all);
        by = keep / all;
    }
    if (a->lse) a->lse[(b * a->q_heads + h) * a->q_len + q] = lse;
#if HAS_SCORE
    if (!(sum < INFINITE)) /* NaN: some score is NaN or +inf */
        atomicMin(a->bad, (unsigned long long)((b * a->q_heads + h) * a->q_len + q));
#endif
    return by;
}
