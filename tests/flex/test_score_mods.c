/* The gallery's scores, sinks and sub-gradients against PyTorch.
 *
 * tests/fixtures/scores.safetensors holds what PyTorch 2.11 gives in double, dense, with gradients by autograd, made by
 * tools/fixtures/make_scores.py from the table's own Python text, and the captured values that both sides bind. Inputs
 * hold bf16 values, so they are run in both types. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn_case.h"
#include "flex/mods.h"
#include "io/json.h"
#include "io/safetensors.h"

enum { B = 2, HQ = 4, HKV = 2, L = 12, S = 15, D = 8, E = 16 };

typedef struct fixture {
    st_file *file;
    arena *a;
} fixture;

static fixture begin(void) {
    fixture f;
    assert_ok(safetensors_open(&f.file, "tests/fixtures/scores.safetensors"));
    assert_ok(arena_create(&f.a, "scores", 0));
    return f;
}
static void end(fixture *f) {
    arena_destroy(f->a);
    safetensors_close(f->file);
}

/* A copy of a tensor: of the file, or of one case. */
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

static const float *floats(const fixture *f, const char *key, const char *name) {
    const tensor *t;
    float *x = copy_of(f, key, name, &t);
    if (!x || t->type != DT_F32) fail_msg("%s/%s is missing or not F32", key, name);
    return x;
}

static void *typed(const fixture *f, dtype type, const char *name, int64_t n) {
    const float *x = floats(f, "", name);
    void *y;
    assert_ok(arena_alloc(f->a, (size_t)n, sizeof *x, &y));
    if (type == DT_F32)
        memcpy(y, x, (size_t)n * sizeof *x);
    else
        dtype_from_f32(type, x, y, (size_t)n);
    return y;
}

static void bind(const fixture *f, const json_t *c, const char *key, const mod *m, attn_score *s) {
    for (s->n = 0; s->n < mods_captures(m); s->n++) {
        const tensor *t;
        expr_value *v = &s->value[s->n];
        const json_t *scalars = json_object_get(c, "scalars");
        int real = m->capture[s->n].type == EXPR_FLOAT;
        double number;
        s->decl[s->n] = m->capture[s->n];
        v->data = copy_of(f, key, m->capture[s->n].name, &t);
        s->elements[s->n] = 0;
        if (v->data) {
            v->type = t->type;
            memcpy(v->dim, t->dim, (size_t)t->ndim * sizeof *t->dim);
            if (real) s->elements[s->n] = tensor_count(t);
        } else if (real) {
            assert_ok(json_get_real(scalars, key, m->capture[s->n].name, &number));
            v->scalar.f = (float)number;
            s->elements[s->n] = 1;
        } else {
            assert_ok(json_get_int(scalars, key, m->capture[s->n].name, &v->scalar.i));
        }
        if (real) s->wanted |= 1u << s->n;
        s->n_learned += s->elements[s->n];
    }
    s->env = (expr_env){s->value, 0, 0};
    assert_ok(expr_compile(&s->e, EXPR_SCORE, m->text, m->capture, s->n));
}

static void near(const char *key, const char *what, const float *got, const float *want,
                 int64_t n) {
    double far = attn_far(got, want, n);
    if (far > 1e-5) fail_msg("%s of %s: %g from PyTorch's", what, key, far);
}

static void compare(const fixture *f, const char *key, const attn_case *c, const attn_result *r) {
    near(key, "o", r->o, floats(f, key, "o"), c->nq * E);
    near(key, "lse", r->lse, floats(f, key, "lse"), c->nq);
    near(key, "dq", r->dq, floats(f, key, "dq"), c->nq * D);
    near(key, "dk", r->dk, floats(f, key, "dk"), c->nk * D);
    near(key, "dv", r->dv, floats(f, key, "dv"), c->nk * E);
    if (c->sinks) near(key, "d_sinks", r->d_sinks, floats(f, key, "d_sinks"), HQ);
    const float *at = r->learned;
    for (int i = 0; i < c->score.n; at += c->score.elements[i++]) {
        char name[80];
        snprintf(name, sizeof name, "d_%s", c->score.decl[i].name);
        if (c->score.elements[i]) near(key, name, at, floats(f, key, name), c->score.elements[i]);
    }
}

