/* The gallery: every entry compiles as it stands and stands in docs/LANGUAGE.md, and every mask has PyTorch's tiles and brute force's.
 *
 * tests/fixtures/block_masks.safetensors holds PyTorch 2.11's lists for each mask, made by tools/fixtures/make_block_masks.py
 * from the table's own Python text, and the captured values that both sides bind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "flex/blockmask_lists.h"
#include "flex/mods.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "support/says.h"

static void every_entry_compiles(void **state) {
    (void)state;
    for (int i = 0; i < mods_count(); i++) {
        const mod *m = mods_at(i);
        expr *e;
        assert_ok(expr_compile(&e, m->role, m->text, m->capture, mods_captures(m)));
        assert_int_equal(expr_capture_count(e), mods_captures(m));
        expr_free(e);
        assert_true(*m->python && *m->about);
        assert_ptr_equal(mods_find(m->name), m); /* names are not used twice */
    }
    const mod *m;
    assert_ok(mods_need(&m, "dflash", EXPR_MASK));
    assert_says(mods_need(&m, "alibi", EXPR_MASK), ERR_USAGE, "'alibi' is a score",
                "a mask is needed");
    assert_says(mods_need(&m, "alibi2", EXPR_SCORE), ERR_USAGE, "'alibi2' is no score",
                "did you mean alibi?");
}

/* docs/LANGUAGE.md shows every entry as it is. */
static void the_page_shows_the_table(void **state) {
    (void)state;
    static char page[200000], part[2000];
    FILE *f = fopen("docs/LANGUAGE.md", "rb");
    assert_non_null(f);
    size_t n = fread(page, 1, sizeof page - 1, f);
    fclose(f);
    assert_true(n > 0 && n < sizeof page - 1);
    for (int i = 0; i < mods_count(); i++) {
        const mod *m = mods_at(i);
        const char *const forms[] = {"**%s** (", "%s", "```\n%s\n```", "PyTorch: `%s`"};
        const char *const texts[] = {m->name, m->about, m->text, m->python};
        for (int j = 0; j < 4; j++) {
            const char *mark = strstr(forms[j], "%s");
            snprintf(part, sizeof part, "%.*s%s%s", (int)(mark - forms[j]), forms[j], texts[j],
                     mark + 2);
            if (!strstr(page, part)) fail_msg("docs/LANGUAGE.md lacks: %s", part);
        }
    }
}

typedef struct fixture {
    st_file *file;
    json_t *cases;
    int32_t block;
    arena *a;
} fixture;

static const tensor *find(const fixture *f, const char *key, const char *name) {
    char full[128];
    snprintf(full, sizeof full, "%s/%s", key, name);
    return safetensors_find(f->file, full);
}

static void *copy_of(const fixture *f, const tensor *t) {
    void *p;
    assert_ok(arena_alloc_raw(f->a, tensor_bytes(t) + 1, 1, &p));
    memcpy(p, t->data, tensor_bytes(t));
    return p;
}

static const int32_t *list_of(const fixture *f, const char *key, const char *name) {
    const tensor *t = find(f, key, name);
    if (!t) fail_msg("%s/%s is missing", key, name);
    assert_int_equal(t->type, DT_I32);
    return copy_of(f, t);
}

static void bind(const fixture *f, const json_t *c, const char *key, const mod *m,
                 expr_value *value) {
    for (int i = 0; i < mods_captures(m); i++) {
        const char *name = m->capture[i].name;
        const tensor *t = find(f, key, name);
        value[i] = (expr_value){0};
        if (t) {
            value[i].type = t->type;
            value[i].data = copy_of(f, t);
            assert_int_equal(t->ndim, m->capture[i].ndim);
            memcpy(value[i].dim, t->dim, (size_t)t->ndim * sizeof *t->dim);
        } else {
            assert_ok(json_get_int(json_object_get(c, "scalars"), key, name, &value[i].scalar.i));
        }
    }
}

/* PyTorch pads ragged lengths with hidden cells: a last tile that is full here is partial there. */
static int theirs(const block_mask *m, int64_t q, int64_t k, int kind) {
    int ragged = (q + 1) * m->tile_q > m->q_len || (k + 1) * m->tile_kv > m->kv_len;
    return kind == 2 && ragged ? 1 : kind;
}

static int kind_in(const block_mask *m, int64_t line, int64_t k) {
    for (int64_t r = m->row_start[line]; r < m->row_start[line + 1]; r++)
        if (k >= m->row_run[r].start && k < m->row_run[r].start + m->row_run[r].length)
            return 1 + m->row_run[r].full;
    return 0;
}

