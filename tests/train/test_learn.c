/* What training must show: it learns what can be learnt, never what cannot, and decoding sees exactly what was trained.
 *
 * One document is overfitted until real decoding accepts every draft (tau = block size). On uniformly random tokens held-out loss never
 * falls below ln V - 0.05, the cheapest alarm for a leak (B12). The planted successor (B19) gives loss 0 and block_size - 1
 * drafts accepted together. A walk over training-form predictions counts what the decoder counts (B56). */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "support/files.h"
#include "support/numbers.h"
#include "support/says.h"
#include "support/tiny_gguf.h"
#include "adamw_alone.h"
#include "train/anchors.h"
#include "train/evaluate.h"
#include "train/labels.h"
#include "train/step.h"

enum { LONGEST = 160 };

typedef struct learner {
    files_dir dir;
    dev *d;
    arena *a, *work, *target_work;
    target *t;
    drafter_layout l;
    float *params, *grads, *taps; /* taps [LONGEST, n_taps*H] */
    adamw w;
    step s;
} learner;

/* A document as a row of its own. */
typedef struct document {
    data_row row;
    int32_t tokens[LONGEST], doc[LONGEST], position[LONGEST];
    uint8_t loss[LONGEST];
    int64_t start[2], id[1];
} document;

static void make_document(document *o, const int32_t *tokens, int64_t n, int64_t prompt,
                          int64_t id) {
    memset(o, 0, sizeof *o);
    for (int64_t i = 0; i < n; i++) {
        o->tokens[i] = tokens[i];
        o->position[i] = (int32_t)i;
        o->loss[i] = i >= prompt;
    }
    o->start[1] = n;
    o->id[0] = id;
    o->row =
        (data_row){.n = n, .docs = 1, .tokens = o->tokens, .loss = o->loss, .document = o->doc};
    o->row.position = o->position;
    o->row.doc_start = o->start;
    o->row.doc_id = o->id;
}

static void open_learner(learner *k, const tiny_gguf *g, int64_t block) {
    *k = (learner){.dir = files_begin()};
    assert_ok(tiny_gguf_write(files_at(&k->dir, "t.gguf"), g));
    assert_ok(dev_open_cpu(&k->d, &(dev_config){.threads = 2}));
    assert_ok(target_load(&k->t, k->d, files_at(&k->dir, "t.gguf"), NULL));
    assert_ok(arena_create(&k->a, "test", 0));
    drafter_config c = {
        .layers = 2, .hidden = g->hidden, .intermediate = 64, .heads = 4, .kv_heads = 2};
    c.head_dim = 16;
    c.block_size = block;
    c.n_taps = 2;
    c.taps[0] = 0;
    c.taps[1] = g->layers - 1;
    c.target_layers = g->layers;
    c.vocab = g->vocab;
    c.mask_token = (int32_t)g->vocab - 1;
    c.rms_eps = 1e-6f;
    c.max_position = g->context;
    c.rope = (rope_config){.head_dim = 16, .rotary_dim = 16, .theta = 10000, .factor = 1};
    assert_ok(drafter_layout_make(&k->l, &c, k->a));
    const adamw_config ac = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1};
    assert_ok(adamw_create(&k->w, &k->l, &ac, k->a));
    assert_ok(arena_alloc(k->a, (size_t)k->l.total, sizeof(float), &k->params));
    assert_ok(arena_alloc(k->a, (size_t)k->l.total, sizeof(float), &k->grads));
    drafter_init(&k->l, 1, k->params);
    assert_ok(
        arena_alloc(k->a, LONGEST * (size_t)c.hidden, (size_t)c.n_taps * sizeof(float), &k->taps));
    assert_ok(arena_create(&k->target_work, "target",
                           target_forward_bytes(k->t, LONGEST, 1, dev_threads(k->d))));
    assert_ok(arena_create(&k->work, "work", step_bytes(k->d, k->t, &k->l, LONGEST, LONGEST)));
    k->s = (step){.d = k->d, .t = k->t, .layout = &k->l, .work = k->work};
    labels_decay(4, block, k->s.decay);
}
static void close_learner(learner *k) {
    target_free(k->t);
    arena_destroy(k->work);
    arena_destroy(k->target_work);
    arena_destroy(k->a);
    dev_close(k->d);
    files_end(&k->dir);
}

