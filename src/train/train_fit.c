/* Whether the run fits memory and disk, why not, and what would: settings tried on paper, one at a time and then together.
 *
 * Nothing is offered that was not counted with the same code that made the plan. A run that has begun keeps what its rows and sums
 * depend on, so only settings that change no result are offered to it. Of a kind of setting the mildest that fits is
 * named. It changes nothing by itself: whoever started the run decides. */
#include "core/limits.h"
#include "io/gguf.h"
#include "train/train_parts.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { SAID = 3 /* largest lines named */ };

/* ---- what there is ---- */

/* Asked before anything is loaded: all that the run takes comes out of it. */
void train__look_at_room(train *t) {
    limits_memory m;
    limits_get_memory("", &m);
    size_t room = m.room > 0 ? (size_t)m.room : 0;
    const size_t limit = t->opt.memory_limit;
    if (limit && (t->opt.plan_only || !room || limit < room)) room = limit;
    t->plan.memory_room = room;
}

static int fits_memory(const train *t, const train__bytes *b) {
    return !t->plan.memory_room || b->total + b->allowance <= t->plan.memory_room;
}

static uint64_t still_to_come(const train_plan_file *f) {
    return f->bytes > f->there ? f->bytes - f->there : 0;
}

/* Of the file system of entry i; 0 for an entry whose file system an earlier one has shown. */
static uint64_t need_of_system(const train_plan_file *f, int n, int i) {
    uint64_t sum = 0;
    for (int k = 0; k < n; k++) {
        if (f[k].system != f[i].system) continue;
        if (k < i) return 0;
        const uint64_t more = still_to_come(&f[k]);
        sum = sum + more < sum ? UINT64_MAX : sum + more;
    }
    return sum;
}

/* The first entry whose file system is too small, or -1. */
static int too_small(const train_plan_file *f, int n) {
    for (int i = 0; i < n; i++)
        if (need_of_system(f, n, i) > f[i].room) return i;
    return -1;
}

/* ---- settings to try ---- */

typedef struct offer {
    train__sizes z;
    char set[512];
} offer;

