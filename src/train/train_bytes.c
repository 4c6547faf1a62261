/* Bytes of memory by device and role: of the run as the recipe says it, or with other settings tried on paper.
 *
 * One function counts both, so that what `plan` offers instead is what `plan` would say of it. With settings of its own it only
 * sums; for the run itself it also lists lines and notes what each role's arenas are capped at. Devices of a host's CPU share its
 * memory, so their sum is what must fit. It opens a device handle for a thread count that no device of the run has, and keeps none. */
#include "train/row_buffer.h"
#include "train/train_parts.h"
#include <stdio.h>
#include <string.h>

typedef struct count {
    train *t;
    const train__sizes *z;
    const train__rows *rows;
    train__bytes *out;
    train_plan_line *lines; /* NULL: sums alone */
    int threads[TRAIN_MAX_DEVICES];
    int used[TRAIN_MAX_DEVICES];
} count;

static void line(count *c, const train_device *on, const char *role, const char *name,
                 size_t bytes) {
    c->out->total += bytes;
    if (!c->lines) return;
    train_plan_line *l = &c->lines[c->out->n_lines++];
    snprintf(l->device, sizeof l->device, "%s", on ? on->name : "");
    snprintf(l->role, sizeof l->role, "%s", role);
    snprintf(l->name, sizeof l->name, "%s", name);
    l->bytes = bytes;
}

static int least(int a, int b) { return a < b ? a : b; }
static int n_targets(const count *c) { return least(c->t->n_targets, c->z->targets); }
static int n_ranks(const count *c, const train_drafter *d) {
    return least(d->n_ranks, c->z->ranks);
}
static int is_in(const count *c, int who) { return who != c->z->without; }

/* ---- devices ---- */

/* Those that the settings leave a role, with the share of threads that each would have. */
static void find_devices(count *c) {
    const train *t = c->t;
    int n = 0, at = 0;
    for (int i = 0; i < n_targets(c); i++) c->used[t->target[i].on - t->device] = 1;
    for (int i = 0; i < t->n_drafters; i++)
        for (int k = 0; is_in(c, i) && k < n_ranks(c, &t->drafter[i]); k++)
            c->used[t->drafter[i].rank[k].on - t->device] = 1;
    for (int i = 0; i < t->n_devices; i++) n += c->used[i];
    for (int i = 0; i < t->n_devices; i++) {
        if (!c->used[i]) continue;
        c->threads[i] = n == t->n_devices ? t->device[i].threads : train__share(t->threads, n, at);
        at++;
    }
    c->out->devices = n;
}

static int threads_of(const count *c, const train_device *d) {
    return c->threads[d - c->t->device];
}

static void count_devices(count *c) {
    const train *t = c->t;
    c->out->allowance = (size_t)64 << 20;
    for (int i = 0; i < t->n_drafters; i++)
        if (is_in(c, i)) c->out->allowance += (size_t)t->drafter[i].l.total * sizeof(bf16);
    for (int i = 0; i < t->n_devices; i++) {
        if (!c->used[i]) continue;
        const size_t stacks = (size_t)c->threads[i] * POOL_STACK;
        line(c, &t->device[i], "", "stacks of threads", stacks);
        c->out->allowance += (size_t)c->threads[i] * ((size_t)10 << 20);
    }
}

/* ---- roles ---- */

/* Layers that any drafter in the count taps: a target row captures each once. */
static int count_taps(const count *c) {
    const train *t = c->t;
    int n = 0;
    for (int k = 0; k < t->n_taps; k++) {
        int wanted = 0;
        for (int i = 0; i < t->n_drafters; i++)
            for (int j = 0; is_in(c, i) && j < t->drafter[i].l.cfg.n_taps; j++)
                wanted |= t->drafter[i].column[j] == k;
        n += wanted;
    }
    return n;
}

static void count_target(count *c, train_target *g) {
    const train *t = c->t;
    const train__rows *r = c->rows;
    const size_t width = (size_t)count_taps(c) * (size_t)target_get_config(t->t)->hidden;
    const size_t bytes =
        row_buffer_bytes(r->max_tokens, r->max_docs) +
        (size_t)r->max_tokens * width * sizeof(float) + (size_t)r->max_docs + 128 +
        target_forward_bytes(t->t, r->max_tokens, r->max_docs, threads_of(c, g->on));
    line(c, g->on, g->role.name, "a row through the target", bytes);
    if (c->lines) g->work_bytes = bytes;
}

/* On one device the roles take turns, and a row that waits would only take memory. */
static int ring_capacity(const count *c) {
    return c->z->ring ? c->z->ring : c->out->devices == 1 ? 1 : 2;
}

