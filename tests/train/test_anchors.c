/* Anchors and labels: what may be drawn, what a draw depends on, and which slots carry loss.
 *
 * B13 (budget per document), B20 (the mask is read at the predicted position) and B44 (draws depend on seed, epoch and
 * document alone) as small rows worked out by hand; uniformity by counting draws. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "support/numbers.h"
#include "train/anchors.h"
#include "train/labels.h"
#include <string.h>

enum { MAX = 256 };
typedef struct own_row {
    data_row row;
    int32_t tokens[MAX], document[MAX], position[MAX];
    uint8_t loss[MAX];
    int64_t start[9], id[8];
} own_row;

/* Documents of the given lengths; token = its index in the row; nothing supervised yet. */
static void make(own_row *o, const int64_t *length, int docs) {
    memset(o, 0, sizeof *o);
    o->row = (data_row){.tokens = o->tokens, .loss = o->loss, .document = o->document};
    o->row.position = o->position;
    o->row.doc_start = o->start;
    o->row.doc_id = o->id;
    o->row.docs = docs;
    for (int d = 0; d < docs; d++) {
        o->id[d] = 100 + d;
        for (int64_t i = 0; i < length[d]; i++, o->row.n++) {
            o->tokens[o->row.n] = (int32_t)o->row.n;
            o->document[o->row.n] = d;
            o->position[o->row.n] = (int32_t)i;
        }
        o->start[d + 1] = o->row.n;
    }
}

static void b20_the_mask_is_read_at_the_predicted_position(void **s) {
    (void)s;
    own_row o;
    make(&o, (int64_t[]){48}, 1);
    memset(o.loss + 8, 1, 32); /* supervised on 8..39 */
    static const int32_t anchor[] = {7, 37, 38, 39, -1};
    float decay[4], weight[20];
    int32_t label[20];
    labels_decay(4, 4, decay);
    assert_int_equal(labels_make(&o.row, anchor, 5, 4, decay, label, weight), 3 + 2 + 1);
    for (int b = 0; b < 5; b++)
        for (int k = 0; k < 4; k++) {
            const int p = anchor[b] + k;
            const int on = anchor[b] >= 0 && k > 0 && p >= 8 && p <= 39;
            assert_int_equal(weight[b * 4 + k] > 0, on);
            if (on) {
                assert_int_equal(label[b * 4 + k], p); /* same position, no shift */
                assert_true(fabs((double)weight[b * 4 + k] - exp(-(k - 1) / 4.0)) < 1e-6);
            }
        }
}

static void b13_slots_end_with_their_document_and_budgets_are_per_document(void **s) {
    (void)s;
    own_row o;
    make(&o, (int64_t[]){70, 60}, 2);
    memset(o.loss + 60, 1, 10 + 60); /* the end of document 0, all of document 1 */
    const int32_t anchor = 68;       /* the last that may be one */
    float decay[16], weight[16];
    int32_t label[16];
    labels_decay(7, 16, decay);
    assert_int_equal(labels_make(&o.row, &anchor, 1, 16, decay, label, weight), 1);
    assert_true(weight[1] == 1.0f && label[1] == 69);
    for (int k = 2; k < 16; k++) assert_true(weight[k] == 0);
    /* 40 and 5 supervised tokens under a budget of 8: the short one keeps its 4 candidates. */
    make(&o, (int64_t[]){50, 12}, 2);
    memset(o.loss + 5, 1, 40);
    memset(o.loss + 52, 1, 5);
    int32_t drawn[32];
    assert_int_equal(anchors_row_count(&o.row, 8), 12);
    assert_int_equal(anchors_row(&o.row, 8, 1, 0, drawn), 12);
    for (int i = 0; i < 4; i++) assert_int_equal(drawn[8 + i], 52 + i);
}

static void anchors_need_a_supervised_successor_in_their_document(void **s) {
    (void)s;
    own_row o;
    make(&o, (int64_t[]){4, 4}, 2);
    memset(o.loss, 1, 8);
    o.loss[1] = 0;
    int32_t drawn[8];
    assert_int_equal(anchors_row(&o.row, 100, 5, 2, drawn), 4);
    static const int32_t want[] = {2, 4, 5, 6}; /* 3 is the last of its document */
    assert_memory_equal(drawn, want, sizeof want);
}

static void draws_are_sorted_distinct_and_uniform(void **s) {
    (void)s;
    const uint64_t seed = numbers_seed();
    enum { N = 40, TAKE = 9, TIMES = 8000 };
    uint8_t loss[N];
    memset(loss, 1, N);
    int64_t count[N] = {0};
    int32_t a[TAKE];
    for (int64_t d = 0; d < TIMES; d++) {
        assert_int_equal(anchors_draw(loss, N, TAKE, (int64_t)(seed >> 8), 1, d, a), TAKE);
        for (int i = 0; i < TAKE; i++) {
            assert_true(a[i] >= 0 && a[i] < N - 1 && (!i || a[i] > a[i - 1]));
            count[a[i]]++;
        }
    }
    /* Binomial: 8000 draws of 9/39. Bernstein's bound at a chance of 1e-12 for all counts together: a sixth of the mean. */
    const double p = TAKE / (N - 1.0), mean = TIMES * p, variance = mean * (1 - p);
    const double rare = log(2 * (N - 1) / 1e-12);
    const double most = rare / 3 + sqrt(rare * rare / 9 + 2 * rare * variance);
    for (int i = 0; i < N - 1; i++) assert_true(fabs((double)count[i] - mean) < most);
}

static void b44_draws_depend_on_seed_epoch_and_document_alone(void **s) {
    (void)s;
    uint8_t loss[100];
    memset(loss, 1, sizeof loss);
    int32_t a[8], b[8];
    anchors_draw(loss, 100, 8, 3, 1, 7, a);
    anchors_draw(loss, 100, 8, 3, 1, 7, b);
    assert_memory_equal(a, b, sizeof a);
    static const int64_t other[3][3] = {{4, 1, 7}, {3, 2, 7}, {3, 1, 8}};
    for (int i = 0; i < 3; i++) {
        anchors_draw(loss, 100, 8, other[i][0], other[i][1], other[i][2], b);
        assert_memory_not_equal(a, b, sizeof a);
    }
    /* In a row among others, at another place: the same anchors, moved by the document's start. */
    own_row o;
    make(&o, (int64_t[]){30, 100}, 2);
    memset(o.loss + 30, 1, 100);
    o.id[1] = 7;
    assert_int_equal(anchors_row(&o.row, 8, 3, 1, b), 8);
    for (int i = 0; i < 8; i++) assert_int_equal(b[i], a[i] + 30);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b20_the_mask_is_read_at_the_predicted_position),
        cmocka_unit_test(b13_slots_end_with_their_document_and_budgets_are_per_document),
        cmocka_unit_test(anchors_need_a_supervised_successor_in_their_document),
        cmocka_unit_test(draws_are_sorted_distinct_and_uniform),
        cmocka_unit_test(b44_draws_depend_on_seed_epoch_and_document_alone),
    };
    return cmocka_run_group_tests_name("anchors and labels", tests, NULL, NULL);
}