static void say(offer *o, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void say(offer *o, const char *fmt, ...) {
    const size_t n = strlen(o->set);
    va_list ap;
    va_start(ap, fmt);
    if (n) strncat(o->set, " ", sizeof o->set - n - 1);
    vsnprintf(o->set + strlen(o->set), sizeof o->set - strlen(o->set), fmt, ap);
    va_end(ap);
}

/* "[cpu:0, cpu:1]" of the first n. */
static void device_list(char *out, size_t size, train_device *const *on, int n) {
    size_t at = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < n && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%s", i ? "," : "", on[i]->name);
    if (at < size) snprintf(out + at, size - at, "]");
}

/* Each of these moves a setting one step towards less; 0: it cannot go further. */
static int less_ring(const train *t, offer *o) {
    if (t->drafter[0].ring_capacity <= 1 || o->z.ring == 1) return 0;
    o->z.ring = 1;
    return 1;
}
static int less_tokens(const train *t, offer *o) {
    if (o->z.tokens_per_row <= 64 || t->from_update) return 0;
    o->z.tokens_per_row = o->z.tokens_per_row > 128 ? o->z.tokens_per_row / 2 : 64;
    return 1;
}
static int less_anchors(const train *t, offer *o) {
    int64_t most = 0;
    for (int i = 0; i < t->n_drafters; i++)
        if (t->drafter[i].anchor_limit > most) most = t->drafter[i].anchor_limit;
    if (o->z.anchor_limit < most) most = o->z.anchor_limit;
    if (most <= 1 || t->from_update) return 0;
    o->z.anchor_limit = most / 2;
    return 1;
}
static int less_targets(const train *t, offer *o) {
    (void)t;
    return o->z.targets > 1 && o->z.targets--;
}
static int less_ranks(const train *t, offer *o) {
    int most = 0;
    for (int i = 0; i < t->n_drafters; i++)
        if (t->drafter[i].n_ranks > most) most = t->drafter[i].n_ranks;
    if (o->z.ranks < most) most = o->z.ranks;
    if (most <= 1 || t->from_update) return 0;
    o->z.ranks = most - 1;
    return 1;
}
static int less_features(const train *t, offer *o) {
    if (!o->z.features || t->from_update) return 0;
    o->z.features = 0;
    return 1;
}
static int less_keep(const train *t, offer *o) {
    (void)t;
    return o->z.keep > 1 && o->z.keep--;
}
static int less_drafters(const train *t, offer *o) {
    if (t->n_drafters < 2 || o->z.without + 1 >= t->n_drafters) return 0;
    o->z.without++;
    return 1;
}

typedef struct step_down {
    int (*less)(const train *t, offer *o);
    int memory, disk; /* what it helps */
} step_down;
/* In the order in which they are offered: first those that change no result (ring, targets, keep). */
static const step_down steps[] = {
    {less_ring, 1, 0},   {less_targets, 1, 0}, {less_keep, 0, 1},  {less_features, 0, 1},
    {less_tokens, 1, 0}, {less_anchors, 1, 0}, {less_ranks, 1, 0}, {less_drafters, 1, 1},
};
enum { STEPS = sizeof steps / sizeof *steps };

static void say_anchors(const train *t, offer *o) {
    for (int i = 0; i < t->n_drafters; i++) {
        const train_drafter *d = &t->drafter[i];
        if (d->anchor_limit <= o->z.anchor_limit || i == o->z.without) continue;
        if (d->name[0])
            say(o, "drafters.%s.anchors.per_document=%" PRId64, d->name, o->z.anchor_limit);
        else
            say(o, "anchors.per_document=%" PRId64, o->z.anchor_limit);
    }
}

static void say_devices(const train *t, offer *o) {
    train_device *on[TRAIN_MAX_DEVICES];
    char list[384];
    if (o->z.targets < t->n_targets) {
        for (int i = 0; i < o->z.targets; i++) on[i] = t->target[i].on;
        device_list(list, sizeof list, on, o->z.targets);
        say(o, "devices.target=%s", list);
    }
    for (int i = 0; i < t->n_drafters; i++) {
        const train_drafter *d = &t->drafter[i];
        if (d->n_ranks <= o->z.ranks || i == o->z.without) continue;
        for (int k = 0; k < o->z.ranks; k++) on[k] = d->rank[k].on;
        device_list(list, sizeof list, on, o->z.ranks);
        if (d->name[0])
            say(o, "drafters.%s.devices=%s", d->name, list);
        else
            say(o, "devices.drafter=%s", list);
    }
}

/* The settings that differ from the recipe's, as they are written on the command line. */
static void spell(const train *t, offer *o) {
    train__sizes own;
    train__own_sizes(t, &own);
    o->set[0] = 0;
    if (o->z.ring != own.ring) say(o, "devices.ring=%d", o->z.ring);
    if (o->z.features != own.features) say(o, "features.store=\"\"");
    if (o->z.keep != own.keep) say(o, "run.keep=%" PRId64, o->z.keep);
    if (o->z.tokens_per_row != own.tokens_per_row)
        say(o, "run.tokens_per_row=%" PRId64, o->z.tokens_per_row);
    say_anchors(t, o);
    say_devices(t, o);
    if (o->z.without >= 0) say(o, "no drafter %s", t->drafter[o->z.without].name);
}

/* ---- trying ---- */

typedef struct verdict {
    int memory, disk; /* fits */
    uint64_t memory_bytes, disk_bytes;
} verdict;

/* Rows counted last, for settings that change none of them: counting walks every epoch of the run. */
typedef struct trial {
    train__sizes z;
    train__rows rows;
    int counted;
} trial;

static err rows_with(train *t, trial *k, const train__sizes *z) {
    const train__sizes *old = &k->z;
    if (k->counted && old->tokens_per_row == z->tokens_per_row &&
        old->anchor_limit == z->anchor_limit && old->without == z->without)
        return ERR_OK;
    k->z = *z;
    k->counted = 1;
    return train__count_rows(t, z, &k->rows);
}

static err try_sizes(train *t, trial *k, const train__sizes *z, verdict *v) {
    train__bytes b;
    train_plan_file files[TRAIN_PLAN_FILES];
    int n = 0;
    TRY(rows_with(t, k, z));
    TRY(train__count_bytes(t, z, &k->rows, NULL, &b));
    TRY(train__count_files(t, z, &k->rows, files, &n));
    v->memory = fits_memory(t, &b);
    v->memory_bytes = b.total + b.allowance;
    v->disk = too_small(files, n) < 0;
    v->disk_bytes = 0;
    for (int i = 0; i < n; i++) v->disk_bytes += need_of_system(files, n, i);
    return ERR_OK;
}

static int helps(const step_down *s, const verdict *v) {
    return (!v->memory && s->memory) || (!v->disk && s->disk);
}

static void keep_offer(const train *t, offer *o, const verdict *v, int memory) {
    train_plan *p = (train_plan *)&t->plan;
    train_plan_fit *f = &p->fits[p->n_fits++];
    spell(t, o);
    snprintf(f->set, sizeof f->set, "%s", o->set);
    f->bytes = memory ? v->memory_bytes : v->disk_bytes;
}

/* One kind of setting alone, as mild as fits. */
static err try_alone(train *t, trial *k, const verdict *now) {
    for (int i = 0; i < STEPS && t->plan.n_fits < TRAIN_PLAN_FITS; i++) {
        offer o = {0};
        train__own_sizes(t, &o.z);
        if (!helps(&steps[i], now)) continue;
        while (steps[i].less(t, &o)) {
            verdict v;
            TRY(try_sizes(t, k, &o.z, &v));
            if (!v.memory || !v.disk) continue;
            keep_offer(t, &o, &v, !now->memory);
            break;
        }
    }
    return ERR_OK;
}

/* Takes back what is not needed: as many settings as can be stay the recipe's. */
static err ease(train *t, trial *k, offer *o, verdict *v) {
    train__sizes own;
    train__own_sizes(t, &own);
    for (int i = 0; i < 7; i++) {
        train__sizes z = o->z;
        verdict w;
        switch (i) {
        case 0: z.ranks = own.ranks; break;
        case 1: z.anchor_limit = own.anchor_limit; break;
        case 2: z.tokens_per_row = own.tokens_per_row; break;
        case 3: z.keep = own.keep; break;
        case 4: z.features = own.features; break;
        case 5: z.targets = own.targets; break;
        default: z.ring = own.ring; break;
        }
        if (!memcmp(&z, &o->z, sizeof z)) continue;
        TRY(try_sizes(t, k, &z, &w));
        if (!w.memory || !w.disk) continue;
        o->z = z;
        *v = w;
    }
    return ERR_OK;
}

static int is_new(const train *t, offer *o) {
    spell(t, o);
    for (int i = 0; i < t->plan.n_fits; i++)
        if (!strcmp(t->plan.fits[i].set, o->set)) return 0;
    return 1;
}

/* All kinds, a step of each in turn, until it fits or nothing is left. */
static err try_together(train *t, trial *k, const verdict *now) {
    offer o = {0};
    train__own_sizes(t, &o.z);
    for (int moved = 1; moved;) {
        moved = 0;
        for (int i = 0; i < STEPS; i++) {
            verdict v;
            if (steps[i].less == less_drafters || !helps(&steps[i], now)) continue;
            if (!steps[i].less(t, &o)) continue;
            moved = 1;
            TRY(try_sizes(t, k, &o.z, &v));
            if (!v.memory || !v.disk) continue;
            TRY(ease(t, k, &o, &v));
            if (is_new(t, &o)) keep_offer(t, &o, &v, !now->memory);
            return ERR_OK;
        }
    }
    return ERR_OK;
}

/* ---- sentences ---- */

static err say_largest(const train *t, str *out) {
    const train_plan *p = &t->plan;
    const train_plan_line *said[SAID] = {NULL};
    for (int k = 0; k < SAID; k++) {
        const train_plan_line *best = NULL;
        char bytes[24];
        for (int i = 0; i < p->n_lines; i++) {
            const train_plan_line *l = &p->lines[i];
            int again = 0;
            for (int j = 0; j < k; j++) again |= said[j] == l;
            if (!again && (!best || l->bytes > best->bytes)) best = l;
        }
        if (!best) break;
        said[k] = best;
        TRY(str_printf(out, "%s%s%s%s %s", k ? ", " : " (", best->role, best->role[0] ? ": " : "",
                       best->name, str_bytes((double)best->bytes, bytes)));
    }
    return str_printf(out, ")");
}

static err say_memory(const train *t, str *out) {
    const train_plan *p = &t->plan;
    char need[24], have[24];
    TRY(str_printf(out, "the run needs %s of memory and %s are available",
                   str_bytes((double)(p->total_bytes + p->allowance), need),
                   str_bytes((double)p->memory_room, have)));
    return say_largest(t, out);
}

static err say_disk(const train *t, int bad, str *out) {
    const train_plan *p = &t->plan;
    const train_plan_file *largest = NULL;
    char need[24], have[24], one[24];
    for (int i = 0; i < p->n_files; i++)
        if (p->files[i].system == p->files[bad].system &&
            (!largest || still_to_come(&p->files[i]) > still_to_come(largest)))
            largest = &p->files[i];
    return str_printf(
        out, "%sthe run will write %s more to the file system of %s, which has %s free (%s %s)",
        out->n ? "; " : "", str_bytes((double)need_of_system(p->files, p->n_files, bad), need),
        p->files[bad].folder, str_bytes((double)p->files[bad].room, have), largest->name,
        str_bytes((double)still_to_come(largest), one));
}

static err say_fits(const train *t, const char *kind, str *out) {
    const train_plan *p = &t->plan;
    char bytes[24];
    for (int i = 0; i < p->n_fits; i++)
        TRY(str_printf(out, "%s%s (%s)", i ? ", or " : "; what would fit: ", p->fits[i].set,
                       str_bytes((double)p->fits[i].bytes, bytes)));
    if (p->n_fits) return ERR_OK;
    return str_printf(out,
                      "; no setting of devices, rows, anchors, drafters or stores makes it fit: "
                      "it takes more %s, or a smaller model",
                      kind);
}

err train__judge(train *t) {
    train_plan *p = &t->plan;
    const train__bytes b = {.total = p->total_bytes, .allowance = p->allowance};
    const int bad = too_small(p->files, p->n_files);
    const verdict now = {.memory = fits_memory(t, &b), .disk = bad < 0};
    trial k = {0};
    str text = {0};
    if (now.memory && now.disk) return ERR_OK;
    TRY(try_alone(t, &k, &now));
    /* One setting alone may have to go far: then a mix is offered too. */
    if (p->n_fits < 2) TRY(try_together(t, &k, &now));
    err e = now.memory ? ERR_OK : say_memory(t, &text);
    if (!e && !now.disk) e = say_disk(t, bad, &text);
    if (!e) e = say_fits(t, now.memory ? "disk" : "memory", &text);
    if (!e) snprintf(p->refused, sizeof p->refused, "%s", text.s);
    str_free(&text);
    return e;
}

/* ---- before rows are read ---- */

/* What no setting of rows or devices can lower, before a folder is made and rows are prepared. */
err train__check_weights(const train *t) {
    size_t drafters = 0;
    char need[24], have[24], a[24], b[24];
    for (int i = 0; i < t->n_drafters; i++)
        drafters += (size_t)t->drafter[i].l.total * (4 * sizeof(float) + sizeof(bf16));
    const size_t all = target_bytes(t->t) + drafters;
    if (!t->plan.memory_room || all <= t->plan.memory_room) return ERR_OK;
    return err_set(ERR_REFUSED,
                   "the weights alone need %s of memory and %s are available (target %s, masters, "
                   "gradients and moments of %s %s); it takes more memory, or a smaller model",
                   str_bytes((double)all, need), str_bytes((double)t->plan.memory_room, have),
                   str_bytes((double)target_bytes(t->t), a),
                   t->n_drafters > 1 ? "all drafters" : "the drafter",
                   str_bytes((double)drafters, b));
}

err train__check_target(const train *t, const char *path) {
    gguf *g = NULL;
    double count = 0;
    char need[24], have[24];
    TRY(gguf_open(&g, path));
    for (int i = 0; i < gguf_tensor_count(g); i++) {
        const gguf_tensor *k = gguf_tensor_at(g, i);
        double n = 1;
        for (int j = 0; j < k->ndim; j++) n *= (double)k->dim[j];
        count += n;
    }
    gguf_close(g);
    const double bytes = count * sizeof(bf16);
    if (!t->plan.memory_room || bytes <= (double)t->plan.memory_room) return ERR_OK;
    return err_set(ERR_REFUSED,
                   "%s: the target's weights take %s of memory as bf16 and %s are available; it "
                   "takes more memory, or a smaller target",
                   path, str_bytes(bytes, need), str_bytes((double)t->plan.memory_room, have));
}