/* The row's taps, in memory that lives until the next call. */
static const float *taps_of(learner *k, const data_row *row) {
    const drafter_config *c = &k->l.cfg;
    const target_row r = {.n = row->n,
                          .tokens = row->tokens,
                          .document = row->document,
                          .position = row->position,
                          .taps = c->taps,
                          .n_taps = c->n_taps,
                          .taps_out = k->taps};
    assert_ok(target_forward(k->t, k->d, &r, k->target_work));
    return k->taps;
}

/* Σ over documents; grads NULL: measured only. */
static step_sums pass(learner *k, const document *docs, int n, int64_t limit, int64_t epoch,
                      float *grads) {
    step_sums sums = {0};
    int32_t anchor[LONGEST];
    for (int i = 0; i < n; i++) {
        const int64_t count = anchors_row(&docs[i].row, limit, 1, epoch, anchor);
        assert_ok(step_row(&k->s, &docs[i].row, taps_of(k, &docs[i].row), anchor, count, k->params,
                           grads, &sums, NULL));
    }
    return sums;
}

static double train(learner *k, const document *docs, int n, int64_t limit, int updates, double lr,
                    int64_t from) {
    double loss = 0;
    for (int u = 0; u < updates; u++) {
        adamw_report r;
        memset(k->grads, 0, (size_t)k->l.total * sizeof(float));
        step_sums sums = pass(k, docs, n, limit, from + u, k->grads);
        loss = sums.loss / sums.weight;
        assert_ok(adamw_step(&k->w, k->d, lr, 1 / sums.weight, k->params, k->grads, &r));
        assert_false(r.bad);
    }
    return loss;
}

/* New tokens after a prompt, greedy; dr NULL: plain. stats may be NULL. */
static void decode(learner *k, const drafter *dr, const int32_t *prompt, int64_t n, int64_t max_new,
                   int32_t *out, decode_stats *stats) {
    decode_batch *b = NULL;
    decode_seq *q = NULL;
    const decode_config c = {.t = k->t, .dr = dr, .max_seqs = 1, .max_tokens = n + max_new + 16};
    assert_ok(decode_create(&b, k->d, &c));
    assert_ok(
        decode_add(b, &(decode_request){.prompt = prompt, .n_prompt = n, .max_new = max_new}, &q));
    assert_ok(decode_run(b));
    int64_t got = 0;
    const int32_t *tokens = decode_tokens(q, &got);
    assert_int_equal(got, max_new);
    memcpy(out, tokens, (size_t)got * sizeof *out);
    if (stats) *stats = *decode_get_stats(q);
    decode_free(b);
}

/* Drafts with the bf16 snapshot; texts must be equal; returns tau. */
static double tau_of(learner *k, const int32_t *prompt, int64_t n, int64_t max_new,
                     decode_stats *stats) {
    drafter *dr = NULL;
    int32_t plain[LONGEST], fast[LONGEST];
    assert_ok(drafter_pack(&dr, &k->l, k->params, DT_BF16, k->t));
    decode(k, NULL, prompt, n, max_new, plain, NULL);
    decode(k, dr, prompt, n, max_new, fast, stats);
    assert_memory_equal(plain, fast, (size_t)max_new * sizeof *plain);
    drafter_free(dr);
    return decode_tau(stats);
}