static void one_case(const fixture *f, const json_t *j, dtype type, dev *d) {
    const char *name, *mask_name;
    char key[80];
    int sinks;
    const mod *score, *mask;
    attn_case c = {.nq = B * HQ * L, .nk = B * HKV * S};
    assert_ok(json_get_text(j, "cases", "name", &name));
    assert_ok(json_get_text(j, "cases", "mask", &mask_name));
    assert_ok(json_get_bool(j, "cases", "sinks", &sinks));
    snprintf(key, sizeof key, "%s/%s", name, mask_name);
    assert_ok(mods_need(&score, name, EXPR_SCORE));
    assert_ok(mods_need(&mask, mask_name, EXPR_MASK));
    assert_int_equal(mods_captures(mask), 0);
    assert_ok(expr_compile(&c.mask.e, EXPR_MASK, mask->text, NULL, 0));
    bind(f, j, key, score, &c.score);
    c.q = typed(f, type, "q", c.nq * D), c.k = typed(f, type, "k", c.nk * D);
    c.v = typed(f, type, "v", c.nk * E), c.d_o = typed(f, DT_F32, "do", c.nq * E);
    c.d_lse = typed(f, DT_F32, "dlse", c.nq);
    if (sinks) c.sinks = typed(f, DT_F32, "sinks", HQ);
    c.p = (flex_problem){.batch = B,
                         .q_heads = HQ,
                         .kv_heads = HKV,
                         .q_len = L,
                         .kv_len = S,
                         .dim = D,
                         .v_dim = E,
                         .type = type,
                         .mask = c.mask.e,
                         .env = &c.mask.env,
                         .score = c.score.e,
                         .score_env = &c.score.env,
                         .score_grads = c.score.wanted,
                         .sinks = c.sinks};
    attn_result tiles = attn_run(&c, d), definition = attn_reference(&c);
    compare(f, key, &c, &tiles);
    compare(f, key, &c, &definition);
    attn_result_free(&tiles), attn_result_free(&definition);
    expr_free(c.mask.e), expr_free(c.score.e);
}

static json_t *list(const fixture *f, const char *key) {
    json_t *j;
    const char *text = safetensors_meta(f->file, key);
    assert_non_null(text);
    assert_ok(json_parse(&j, key, text, strlen(text)));
    return j;
}

static void scores_are_pytorchs(void **state) {
    (void)state;
    fixture f = begin();
    dev *d = attn_dev(2);
    json_t *cases = list(&f, "cases"), *c;
    size_t i;
    assert_true(json_array_size(cases) > 7);
    json_array_foreach(cases, i, c) {
        one_case(&f, c, DT_F32, d);
        one_case(&f, c, DT_BF16, d);
    }
    json_decref(cases);
    dev_close(d);
    end(&f);
}

static void slopes_at_ties_are_pytorchs(void **state) {
    (void)state;
    fixture f = begin();
    json_t *ties = list(&f, "ties"), *t;
    size_t i;
    json_array_foreach(ties, i, t) {
        const char *text;
        expr *e;
        expr_grad *g;
        assert_ok(json_get_text(t, "ties", "text", &text));
        assert_ok(expr_compile(&e, EXPR_SCORE, text, NULL, 0));
        assert_ok(expr_grad_create(&g, e, 0, f.a));
        const json_t *s = json_object_get(t, "s"), *slope = json_object_get(t, "slope");
        assert_true(json_array_size(s) > 2 && json_array_size(s) == json_array_size(slope));
        for (size_t k = 0; k < json_array_size(s); k++) {
            double at = json_number_value(json_array_get(s, k)), ds;
            (void)expr_grad_eval(g, NULL, 0, 0, 0, 0, at, &ds, NULL, NULL, NULL);
            if (fabs(ds - json_number_value(json_array_get(slope, k))) > 1e-7)
                fail_msg("slope of %s at %g is %g, not %g", text, at, ds,
                         json_number_value(json_array_get(slope, k)));
        }
        expr_free(e);
    }
    json_decref(ties);
    end(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_are_pytorchs),
        cmocka_unit_test(slopes_at_ties_are_pytorchs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
