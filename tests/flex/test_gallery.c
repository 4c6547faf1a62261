/* Attention under every entry of the gallery, by tiles, against PyTorch 2.11: outputs, LSE and all gradients.
 *
 * tests/fixtures/gallery.safetensors holds what a dense definition gives in double, agreed with PyTorch's flex_attention
 * (tools/fixtures/make_gallery.py), the captured values that both sides bind, and how far PyTorch's own dense fp32 and
 * bf16 runs are from it: the tiles may be twice as far, plus 1e-5 (fp32) or 1e-3 (bf16). An entry without a case is a
 * failure. Each case runs in both input types and in three sizes of tiles; tests of shapes are in test_gallery_shapes.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn_case.h"
#include "flex/mods.h"
#include "io/json.h"
#include "io/safetensors.h"

typedef struct fixture {
    st_file *file;
    json_t *cases;
    arena *a;
} fixture;

static int open_fixture(void **state) {
    fixture *f = calloc(1, sizeof *f);
    if (!f) abort();
    *state = f;
    assert_ok(safetensors_open(&f->file, "tests/fixtures/gallery.safetensors"));
    assert_ok(arena_create(&f->a, "gallery", 0));
    const char *text = safetensors_meta(f->file, "cases");
    assert_non_null(text);
    assert_ok(json_parse(&f->cases, "cases", text, strlen(text)));
    return 0;
}
static int close_fixture(void **state) {
    fixture *f = *state;
    json_decref(f->cases);
    arena_destroy(f->a);
    safetensors_close(f->file);
    free(f);
    return 0;
}

/* A copy of a tensor: a shared one when key is empty, or of one case; NULL: there is none. */
static void *copy_of(const fixture *f, const char *key, const char *name, const tensor **t) {
    char full[128];
    void *p;
    snprintf(full, sizeof full, "%s%s%s", key, *key ? "/" : "", name);
    *t = safetensors_find(f->file, full);
    if (!*t) return NULL;
    assert_ok(arena_alloc_raw(f->a, tensor_bytes(*t) + 1, 1, &p));
    memcpy(p, (*t)->data, tensor_bytes(*t));
    return p;
}

/* The first n floats of a tensor that has at least so many. */
static float *floats(const fixture *f, const char *key, const char *name, int64_t n) {
    const tensor *t;
    float *x = copy_of(f, key, name, &t);
    if (!x || t->type != DT_F32 || tensor_count(t) < n)
        fail_msg("%s/%s is missing, or is not F32 of %lld", key, name, (long long)n);
    return x;
}

static void *typed(const fixture *f, dtype type, const char *name, int64_t n) {
    float *x = floats(f, "", name, n);
    void *y;
    if (type == DT_F32) return x;
    assert_ok(arena_alloc(f->a, (size_t)n, sizeof *x, &y));
    dtype_from_f32(type, x, y, (size_t)n);
    return y;
}

/* The value of one capture: an array of the case, or one of its scalars. Returns its elements. */
static int64_t bind(const fixture *f, const json_t *c, const char *key, const expr_decl *d,
                    expr_value *v) {
    const tensor *t;
    const json_t *scalars = json_object_get(c, "scalars");
    double number;
    *v = (expr_value){.data = copy_of(f, key, d->name, &t)};
    if (v->data) {
        v->type = t->type;
        assert_int_equal(t->ndim, d->ndim);
        memcpy(v->dim, t->dim, (size_t)t->ndim * sizeof *t->dim);
        return tensor_count(t);
    }
    if (d->type == EXPR_FLOAT) {
        assert_ok(json_get_real(scalars, key, d->name, &number));
        v->scalar.f = (float)number;
    } else {
        assert_ok(json_get_int(scalars, key, d->name, &v->scalar.i));
    }
    return 1;
}

static void bind_mask(const fixture *f, const json_t *c, const char *key, attn_mask *to) {
    const char *name;
    const mod *m;
    assert_ok(json_get_text(c, key, "mask", &name));
    assert_ok(mods_need(&m, name, EXPR_MASK));
    to->n = mods_captures(m);
    for (int i = 0; i < to->n; i++) bind(f, c, key, &m->capture[i], &to->value[i]);
    to->env = (expr_env){to->value, 0, 0};
    assert_ok(expr_compile(&to->e, EXPR_MASK, m->text, m->capture, to->n));
}

static void bind_score(const fixture *f, const json_t *c, const char *key, attn_score *to) {
    const char *name;
    const mod *m;
    assert_ok(json_get_text(c, key, "score", &name));
    if (!*name) return;
    assert_ok(mods_need(&m, name, EXPR_SCORE));
    to->n = mods_captures(m);
    for (int i = 0; i < to->n; i++) {
        int64_t n = bind(f, c, key, &m->capture[i], &to->value[i]);
        to->decl[i] = m->capture[i];
        if (to->decl[i].type != EXPR_FLOAT) continue;
        to->elements[i] = n, to->n_learned += n, to->wanted |= 1u << i;
    }
    to->env = (expr_env){to->value, 0, 0};
    assert_ok(expr_compile(&to->e, EXPR_SCORE, m->text, m->capture, to->n));
}

