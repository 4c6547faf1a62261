/* Paged decode attention on a GPU or the emulated device: against the definition in double, and bit for bit against itself row by row.
 *
 * Batches are those of the CPU's test, rounded to the type. A row alone, with other bounds on keys and rows, has the bits
 * that it has in its batch, also where other rows see NaN and infinity. Skipped without a GPU; `test_paged_cuda --bench` prints the share of copy bandwidth,
 * `--few` runs a part for slow tools. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include "flex/paged_batch.h"
#include "flex/paged_cuda.h"
#include "gpu_case.h"

static int few;
static int open_gpu(void **out) {
    if (gpu_world_set_up(out)) return 1;
    ((gpu_world *)*out)->few = few;
    return 0;
}

/* A batch in device memory, its floats rounded in place on the host. */
typedef struct paged_there {
    paged_gpu_seq seq[PAGED_BATCH_SEQS];
    dev_address k_pool, v_pool, seqs;
    int64_t rows, seq_rows, keys, extra;
    dtype type;
} paged_there;

static dev_address put_floats(const gpu_world *w, dtype type, const float *x, int64_t n) {
    void *y = gpu_round(type, (float *)(uintptr_t)x, n);
    dev_address at = gpu_copy(w, y, (size_t)n * dtype_size(type));
    assert_ok(dev_stream_wait(w->s));
    free(y);
    return at;
}
static void *there(dev_address at) { return (void *)(uintptr_t)at; }
static dev_address here(const void *p) { return (dev_address)(uintptr_t)p; }

static int64_t pool_tokens(const paged_batch *b) {
    int64_t most = 0;
    for (int64_t i = 0; i < b->a.n_seqs; i++)
        for (int64_t p = 0; p <= b->seq[i].n_keys / PAGED_PAGE; p++)
            if (b->seq[i].pages[p] >= most) most = b->seq[i].pages[p] + 1;
    return most * PAGED_PAGE;
}

static void put_batch(const gpu_world *w, paged_batch *b, dtype type, paged_there *t) {
    const paged_args *a = &b->a;
    const int64_t row = a->kv_heads * a->dim, tokens = pool_tokens(b);
    memset(t, 0, sizeof *t);
    t->type = type;
    t->k_pool = put_floats(w, type, a->k_pool, tokens * row);
    t->v_pool = put_floats(w, type, a->v_pool, tokens * row);
    for (int64_t i = 0; i < a->n_seqs; i++) {
        const paged_seq *q = &b->seq[i];
        const int64_t wide = q->rows * a->q_heads * a->dim;
        t->seq[i] = (paged_gpu_seq){
            .pages = there(gpu_copy(w, q->pages, (size_t)(q->n_keys / PAGED_PAGE + 1) * 4)),
            .n_keys = q->n_keys,
            .rows = q->rows,
            .first = q->first,
            .window = q->window,
            .window_pos = q->window_pos,
            .q = there(put_floats(w, type, q->q, wide)),
            .extra_k = there(put_floats(w, type, q->extra_k, q->n_extra * row)),
            .extra_v = there(put_floats(w, type, q->extra_v, q->n_extra * row)),
            .n_extra = q->n_extra,
            .o = there(gpu_new(w, (size_t)wide * dtype_size(type), 0xff)),
            .row0 = t->rows};
        t->rows += q->rows;
        if (q->rows > t->seq_rows) t->seq_rows = q->rows;
        if (q->n_keys > t->keys) t->keys = q->n_keys;
        if (q->n_extra > t->extra) t->extra = q->n_extra;
    }
    t->seqs = gpu_copy(w, t->seq, sizeof t->seq);
}