static void overfitting_one_document_reaches_tau_of_the_block(void **s) {
    (void)s;
    learner k;
    const tiny_gguf g = tiny_gguf_default(64, 21);
    enum { PROMPT = 6, NEW = 32, BLOCK = 6 };
    open_learner(&k, &g, BLOCK);
    int32_t tokens[PROMPT + NEW + 2 * BLOCK];
    for (int i = 0; i < PROMPT; i++) tokens[i] = 3 + 7 * i;
    decode(&k, NULL, tokens, PROMPT, NEW + 2 * BLOCK, tokens + PROMPT, NULL);
    int seen[64] = {0}, different = 0;
    for (int i = PROMPT; i < PROMPT + NEW; i++) different += !seen[tokens[i]]++;
    assert_true(different >= 8); /* no loop that any drafter would guess */
    document doc;
    make_document(&doc, tokens, PROMPT + NEW + 2 * BLOCK, PROMPT, 0);
    decode_stats stats;
    const double before = tau_of(&k, tokens, PROMPT, NEW, &stats);
    assert_true(before < 2.5);
    const double loss = train(&k, &doc, 1, 1000, 400, 3e-3, 0);
    const double tau = tau_of(&k, tokens, PROMPT, NEW, &stats);
    if (tau != BLOCK || loss > 0.05) printf("loss %g, tau %g\n", loss, tau);
    assert_true(loss < 0.1);
    assert_true(tau == BLOCK);
    assert_int_equal(stats.histogram[BLOCK - 1], stats.rounds);
    close_learner(&k);
}

static void random_documents(document *docs, int n, int64_t length, uint64_t seed, int64_t vocab) {
    for (int i = 0; i < n; i++) {
        int32_t tokens[LONGEST];
        for (int64_t j = 0; j < length; j++)
            tokens[j] = (int32_t)numbers_below(seed, (uint64_t)i, (uint64_t)j, vocab);
        make_document(&docs[i], tokens, length, 0, i);
    }
}

/* Rows are fresh at every update, so nothing can be memorised: the only way below ln V is to see the answer. */
static void b12_random_tokens_cannot_be_learnt(void **s) {
    (void)s;
    const uint64_t seed = numbers_seed();
    static const int64_t anchors[] = {8, 512};
    for (int c = 0; c < 2; c++) {
        learner k;
        enum { DOCS = 2, HELD = 6, ROUNDS = 5, UPDATES = 30 };
        document docs[DOCS], held[HELD];
        tiny_gguf g = tiny_gguf_default(64, 22);
        open_learner(&k, &g, 4);
        random_documents(held, HELD, 128, seed, 64);
        double least = 100;
        for (int u = 0; u <= ROUNDS * UPDATES; u++) {
            if (u % UPDATES == 0) {
                const step_sums sums = pass(&k, held, HELD, 512, 0, NULL);
                least = fmin(least, sums.loss / sums.weight);
            }
            random_documents(docs, DOCS, 64, seed + 1 + (uint64_t)u, 64);
            train(&k, docs, DOCS, anchors[c], 1, 4e-3, u);
        }
        printf("%d anchors: least held-out loss %.4f, ln 64 = %.4f\n", (int)anchors[c], least,
               log(64));
        assert_true(least >= log(64) - 0.05);
        assert_true(least < log(64) + 0.5); /* near enough that a leak would show */
        close_learner(&k);
    }
}

/* The target that says token + 1: no attention, no MLP, and a head whose row v is the embedding of v - 1. */
typedef struct successor {
    float *embedding;
} successor;
static void successor_fill(void *ctx, const char *name, float *w, int64_t rows, int64_t cols) {
    successor *p = ctx;
    const size_t bytes = (size_t)(rows * (cols ? cols : 1)) * sizeof *w;
    if (strstr(name, "attn_output") || strstr(name, "ffn_down")) memset(w, 0, bytes);
    if (strcmp(name, "token_embd.weight") == 0) {
        for (int64_t i = 0; i < rows * cols; i++) w[i] = bf16_to_f32(bf16_from_f32(w[i]));
        p->embedding = malloc(bytes);
        files_must(p->embedding != NULL, "memory");
        memcpy(p->embedding, w, bytes);
    }
    if (strcmp(name, "output.weight") == 0)
        for (int64_t v = 0; v < rows; v++)
            memcpy(w + v * cols, p->embedding + (v + rows - 1) % rows * cols,
                   (size_t)cols * sizeof *w);
}

/* The oracle's hidden state for slot k at anchor a points at token[a] + k: with the labels of training the loss is 0, and any
 * shift of them makes it large. */