static void make(attn_case *c, const fixture *f, const json_t *j, const char *key, dtype type) {
    memset(c, 0, sizeof *c);
    const json_t *shape = json_object_get(j, "shape");
    int64_t n[7];
    int sinks;
    assert_int_equal(json_array_size(shape), 7);
    for (size_t i = 0; i < 7; i++) n[i] = json_integer_value(json_array_get(shape, i));
    c->nq = n[0] * n[1] * n[3], c->nk = n[0] * n[2] * n[4];
    bind_mask(f, j, key, &c->mask);
    bind_score(f, j, key, &c->score);
    assert_ok(json_get_bool(j, key, "sinks", &sinks));
    c->q = typed(f, type, "q", c->nq * n[5]), c->k = typed(f, type, "k", c->nk * n[5]);
    c->v = typed(f, type, "v", c->nk * n[6]);
    c->d_o = floats(f, "", "do", c->nq * n[6]), c->d_lse = floats(f, "", "dlse", c->nq);
    if (sinks) c->sinks = floats(f, "", "sinks", n[1]);
    c->p = (flex_problem){.batch = n[0],
                          .q_heads = n[1],
                          .kv_heads = n[2],
                          .q_len = n[3],
                          .kv_len = n[4],
                          .dim = n[5],
                          .v_dim = n[6],
                          .type = type,
                          .mask = c->mask.e,
                          .env = &c->mask.env,
                          .score = c->score.e,
                          .score_env = &c->score.env,
                          .score_grads = c->score.wanted,
                          .sinks = c->sinks};
}

/* name: as in the fixture, where it stands beside the errors of PyTorch's dense runs in fp32 and bf16. */
static void near(const fixture *f, const json_t *j, const char *name, dtype type, const float *got,
                 int64_t n) {
    const char *key = json_string_value(json_object_get(j, "key"));
    const float *want = floats(f, key, name, n);
    const json_t *error = json_object_get(json_object_get(j, "error"), name);
    assert_int_equal(json_array_size(error), 2);
    double dense = json_number_value(json_array_get(error, type == DT_BF16));
    double far = attn_far(got, want, n), most = 2 * dense + (type == DT_BF16 ? 1e-3 : 1e-5);
    if (!(far <= most))
        fail_msg("%s of %s in %s: %g from PyTorch's, more than %g", name, key, dtype_name(type),
                 far, most);
}

static void compare(const fixture *f, const json_t *j, const attn_case *c, const attn_result *r) {
    const flex_problem *p = &c->p;
    near(f, j, "o", p->type, r->o, c->nq * p->v_dim);
    near(f, j, "lse", p->type, r->lse, c->nq);
    near(f, j, "d_q", p->type, r->dq, c->nq * p->dim);
    near(f, j, "d_k", p->type, r->dk, c->nk * p->dim);
    near(f, j, "d_v", p->type, r->dv, c->nk * p->v_dim);
    if (c->sinks) near(f, j, "d_sinks", p->type, r->d_sinks, p->q_heads);
    const float *at = r->learned;
    for (int i = 0; i < c->score.n; at += c->score.elements[i++]) {
        char name[80];
        snprintf(name, sizeof name, "d_%s", c->score.decl[i].name);
        if (c->score.elements[i]) near(f, j, name, p->type, at, c->score.elements[i]);
    }
}

/* Rows that see nothing: exact, and counted. A sink is then all that the LSE holds. */
static int empty_rows(const attn_case *c, const attn_result *r, const float *lse) {
    int rows = 0;
    for (int64_t i = 0; i < c->nq; i++) {
        float sink = c->sinks ? c->sinks[i / c->p.q_len % c->p.q_heads] : -INFINITY;
        if (lse[i] != sink) continue;
        rows++;
        assert_true(r->lse[i] == sink);
        for (int64_t e = 0; e < c->p.v_dim; e++) assert_true(r->o[i * c->p.v_dim + e] == 0.0f);
        for (int64_t e = 0; e < c->p.dim; e++) assert_true(r->dq[i * c->p.dim + e] == 0.0f);
    }
    return rows;
}

static int one_case(const fixture *f, const json_t *j, dtype type, int32_t tile, dev *d) {
    const char *key;
    assert_ok(json_get_text(j, "cases", "key", &key));
    attn_case c;
    make(&c, f, j, key, type);
    c.p.tile_q = c.p.tile_kv = tile;
    attn_result r = attn_run(&c, d);
    compare(f, j, &c, &r);
    int rows = empty_rows(&c, &r, floats(f, key, "lse", c.nq));
    attn_result_free(&r);
    if (tile == 0) { /* the definition is PyTorch's as well */
        r = attn_reference(&c);
        compare(f, j, &c, &r);
        attn_result_free(&r);
    }
    expr_free(c.mask.e), expr_free(c.score.e);
    return rows;
}

static void results_are_pytorchs(void **state) {
    static const int32_t tiles[] = {0, 16, 32};
    const fixture *f = *state;
    dev *d = attn_dev(2);
    size_t i;
    json_t *j;
    int empty = 0, empty_with_sinks = 0;
    json_array_foreach(f->cases, i, j) for (int t = 0; t < 6; t++) {
        int rows = one_case(f, j, t % 2 ? DT_BF16 : DT_F32, tiles[t / 2], d);
        *(json_is_true(json_object_get(j, "sinks")) ? &empty_with_sinks : &empty) += rows;
    }
    assert_true(empty > 0 && empty_with_sinks > 0);
    dev_close(d);
}

static void every_entry_has_a_case(void **state) {
    const fixture *f = *state;
    for (int i = 0; i < mods_count(); i++) {
        const mod *m = mods_at(i);
        size_t k;
        json_t *j;
        int found = 0;
        json_array_foreach(f->cases, k, j) {
            const char *role = m->role == EXPR_MASK ? "mask" : "score", *name;
            assert_ok(json_get_text(j, "cases", role, &name));
            found |= !strcmp(name, m->name);
        }
        if (!found) fail_msg("'%s' has no case: make the fixture anew", m->name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_entry_has_a_case),
        cmocka_unit_test(results_are_pytorchs),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