static void run(const gpu_world *w, const paged_args *a, const paged_there *t, dev_address seqs,
                int64_t n, int64_t slack) {
    const paged_cuda_shape shape = {.type = t->type,
                                    .q_heads = a->q_heads,
                                    .kv_heads = a->kv_heads,
                                    .dim = a->dim,
                                    .scale = a->scale,
                                    .seqs = PAGED_BATCH_SEQS,
                                    .rows = t->rows + slack,
                                    .seq_rows = t->seq_rows + slack,
                                    .keys = t->keys + 300 * slack,
                                    .extra = t->extra + slack};
    paged_cuda *p;
    arena *mem;
    assert_ok(arena_create(&mem, "paged", 0));
    assert_ok(paged_cuda_create(&p, w->d, &shape, mem));
    const dev_address workspace = gpu_new(w, paged_cuda_workspace(p), 0xff);
    assert_ok(paged_cuda_run(p, w->s, seqs, n, t->k_pool, t->v_pool, workspace));
    assert_ok(dev_stream_wait(w->s));
    arena_destroy(mem);
}

/* The largest of n logits by size. */
static double most(const double *x, int64_t n) {
    double size = 0;
    for (int64_t i = 0; i < n; i++) size = fmax(size, fabs(x[i]));
    return size;
}

/* The key that only the last row sees; -1: none. */
static int64_t own_key(const paged_seq *q) {
    const int64_t key = q->first + q->rows - 1;
    return q->first >= 0 && q->rows > 1 && key < q->n_keys ? key : -1;
}

/* Values of such keys become NaN or infinite. Returns how many did. */
static int spoil(paged_batch *b) {
    const int64_t row = b->a.kv_heads * b->a.dim;
    int n = 0;
    for (int64_t i = 0; i < b->a.n_seqs; i++) {
        const int64_t key = own_key(&b->seq[i]);
        if (key < 0) continue;
        const int64_t token = (int64_t)b->seq[i].pages[key / PAGED_PAGE] * PAGED_PAGE;
        float *v = (float *)(uintptr_t)b->a.v_pool + (token + key % PAGED_PAGE) * row;
        for (int64_t d = 0; d < row; d++) v[d] = d % 3 ? NAN : INFINITY;
        n++;
    }
    return n;
}

/* How far an output may be: half a unit of its type, since sums are in fp32 and it is rounded once; and what fp32 adds to that, where
 * a weight is rounded as its logit is, and values are a few units. far: the largest share of it. */
static void check_definition(const gpu_world *w, const paged_batch *b, const paged_there *t,
                             int spoilt, double *far) {
    const double half = t->type == DT_F32 ? 0 : t->type == DT_BF16 ? 0x1p-8 : 0x1p-11;
    const paged_args *a = &b->a;
    double *weights = malloc(sizeof *weights * 8192), o[256];
    assert_non_null(weights);
    for (int64_t i = 0; i < a->n_seqs; i++) {
        const paged_seq *q = &b->seq[i];
        float *got = gpu_back(w, here(t->seq[i].o), t->type, q->rows * a->q_heads * a->dim);
        for (int64_t r = 0; r < q->rows; r++) {
            for (int64_t h = 0; h < a->q_heads; h++) {
                const int64_t keys = q->n_keys + q->n_extra;
                memset(weights, 0, (size_t)keys * sizeof *weights);
                paged_batch_define(a, q, r, h, weights, o);
                const double fp32 = 2e-6 * (2 + most(weights, keys));
                for (int64_t d = 0; d < a->dim; d++) {
                    if (spoilt && r == q->rows - 1 && own_key(q) >= 0) {
                        assert_false(isfinite(got[(r * a->q_heads + h) * a->dim + d]));
                        continue;
                    }
                    double e = fabs((double)got[(r * a->q_heads + h) * a->dim + d] - o[d]) /
                               (half * fabs(o[d]) + fp32);
                    if (!(e <= *far)) *far = e == e ? e : INFINITY;
                }
            }
        }
        free(got);
    }
    free(weights);
}

