/* A block of tiles split by halves, all undecided boxes of a round at once.
 *
 * Round by round the list of boxes is classified many at a time (interval_many) and written anew: decided boxes as they
 * are, undecided ones as their quarters, so the list stays in Z order. Single tiles that stay open are partial when two
 * of their corners or their centre differ, again asked many at a time; the few others go the slow, exact way.
 * Four equal quarters become one box again. Knows nothing of what lies outside its block. */
#include "flex/blockmask_private.h"

/* Open parts carry which verdicts some of their cells have got: bit 0 hidden, bit 1 visible; both make them partial. UNSURE ones
 * may read outside an array: few cells do not tell. */
enum { OPEN, SEEN_HIDDEN, SEEN_VISIBLE, PARTIAL, FULL, GONE, UNSURE };
static int is_open(const blockmask__part *p) { return p->kind < PARTIAL || p->kind == UNSURE; }

typedef blockmask__part part;

typedef struct block {
    blockmask__builder *w;
    int64_t q, k; /* its first tile */
    part *list;
    int n;
    interval_spans spans;
    int at[INTERVAL_MANY]; /* list entries of the spans */
    int waiting;
} block;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static void put(block *x, int entry, int64_t q0, int64_t q1, int64_t k0, int64_t k1) {
    interval_spans *s = &x->spans;
    s->q0[x->waiting] = q0, s->q1[x->waiting] = q1;
    s->kv0[x->waiting] = k0, s->kv1[x->waiting] = k1;
    x->at[x->waiting++] = entry;
}

static void classify(block *x, uint8_t *verdict) {
    interval_many_classify(x->w->many, x->w->b, x->w->h, x->waiting, &x->spans, verdict);
}

static void settle(block *x, part *list) {
    static const uint8_t kinds[] = {[INTERVAL_NONE] = GONE,
                                    [INTERVAL_ALL] = FULL,
                                    [INTERVAL_MIXED] = OPEN,
                                    [INTERVAL_LEAVES] = UNSURE};
    uint8_t verdict[INTERVAL_MANY];
    if (!x->waiting) return;
    classify(x, verdict);
    for (int i = 0; i < x->waiting; i++) list[x->at[i]].kind = kinds[verdict[i]];
    x->waiting = 0;
}

/* The quarters of an open part, each put down to be judged where `judge` says so. */
static int quarter(block *x, part p, part *to, int n, int judge) {
    const block_mask *m = x->w->out;
    const block_mask_args *a = &x->w->args;
    const int level = p.level - 1, half = 1 << level;
    for (int c = 0; c < 4; c++) {
        part child = {(uint8_t)(p.q + (c & 2 ? half : 0)), (uint8_t)(p.k + (c & 1 ? half : 0)),
                      (uint8_t)level, OPEN};
        int64_t q = x->q + child.q, k = x->k + child.k;
        if (q >= m->q_tiles || k >= m->kv_tiles) continue;
        to[n] = child;
        if (judge) {
            int64_t q0 = q * a->tile_q, k0 = k * a->tile_kv;
            put(x, n, q0, least(q0 + ((int64_t)a->tile_q << level), a->q_len) - 1, k0,
                least(k0 + ((int64_t)a->tile_kv << level), a->kv_len) - 1);
            if (x->waiting == INTERVAL_MANY) settle(x, to);
        }
        n++;
    }
    return n;
}

/* The next list: what is decided, and quarters of what is not, with their verdicts. */
static void split(block *x, part *to, int judge) {
    int n = 0;
    for (int i = 0; i < x->n; i++) {
        const part p = x->list[i];
        if (is_open(&p))
            n = quarter(x, p, to, n, judge);
        else if (p.kind != GONE)
            to[n++] = p;
    }
    settle(x, to);
    x->list = to;
    x->n = n;
}

/* Cells of a tile in halves of its extent: two corners settle nearly all tiles, the others are asked for the rest. */
typedef struct looks {
    int n;
    uint8_t at[3][2];
} looks;
static const looks first_look = {2, {{0, 2}, {2, 0}}}, second_look = {3, {{0, 0}, {2, 2}, {1, 1}}};

static void settle_cells(block *x) {
    static const uint8_t seen[] = {
        [INTERVAL_NONE] = SEEN_HIDDEN, [INTERVAL_ALL] = SEEN_VISIBLE, [INTERVAL_LEAVES] = OPEN};
    uint8_t verdict[INTERVAL_MANY];
    if (!x->waiting) return;
    classify(x, verdict);
    for (int i = 0; i < x->waiting; i++) x->list[x->at[i]].kind |= seen[verdict[i]];
    x->waiting = 0;
}

/* Some cells of all open tiles that read inside their arrays. */
static void look(block *x, const looks *l) {
    const block_mask_args *a = &x->w->args;
    for (int i = 0; i < x->n; i++) {
        const part *p = &x->list[i];
        if (!is_open(p) || p->kind == UNSURE) continue;
        int64_t q0 = (x->q + p->q) * a->tile_q, k0 = (x->k + p->k) * a->tile_kv;
        int64_t q1 = least(q0 + a->tile_q, a->q_len) - 1,
                k1 = least(k0 + a->tile_kv, a->kv_len) - 1;
        for (int j = 0; j < l->n; j++) {
            int64_t q = q0 + (q1 - q0) * l->at[j][0] / 2, k = k0 + (k1 - k0) * l->at[j][1] / 2;
            put(x, i, q, q, k, k);
        }
        if (x->waiting + l->n > INTERVAL_MANY) settle_cells(x);
    }
    settle_cells(x);
}

/* Joins the last four boxes of the mask as long as they are the equal quarters of one; boxes before `from` are others'. */
static void join(blockmask__builder *w, size_t from) {
    while (w->n >= from + 4) {
        blockmask__box *p = &w->box[w->n - 4];
        const int32_t side = (int32_t)1 << p->level, last = side * 2 - 1;
        int alike = p->full < BLOCKMASK__ASKED && (p->q & last) == 0 && (p->k & last) == 0;
        for (int c = 1; alike && c < 4; c++)
            alike = p[c].full == p->full && p[c].level == p->level &&
                    p[c].q == p->q + (c & 2 ? side : 0) && p[c].k == p->k + (c & 1 ? side : 0);
        if (!alike) return;
        p->level++;
        w->n -= 3;
    }
}

static err hand_over(block *x) {
    const size_t from = x->w->n;
    for (int i = 0; i < x->n; i++) {
        const part *p = &x->list[i];
        int64_t q = x->q + p->q, k = x->k + p->k;
        if (p->kind == GONE) continue;
        if (is_open(p))
            TRY(blockmask__decide_tile(x->w, q, k));
        else
            TRY(blockmask__push(x->w, q, k, p->level, p->kind == FULL));
        join(x->w, from);
    }
    return ERR_OK;
}

err blockmask__visit_block(blockmask__builder *w, int64_t q, int64_t k, int level) {
    block x = {.w = w, .q = q, .k = k, .list = w->part[0], .n = 1};
    int turn = 1;
    x.list[0] = (part){0, 0, (uint8_t)level, OPEN};
    for (; level > 0; level--, turn ^= 1) {
        /* four are too few to ask for: sixteen cost the same */
        split(&x, w->part[turn], x.n > 1 || level == 1);
    }
    look(&x, &first_look);
    look(&x, &second_look);
    return hand_over(&x);
}