static void compare(const char *key, const block_mask *own, const block_mask *torch,
                    const uint8_t *brute) {
    for (int64_t e = 0; e < own->batch * own->heads; e++)
        for (int64_t q = 0; q < own->q_tiles; q++)
            for (int64_t k = 0; k < own->kv_tiles; k++) {
                int have = kind_in(own, e * own->q_tiles + q, k);
                int want = kind_in(torch, e * own->q_tiles + q, k);
                if (theirs(own, q, k, have) != want ||
                    have != brute[(e * own->q_tiles + q) * own->kv_tiles + k])
                    fail_msg(
                        "%s: tile (%lld, %lld) of entry %lld is %d, by PyTorch %d, by brute force %d",
                        key, (long long)q, (long long)k, (long long)e, have, want,
                        brute[(e * own->q_tiles + q) * own->kv_tiles + k]);
            }
}

static void one_case(const fixture *f, const json_t *c) {
    const char *name, *key;
    const mod *m;
    expr *e;
    expr_value value[MODS_MAX_CAPTURES];
    const expr_env env = {value, 0, 0};
    block_mask_args args = {.env = &env, .heads = 1, .tile_q = f->block, .tile_kv = f->block};
    block_mask own, torch;
    uint8_t *brute;
    assert_ok(json_get_text(c, "cases", "name", &name));
    assert_ok(json_get_text(c, "cases", "key", &key));
    assert_ok(json_get_int(c, key, "batch", &args.batch));
    assert_ok(json_get_int(c, key, "q_len", &args.q_len));
    assert_ok(json_get_int(c, key, "kv_len", &args.kv_len));
    assert_ok(mods_need(&m, name, EXPR_MASK));
    bind(f, c, key, m, value);
    assert_ok(expr_compile(&e, EXPR_MASK, m->text, m->capture, mods_captures(m)));
    args.mask = e;
    if (blockmask_build(&own, &args, f->a, NULL)) fail_msg("%s: %s", key, err_text());
    const blockmask_lists l = {
        .batch = args.batch,
        .heads = 1,
        .q_len = args.q_len,
        .kv_len = args.kv_len,
        .tile_q = f->block,
        .tile_kv = f->block,
        .kv = {list_of(f, key, "kv_num_blocks"), list_of(f, key, "kv_indices"),
               list_of(f, key, "full_kv_num_blocks"), list_of(f, key, "full_kv_indices")},
        .q = {list_of(f, key, "q_num_blocks"), list_of(f, key, "q_indices"),
              list_of(f, key, "full_q_num_blocks"), list_of(f, key, "full_q_indices")}};
    if (blockmask_import(&torch, &l, 0, f->a)) fail_msg("%s: %s", key, err_text());
    assert_int_equal(own.batch, args.batch);
    assert_ok(arena_alloc_raw(f->a, (size_t)(args.batch * own.q_tiles * own.kv_tiles), 1, &brute));
    assert_ok(blockmask_brute(&args, brute));
    compare(key, &own, &torch, brute);
    expr_free(e);
}

static void tiles_are_pytorchs(void **state) {
    (void)state;
    fixture f = {0};
    size_t i;
    json_t *c;
    int masks = 0, seen = 0;
    assert_ok(arena_create(&f.a, "gallery", 0));
    assert_ok(safetensors_open(&f.file, "tests/fixtures/block_masks.safetensors"));
    const char *text = safetensors_meta(f.file, "cases"),
               *block = safetensors_meta(f.file, "block");
    assert_true(text && block);
    f.block = atoi(block);
    assert_ok(json_parse(&f.cases, "cases", text, strlen(text)));
    json_array_foreach(f.cases, i, c) one_case(&f, c);
    for (int j = 0; j < mods_count(); j++) { /* none is left out */
        masks += mods_at(j)->role == EXPR_MASK;
        int found = 0;
        json_array_foreach(f.cases, i, c) found |=
            !strcmp(json_string_value(json_object_get(c, "name")), mods_at(j)->name);
        seen += found;
    }
    assert_int_equal(seen, masks);
    json_decref(f.cases);
    safetensors_close(f.file);
    arena_destroy(f.a);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_entry_compiles),
                                       cmocka_unit_test(the_page_shows_the_table),
                                       cmocka_unit_test(tiles_are_pytorchs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