/* Each row as a sequence of its own, with other bounds. */
static void check_alone(const gpu_world *w, const paged_batch *b, const paged_there *t) {
    const paged_args *a = &b->a;
    const int64_t wide = a->q_heads * a->dim;
    const size_t size = dtype_size(t->type);
    for (int64_t i = 0; i < a->n_seqs; i++) {
        const paged_seq *q = &b->seq[i];
        float *batched = gpu_back(w, here(t->seq[i].o), t->type, q->rows * wide);
        for (int64_t r = 0; r < q->rows; r++) {
            const size_t mark = gpu_mark(w);
            paged_gpu_seq one = t->seq[i];
            one.rows = 1, one.row0 = 0;
            one.q = there(here(one.q) + (size_t)(r * wide) * size);
            one.o = there(gpu_new(w, (size_t)wide * size, 0xff));
            if (one.first >= 0) one.first += r;
            one.window_pos += r;
            run(w, a, t, gpu_copy(w, &one, sizeof one), 1, 1 + r);
            float *alone = gpu_back(w, here(one.o), t->type, wide);
            assert_memory_equal(alone, batched + r * wide, (size_t)wide * sizeof(float));
            free(alone);
            gpu_reset(w, mark);
        }
        free(batched);
    }
}

static void rows_equal_the_definition_and_themselves_alone(void **data) {
    const gpu_world *w = *data;
    static const dtype types[] = {DT_F32, DT_BF16, DT_F16};
    if (!w->d) skip();
    uint64_t seed = numbers_seed();
    double far[3] = {0, 0, 0};
    const int cases = (int)gpu_fewer(w, 36, 6), alone = (int)gpu_fewer(w, 12, 3);
    const int64_t keys = gpu_fewer(w, 300, 150);
    for (int i = 0; i < cases; i++) {
        const size_t mark = gpu_mark(w);
        paged_batch b;
        paged_there t;
        paged_batch_draw(&b, seed + (uint64_t)i, i % 6 ? keys : gpu_fewer(w, 10, 4) * keys);
        put_batch(w, &b, types[i % 3], &t);
        run(w, &b.a, &t, t.seqs, b.a.n_seqs, 0);
        check_definition(w, &b, &t, 0, &far[i % 3]);
        if (i < alone) check_alone(w, &b, &t);
        paged_batch_drop(&b);
        gpu_reset(w, mark);
    }
    printf("largest differences beside what they may be: fp32 %.2g, bf16 %.2g, fp16 %.2g\n", far[0],
           far[1], far[2]);
    for (int i = 0; i < 3; i++) assert_true(far[i] <= 1);
}

/* A row that sees NaN or infinity is spoilt, and no other. */
static void what_one_row_sees_stays_with_it(void **data) {
    const gpu_world *w = *data;
    static const dtype types[] = {DT_BF16, DT_F16, DT_F32};
    if (!w->d) skip();
    uint64_t seed = numbers_seed();
    double far = 0;
    const int cases = (int)gpu_fewer(w, 24, 3);
    for (int i = 0; i < cases;) {
        const size_t mark = gpu_mark(w);
        paged_batch b;
        paged_there t;
        paged_batch_draw(&b, seed++, gpu_fewer(w, 300, 90));
        if (spoil(&b)) {
            put_batch(w, &b, types[i % 3], &t);
            run(w, &b.a, &t, t.seqs, b.a.n_seqs, 0);
            check_definition(w, &b, &t, 1, &far);
            if (i < cases - 1) check_alone(w, &b, &t);
            gpu_reset(w, mark);
            i++;
        }
        paged_batch_drop(&b);
    }
    assert_true(far <= 1);
}