static void b19_oracle_has_loss_zero_under_the_labels(void **s) {
    (void)s;
    learner k;
    successor p = {0};
    tiny_gguf g = tiny_gguf_default(192, 23);
    enum { N = 40, BLOCK = 8, ANCHORS = 39, ROWS = ANCHORS * BLOCK };
    g.fill = successor_fill;
    g.ctx = &p;
    g.size = 1;
    open_learner(&k, &g, BLOCK);
    int32_t tokens[N], anchor[N], label[ROWS];
    for (int i = 0; i < N; i++) tokens[i] = 100 + i;
    document doc;
    make_document(&doc, tokens, N, 0, 0);
    assert_int_equal(anchors_row(&doc.row, 100, 1, 0, anchor), ANCHORS);
    float weight[ROWS], nll[ROWS], *x = numbers_poisoned((int64_t)ROWS * 32);
    assert_true(labels_make(&doc.row, anchor, ANCHORS, BLOCK, k.s.decay, label, weight) > 200);
    void *work = NULL;
    assert_ok(arena_alloc_raw(k.a, nn_head_bytes(k.d, target_head(k.t), ROWS), 1, &work));
    for (int shift = -1; shift <= 1; shift++) {
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < 32; i++)
                x[r * 32 + i] =
                    20 * p.embedding[(tokens[anchor[r / BLOCK]] + r % BLOCK - 1 + shift) * 32 + i];
        head_args h = {
            .w = target_head(k.t), .n = ROWS, .x = x, .ldx = 32, .label = label, .weight = weight};
        h.scale = 1;
        h.nll = nll;
        h.workspace = work;
        assert_ok(nn_head_loss(k.d, &h));
        double most = 0;
        for (int r = 0; r < ROWS; r++) most = fmax(most, (double)nll[r]);
        if (shift == 0)
            assert_true(most == 0);
        else
            assert_true(most > 1);
    }
    free(x);
    free(p.embedding);
    close_learner(&k);
}

/* The same oracle, learnt: loss near 0 in training and block_size - 1 drafts accepted in decoding, together. */
static void b19_planted_successor_is_accepted_whole(void **s) {
    (void)s;
    learner k;
    successor p = {0};
    tiny_gguf g = tiny_gguf_default(48, 24);
    enum { BLOCK = 4, DOCS = 8 };
    g.fill = successor_fill;
    g.ctx = &p;
    open_learner(&k, &g, BLOCK);
    document docs[DOCS];
    for (int i = 0; i < DOCS; i++) {
        int32_t tokens[LONGEST];
        for (int j = 0; j < 40; j++) tokens[j] = (5 * i + j) % 46;
        make_document(&docs[i], tokens, 40, 0, i);
    }
    /* At a rate this high the loss comes down in jumps, at other updates on another processor: a lower one settles it. */
    train(&k, docs, DOCS, 12, 300, 4e-3, 0);
    const double loss = train(&k, docs, DOCS, 12, 150, 5e-4, 300);
    const int32_t prompt[] = {5, 6, 7, 8};
    decode_stats stats;
    const double tau = tau_of(&k, prompt, 4, 25, &stats);
    if (tau != BLOCK || loss > 0.05) printf("loss %g, tau %g\n", loss, tau);
    assert_true(loss < 0.05);
    assert_true(tau == BLOCK);
    assert_int_equal(stats.histogram[BLOCK - 1], stats.rounds);
    free(p.embedding);
    close_learner(&k);
}

/* Whether no other of v logits comes within rounding of the best one. */
static int is_clear(const float *logits, int64_t v, int32_t best) {
    double size = 0, gap = INFINITY;
    for (int64_t i = 0; i < v; i++) {
        size = fmax(size, fabs((double)logits[i]));
        if (i != best) gap = fmin(gap, (double)logits[best] - (double)logits[i]);
    }
    return gap > 1e-5 * size;
}

/* Best token of every slot at every anchor first..last of a row: best[(a - first)*block + slot]; UNCLEAR where the decoder's
 * order of adding may find another. */