static err micro_batch(const count *c, const train_rank *k, int64_t anchors, size_t *bytes) {
    const train_drafter *d = k->of;
    const dev_config config = {.threads = threads_of(c, k->on)};
    dev *own = NULL, *on = k->on->d;
    if (config.threads != k->on->threads) {
        TRY(dev_open_cpu(&own, &config));
        on = own;
    }
    *bytes = step_bytes(on, c->t->t, &d->l, c->rows->max_tokens, anchors);
    if (own) dev_close(own);
    return ERR_OK;
}

static err count_rank(count *c, train_rank *k, int who) {
    const train_drafter *d = k->of;
    const train__rows *r = c->rows;
    const int64_t anchors = r->max_anchors[who];
    const size_t floats = (size_t)d->l.total * sizeof(float), waiting = (size_t)ring_capacity(c);
    const size_t taps =
        (size_t)r->max_tokens * (size_t)d->l.cfg.n_taps * (size_t)d->l.cfg.hidden * sizeof(float);
    const size_t slots =
        waiting * (taps + 64 + row_buffer_bytes(r->max_tokens, r->max_docs) + sizeof(train_slot)) +
        64;
    const size_t weights =
        2 * (floats + 64) + adamw_share_bytes(&d->l) + (size_t)anchors * sizeof(int32_t) + 64;
    size_t work = 0;
    TRY(micro_batch(c, k, anchors, &work));
    line(c, k->on, k->role.name, "masters and gradient", weights);
    line(c, k->on, k->role.name, "rows of features that wait", slots);
    line(c, k->on, k->role.name, "one micro-batch", work);
    if (!c->lines) return ERR_OK;
    k->state_bytes = weights + slots;
    k->work_bytes = work;
    return ERR_OK;
}

static err count_drafter(count *c, train_drafter *d, int at) {
    const train *t = c->t;
    train_rank *first = &d->rank[0];
    const size_t moments = (size_t)d->l.total * sizeof(bf16) + 64 + adamw_bytes(&d->l);
    line(c, first->on, first->role.name, "moments and first weights", moments);
    for (int i = 0; i < n_ranks(c, d); i++) TRY(count_rank(c, &d->rank[i], at));
    if (t->held)
        line(c, first->on, first->role.name, "evaluation, while it runs",
             evaluate_bytes(&t->prompts, t->t, &d->l));
    if (!c->lines) return ERR_OK;
    d->ring_capacity = ring_capacity(c);
    d->state_bytes = moments;
    return ERR_OK;
}

/* ---- the host ---- */

/* Tokens and index of a run are mapped from its store and can be dropped at any time; what is held are names and tables of shards.
 * A plan has no need of a store: it says what the run will hold. */
static size_t store_bytes(const train *t) {
    const size_t shards = (size_t)t->plan.tokens * 5 / ((size_t)256 << 20) + 1;
    return ((size_t)256 << 10) + shards * 64;
}

static void count_host(count *c) {
    train *t = c->t;
    const int64_t docs = data_count(t->data);
    line(c, NULL, "", "target weights", target_bytes(t->t));
    line(c, NULL, "", "tables of the token store", store_bytes(t));
    if (t->held) line(c, NULL, "", "index of held-out rows", data_memory(t->held));
    line(c, NULL, "", "order of rows, one row",
         (size_t)docs * 2 * sizeof(int64_t) +
             row_buffer_bytes(c->rows->max_tokens, c->rows->max_docs));
    line(c, NULL, "", "cursors of updates", (size_t)(c->rows->updates + 1) * 2 * sizeof *t->mark);
    if (c->z->features) line(c, NULL, "", "table of the feature store", features_memory(docs));
}

int train__line_count(const train *t) {
    int n = 8 + t->n_devices + t->n_targets;
    for (int i = 0; i < t->n_drafters; i++) n += 2 + 3 * t->drafter[i].n_ranks;
    return n;
}

void train__own_sizes(const train *t, train__sizes *z) {
    *z = (train__sizes){.tokens_per_row = t->tokens_per_row,
                        .anchor_limit = INT64_MAX,
                        .ring = (int)recipe_int(t->r, RECIPE_devices_ring),
                        .targets = t->n_targets,
                        .ranks = GROUP_MAX_RANKS,
                        .without = -1,
                        .keep = recipe_int(t->r, RECIPE_run_keep),
                        .features = recipe_text(t->r, RECIPE_features_store)[0] != 0};
}

err train__count_bytes(train *t, const train__sizes *z, const train__rows *rows,
                       train_plan_line *lines, train__bytes *out) {
    *out = (train__bytes){0};
    count c = {.t = t, .z = z, .rows = rows, .out = out, .lines = lines};
    find_devices(&c);
    count_host(&c);
    count_devices(&c);
    for (int i = 0; i < n_targets(&c); i++) count_target(&c, &t->target[i]);
    for (int i = 0; i < t->n_drafters; i++)
        if (is_in(&c, i)) TRY(count_drafter(&c, &t->drafter[i], i));
    return ERR_OK;
}