/* Devices whose blocks get less shared memory (99 KiB where many desktop GPUs are) keep values in the place of keys: the same bits. */
static void little_shared_memory_changes_no_bit(void **data) {
    enum { LITTLE = 99 << 10, WIDE = 192 };
    const gpu_world *w = *data;
    if (!w->d) skip();
    cuda_device *info = (cuda_device *)(uintptr_t)dev_cuda_info(w->d);
    const int all = info->shared_block;
    uint64_t seed = numbers_seed();
    const int cases = (int)gpu_fewer(w, 12, 4);
    for (int i = 0; i < cases;) {
        const size_t mark = gpu_mark(w);
        paged_batch b;
        paged_there t;
        double far = 0;
        paged_batch_draw(&b, seed++, gpu_fewer(w, 600, 200));
        if (b.a.dim > WIDE) {
            const paged_args *a = &b.a;
            float *much[PAGED_BATCH_SEQS];
            const int spoilt = i % 2 && spoil(&b);
            put_batch(w, &b, i / 2 % 2 ? DT_F16 : DT_BF16, &t);
            run(w, a, &t, t.seqs, a->n_seqs, 0);
            for (int64_t k = 0; k < a->n_seqs; k++) {
                const int64_t n = b.seq[k].rows * a->q_heads * a->dim;
                much[k] = gpu_back(w, here(t.seq[k].o), t.type, n);
                assert_ok(
                    dev_set_bytes(w->s, here(t.seq[k].o), 0xff, (size_t)n * dtype_size(t.type)));
            }
            info->shared_block = LITTLE;
            run(w, a, &t, t.seqs, a->n_seqs, 0);
            info->shared_block = all;
            check_definition(w, &b, &t, spoilt, &far);
            assert_true(far <= 1);
            for (int64_t k = 0; k < a->n_seqs; k++) {
                const int64_t n = b.seq[k].rows * a->q_heads * a->dim;
                float *little = gpu_back(w, here(t.seq[k].o), t.type, n);
                assert_memory_equal(little, much[k], (size_t)n * sizeof *little);
                free(little), free(much[k]);
            }
            i++;
        }
        paged_batch_drop(&b);
        gpu_reset(w, mark);
    }
}

static void bad_shapes_say_so(void **data) {
    const gpu_world *w = *data;
    if (!w->d) skip();
    paged_cuda *p;
    arena *a;
    paged_cuda_shape s = {DT_BF16, 8, 2, 64, 1.0f, 1, 1, 1, 100, 0};
    assert_ok(arena_create(&a, "paged", 0));
    s.kv_heads = 3;
    says_check(paged_cuda_create(&p, w->d, &s, a), ERR_SHAPE, (const char *const[]){"evenly", NULL},
               __FILE__, __LINE__);
    s.kv_heads = 2, s.dim = 12;
    says_check(paged_cuda_create(&p, w->d, &s, a), ERR_SHAPE, (const char *const[]){"12", NULL},
               __FILE__, __LINE__);
    s.dim = 64, s.seqs = 0;
    says_check(paged_cuda_create(&p, w->d, &s, a), ERR_RANGE,
               (const char *const[]){"0 sequences", NULL}, __FILE__, __LINE__);
    s.seqs = 1, s.rows = INT64_C(1) << 28; /* 2^31 of rows and heads together */
    says_check(paged_cuda_create(&p, w->d, &s, a), ERR_RANGE,
               (const char *const[]){"268435456 rows of 8 query heads", "rows times", NULL},
               __FILE__, __LINE__);
    s.rows = 1, s.q_heads = s.kv_heads = 16384;
    says_check(paged_cuda_create(&p, w->d, &s, a), ERR_RANGE,
               (const char *const[]){"16384 key/value heads", "up to 16383", NULL}, __FILE__,
               __LINE__);
    arena_destroy(a);
}