enum { UNCLEAR = -1 };
static void predictions(learner *k, const document *doc, int64_t first, int64_t count,
                        int32_t *best) {
    const int64_t bs = k->l.cfg.block_size, h = k->l.cfg.hidden, v = k->l.cfg.vocab, r = count * bs;
    int32_t anchor[LONGEST];
    for (int64_t i = 0; i < count; i++) anchor[i] = (int32_t)(first + i);
    const arena_mark m = arena_get_mark(k->a);
    float *taps, *hidden = numbers_poisoned(r * h), *logits = numbers_poisoned(r * v);
    assert_ok(arena_alloc_raw(k->a, (size_t)doc->row.n, (size_t)(2 * h) * sizeof(float), &taps));
    target_row tr = {
        .n = doc->row.n, .tokens = doc->tokens, .document = doc->doc, .position = doc->position};
    tr.taps = k->l.cfg.taps;
    tr.n_taps = 2;
    tr.taps_out = taps;
    assert_ok(target_forward(k->t, k->d, &tr, k->a));
    drafter_row row = {
        .n = doc->row.n, .tokens = doc->tokens, .document = doc->doc, .position = doc->position};
    row.n_anchors = count;
    row.anchor = anchor;
    row.taps = taps;
    assert_ok(drafter_forward(&k->l, k->params, k->t, k->d, &row, hidden, NULL, NULL, k->a));
    packed_matmul_ref(target_head(k->t), hidden, h, r, logits, v);
    for (int64_t i = 0; i < r; i++) {
        assert_ok(nn_argmax(logits + i * v, v, &best[i]));
        if (!is_clear(logits + i * v, v, best[i])) best[i] = UNCLEAR;
    }
    free(hidden);
    free(logits);
    arena_reset(k->a, m);
}

/* Rounds as the decoder makes them, from predictions alone; 0: two tokens were equally good somewhere on the way. */
static int walk_over(learner *k, const document *doc, int64_t prompt, int64_t new_tokens,
                     decode_stats *walk) {
    const int64_t block = k->l.cfg.block_size;
    int32_t best[LONGEST * 8];
    assert_true(new_tokens * block <= LONGEST * 8);
    predictions(k, doc, prompt, new_tokens, best);
    for (int64_t at = prompt, out = 1, n; out < new_tokens; at += n + 1, out += n + 1) {
        const int32_t *slot = best + (at - prompt) * block + 1;
        for (n = 0; n < block - 1; n++) {
            if (slot[n] == UNCLEAR) return 0;
            if (slot[n] != doc->tokens[at + n + 1]) break;
        }
        walk->rounds++;
        walk->committed += n + 1;
        walk->histogram[n]++;
    }
    return 1;
}

static void b56_walk_over_predictions_equals_the_decoder(void **s) {
    (void)s;
    learner k;
    const tiny_gguf g = tiny_gguf_default(64, 25);
    enum { BLOCK = 5, PROMPT = 5, NEW = 40, TRAIN = 6, HELD = 5, ALL = PROMPT + NEW + BLOCK };
    open_learner(&k, &g, BLOCK);
    document docs[TRAIN], held[HELD];
    for (int i = 0; i < TRAIN + HELD; i++) {
        int32_t tokens[ALL];
        for (int j = 0; j < PROMPT; j++)
            tokens[j] = (int32_t)numbers_below(99, (uint64_t)i, (uint64_t)j, 64);
        decode(&k, NULL, tokens, PROMPT, NEW + BLOCK, tokens + PROMPT, NULL);
        if (i < TRAIN) make_document(&docs[i], tokens, ALL, PROMPT, i);
        /* Two that were trained on are walked as well: there many drafts are accepted. */
        if (i >= TRAIN - 2 && i < TRAIN + HELD - 2)
            make_document(&held[i - TRAIN + 2], tokens, ALL, PROMPT, i);
    }
    train(&k, docs, TRAIN, 16, 40, 3e-3, 0);
    for (int64_t i = 0; i < k.l.total; i++) k.params[i] = bf16_to_f32(bf16_from_f32(k.params[i]));
    decode_stats walk = {0}, real = {0};
    int walked = 0;
    for (int i = 0; i < HELD; i++) {
        decode_stats one = {0}, decoded;
        if (!walk_over(&k, &held[i], PROMPT, NEW, &one)) continue;
        tau_of(&k, held[i].tokens, PROMPT, NEW, &decoded);
        decode_stats_add(&walk, &one);
        decode_stats_add(&real, &decoded);
        walked++;
    }
    assert_true(walked > 0);
    printf("tau %.4f over %lld rounds\n", decode_tau(&real), (long long)real.rounds);
    assert_int_equal(walk.rounds, real.rounds);
    assert_int_equal(walk.committed, real.committed);
    assert_memory_equal(walk.histogram, real.histogram, sizeof walk.histogram);
    assert_true(real.histogram[0] > 0 &&
                real.rounds > real.histogram[0]); /* both kinds of round occur */
    close_learner(&k);
}

static void b22_mixed_lengths_stay_finite(void **s) {
    (void)s;
    learner k;
    const tiny_gguf g = tiny_gguf_default(64, 26);
    open_learner(&k, &g, 16);
    document docs[3];
    random_documents(docs, 3, 40, numbers_seed(), 64);
    memset(docs[0].loss, 0, 34);                      /* 6 supervised: 5 anchors */
    memset(docs[1].loss, 0, 40);                      /* none */
    make_document(&docs[2], docs[2].tokens, 9, 0, 2); /* shorter than the block */
    memset(k.grads, 0, (size_t)k.l.total * sizeof(float));
    const step_sums sums = pass(&k, docs, 3, 512, 0, k.grads);
    assert_int_equal(sums.anchors, 5 + 0 + 8);
    assert_true(isfinite(sums.loss) && sums.weight > 0);
    double norm = 0;
    for (int64_t i = 0; i < k.l.total; i++) norm += (double)k.grads[i] * (double)k.grads[i];
    assert_true(isfinite(norm) && norm > 0);
    assert_int_equal(sums.slots[0], 0);
    assert_int_equal(sums.slots[1], 5 + 8);
    close_learner(&k);
}

static void b47_the_base_is_frozen(void **s) {
    (void)s;
    learner k;
    const tiny_gguf g = tiny_gguf_default(64, 27);
    open_learner(&k, &g, 8);
    document docs[2];
    random_documents(docs, 2, 60, 5, 64);
    char before[2][33], after[2][33];
    const packed *w[2] = {target_embedding(k.t), target_head(k.t)};
    int32_t out[2][8];
    for (int i = 0; i < 2; i++)
        file_hash_bytes(w[i]->data, packed_bytes(w[i]->type, w[i]->n, w[i]->k), before[i]);
    decode(&k, NULL, docs[0].tokens, 10, 8, out[0], NULL);
    train(&k, docs, 2, 512, 5, 1e-2, 0);
    for (int i = 0; i < 2; i++)
        file_hash_bytes(w[i]->data, packed_bytes(w[i]->type, w[i]->n, w[i]->k), after[i]);
    decode(&k, NULL, docs[0].tokens, 10, 8, out[1], NULL);
    assert_string_equal(before[0], after[0]);
    assert_string_equal(before[1], after[1]);
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    /* The optimizer holds two floats per drafter parameter and sums by chunk, nothing of the target's size. */
    const size_t two = (size_t)k.l.total * 2 * sizeof(float);
    assert_true(adamw_bytes(&k.l) >= two && adamw_bytes(&k.l) < two + 4096);
    close_learner(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overfitting_one_document_reaches_tau_of_the_block),
        cmocka_unit_test(b12_random_tokens_cannot_be_learnt),
        cmocka_unit_test(b19_oracle_has_loss_zero_under_the_labels),
        cmocka_unit_test(b19_planted_successor_is_accepted_whole),
        cmocka_unit_test(b56_walk_over_predictions_equals_the_decoder),
        cmocka_unit_test(b22_mixed_lengths_stay_finite),
        cmocka_unit_test(b47_the_base_is_frozen),
    };
    return cmocka_run_group_tests_name("learning", tests, NULL, NULL);
}