/* Keys and values read, over time: one sequence and eight, 8,192 keys, the heads of an 8B model. */
static void bench(const gpu_world *w) {
    static const int64_t cases[][2] = {{1, 1}, {1, 16}, {8, 1}, {8, 16}};
    enum { KEYS = 8192, HEADS = 32, KV = 8, DIM = 128 };
    for (int c = 0; c < 4; c++) {
        const size_t mark = gpu_mark(w);
        const int64_t n = cases[c][0], rows = cases[c][1], pages = KEYS / PAGED_PAGE * n,
                      token = KV * DIM;
        int32_t *order = malloc((size_t)pages * sizeof *order);
        paged_gpu_seq seq[8];
        assert_non_null(order);
        float *x = numbers_new(1 << 20, 3, 1, 1.0f);
        uint16_t *y = gpu_round(DT_BF16, x, 1 << 20);
        dev_address pools[2];
        for (int k = 0; k < 2; k++) {
            pools[k] = gpu_new(w, (size_t)(pages * PAGED_PAGE * token) * 2, 0);
            for (int64_t i = 0; i < pages * PAGED_PAGE * token; i += 1 << 20)
                assert_ok(dev_copy_in(w->s, pools[k] + (uint64_t)i * 2, y,
                                      (size_t)(pages * PAGED_PAGE * token - i < 1 << 20
                                                   ? pages * PAGED_PAGE * token - i
                                                   : 1 << 20) *
                                          2));
        }
        for (int64_t i = 0; i < pages; i++) order[i] = (int32_t)(i * 7919 % pages);
        const dev_address table = gpu_copy(w, order, (size_t)pages * 4);
        for (int64_t i = 0; i < n; i++)
            seq[i] = (paged_gpu_seq){.pages = there(table + (uint64_t)(i * KEYS / PAGED_PAGE) * 4),
                                     .n_keys = KEYS,
                                     .rows = rows,
                                     .first = KEYS - rows,
                                     .q = there(gpu_copy(w, y, (size_t)(rows * HEADS * DIM) * 2)),
                                     .o = there(gpu_new(w, (size_t)(rows * HEADS * DIM) * 2, 0)),
                                     .row0 = i * rows};
        const dev_address seqs = gpu_copy(w, seq, sizeof seq);
        const paged_cuda_shape shape = {DT_BF16, HEADS,    KV,   DIM,  0.088f,
                                        n,       n * rows, rows, KEYS, 0};
        paged_cuda *p;
        arena *mem;
        dev_event *from, *to;
        double best = 1e9, ms;
        assert_ok(arena_create(&mem, "paged", 0));
        assert_ok(paged_cuda_create(&p, w->d, &shape, mem));
        const dev_address workspace = gpu_new(w, paged_cuda_workspace(p), 0);
        assert_ok(dev_event_create(&from, w->d));
        assert_ok(dev_event_create(&to, w->d));
        for (int i = 0; i < 30; i++) {
            assert_ok(dev_event_record(from, w->s));
            assert_ok(paged_cuda_run(p, w->s, seqs, n, pools[0], pools[1], workspace));
            assert_ok(dev_event_record(to, w->s));
            assert_ok(dev_event_wait(to));
            assert_ok(dev_event_ms(from, to, &ms));
            if (ms < best) best = ms;
        }
        printf(
            "paged: %lld sequences x %lld rows, %d keys: %.3f ms, %.0f GB/s of keys and values\n",
            (long long)n, (long long)rows, KEYS, best, (double)(n * KEYS * token * 4) / best / 1e6);
        dev_event_destroy(from), dev_event_destroy(to);
        arena_destroy(mem);
        free(order), free(x), free(y);
        gpu_reset(w, mark);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_equal_the_definition_and_themselves_alone),
        cmocka_unit_test(what_one_row_sees_stays_with_it),
        cmocka_unit_test(little_shared_memory_changes_no_bit),
        cmocka_unit_test(bad_shapes_say_so),
    };
    few = argc > 1 && !strcmp(argv[1], "--few");
    if (argc > 1 && !strcmp(argv[1], "--bench")) {
        void *w;
        if (gpu_world_set_up(&w)) return 1;
        if (((gpu_world *)w)->d) bench(w);
        return gpu_world_tear_down(&w);
    }
    return cmocka_run_group_tests(tests, open_gpu, gpu_world_tear_down);
}
