/* Forecasts against figures computed by hand, and what must hold for any model: more devices and faster links are no slower.
 *
 * Models are made up here; what rates a machine has is not the subject. Random ones print their seed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "support/numbers.h"
#include "train/train_forecast.h"
#include <math.h>
#include <string.h>

static void near(double got, double want) {
    if (fabs(got - want) > 1e-9 * fabs(want)) fail_msg("%.12g, wanted %.12g", got, want);
}

/* An update of 8,000 tokens in 8 rows; target 1 ms a token, drafter 2 ms, 1 s of optimizer; 1e6 parameters, 100 bytes a token. */
static train_forecast_model plain(void) {
    train_forecast_model m = {.target_seconds_per_token = 1e-3,
                              .tokens_per_update = 8000,
                              .rows_per_update = 8,
                              .link_bytes_per_second = 1e7,
                              .threads = 1,
                              .n_drafters = 1};
    m.drafter[0] = (train_forecast_drafter){.name = "",
                                            .seconds_per_token = 2e-3,
                                            .update_seconds = 1,
                                            .params = 1e6,
                                            .bytes_per_token = 100};
    return m;
}

static train_forecast_split at(const train_forecast_model *m, int targets, int ranks, int turns) {
    train_forecast_split s = {.targets = targets, .turns = turns};
    s.ranks[0] = ranks;
    train_forecast_at(m, &s);
    return s;
}

static void by_hand(void **state) {
    (void)state;
    train_forecast_model m = plain();
    /* One device: 8 s of target, 16 s of drafter, 1 s of optimizer. */
    train_forecast_split s = at(&m, 1, 1, 1);
    near(s.update_seconds, 25);
    near(s.tokens_per_second, 320);
    near(s.target_share, 8.0 / 25);
    near(s.drafter_share[0], 17.0 / 25);
    assert_int_equal(s.bound, TRAIN_FORECAST_TURNS);
    /* 1 + 1: the drafter's 17 s; features 8,000 * 100 / 1e7 = 0.08 s of its link. */
    s = at(&m, 1, 1, 0);
    near(s.update_seconds, 17);
    near(s.target_share, 8.0 / 17);
    near(s.drafter_share[0], 1);
    near(s.link_share, 0.08 / 17);
    assert_int_equal(s.bound, TRAIN_FORECAST_DRAFTER);
    /* 5 + 3: busiest rank has 3 of 8 rows: 6 s, a third of the optimizer, exchange 2 * 2/3 * 4e6 / 1e7 s. Target: 1.6 s. */
    s = at(&m, 5, 3, 0);
    const double exchange = 2 * (2.0 / 3) * 4e6 / 1e7;
    near(s.update_seconds, 6 + 1.0 / 3 + exchange);
    near(s.target_share, 1.6 / s.update_seconds);
    near(s.drafter_share[0], (6 + 1.0 / 3) / s.update_seconds);
    /* 1 + 7: two rows of 8 on the busiest rank are less than the target's 8 s. */
    s = at(&m, 1, 7, 0);
    near(s.update_seconds, 8);
    assert_int_equal(s.bound, TRAIN_FORECAST_TARGET);
    /* 256 + 768 of 1,024: one row each for 8 ranks, the others have none. */
    s = at(&m, 256, 768, 0);
    near(s.update_seconds, 2 + 1.0 / 768 + 2 * (767.0 / 768) * 4e6 / 1e7);
    /* A slow link: 100 bytes a token at 1e5 bytes/s are 8 s into one device. */
    m.link_bytes_per_second = 1e5;
    m.drafter[0].seconds_per_token = 1e-4;
    m.drafter[0].update_seconds = 0;
    m.target_seconds_per_token = 1e-4;
    s = at(&m, 1, 1, 0);
    near(s.update_seconds, 8);
    near(s.link_share, 1);
    assert_int_equal(s.bound, TRAIN_FORECAST_LINK);
}

static void cores_evaluation_and_odd_rows(void **state) {
    (void)state;
    train_forecast_model m = plain();
    /* 2 + 1 devices of one thread on two cores: 25 s of work on 2 cores are less than the drafter's 17 s; of 2 threads, not. */
    m.cores = 2;
    near(at(&m, 2, 1, 0).update_seconds, 17);
    m.threads = 2;
    near(at(&m, 2, 1, 0).update_seconds, 25);
    assert_int_equal(at(&m, 2, 1, 0).bound, TRAIN_FORECAST_CORES);
    m.cores = 0;
    m.drafter[0].pause_seconds = 3;
    near(at(&m, 2, 1, 0).update_seconds, 20);
    /* 2.5 rows on 2 ranks: half the updates have 2 rows (1 each), half 3 (2 on one). */
    near(train_forecast_busiest(2.5, 2), 1.5 / 2.5);
    near(train_forecast_busiest(8, 3), 3.0 / 8);
    near(train_forecast_busiest(1, 9), 1);
}

static void devices_go_to_the_slowest_drafter(void **state) {
    (void)state;
    train_forecast_model m = plain();
    train_forecast_split s = {.targets = 1};
    m.n_drafters = 3;
    m.drafter[1] = m.drafter[2] = m.drafter[0];
    m.drafter[1].seconds_per_token = 6e-3;
    assert_int_equal(train_forecast_deal(&m, 5, &s), ERR_OK);
    /* 17 s, 49 s, 17 s: the second takes the two that are left (24.9 s, then 18.9 s). */
    assert_int_equal(s.ranks[0], 1);
    assert_int_equal(s.ranks[1], 3);
    assert_int_equal(s.ranks[2], 1);
    assert_int_equal(train_forecast_deal(&m, 2, &s), ERR_RANGE);
}

static double unit(uint64_t seed, uint64_t stream, uint64_t i) {
    return (double)numbers_below(seed, stream, i, 1 << 30) / (1 << 30);
}

static train_forecast_model any(uint64_t seed, uint64_t i) {
    train_forecast_model m = {.threads = 1};
#define ANY(k, from, to) (from * pow((double)(to) / (from), unit(seed, k, i)))
    m.target_seconds_per_token = ANY(1, 1e-6, 1e-2);
    m.tokens_per_update = ANY(2, 1e2, 1e6);
    m.rows_per_update = ANY(3, 1.0, 600.0);
    m.link_bytes_per_second = ANY(4, 1e8, 1e12);
    m.n_drafters = 1 + (int)numbers_below(seed, 5, i, 3);
    for (int k = 0; k < m.n_drafters; k++)
        m.drafter[k] =
            (train_forecast_drafter){.name = "",
                                     .seconds_per_token = ANY(10 + (uint64_t)k, 1e-6, 1e-2),
                                     .update_seconds = ANY(20 + (uint64_t)k, 1e-4, 1.0),
                                     .pause_seconds = ANY(30 + (uint64_t)k, 1e-4, 1.0),
                                     .params = ANY(40 + (uint64_t)k, 1e5, 1e9),
                                     .bytes_per_token = ANY(50 + (uint64_t)k, 1e2, 1e5)};
    return m;
}

static double best_rate(const train_forecast_model *m, int n) {
    train_forecast_split s[8];
    int best = -1;
    const int count = train_forecast_best(m, n, 3, s, &best);
    assert_true(count >= 1 && best >= 0 && best < count);
    for (int i = 0; i < count; i++) {
        assert_true(s[i].tokens_per_second <= s[best].tokens_per_second);
        assert_true(s[i].target_share <= 1 + 1e-9 && s[i].link_share <= 1 + 1e-9);
        for (int k = 0; k < m->n_drafters; k++) assert_true(s[i].drafter_share[k] <= 1 + 1e-9);
        int devices = s[i].targets;
        for (int k = 0; k < m->n_drafters && !s[i].turns; k++) devices += s[i].ranks[k];
        assert_int_equal(devices, n);
    }
    return s[best].tokens_per_second;
}

/* Devices that are spare can be left out; without one more the run would be slower. */
static void spare_devices_are_not_missed(void **state) {
    (void)state;
    train_forecast_model m = plain();
    train_forecast_split s[8], less[8];
    int best = 0, now = 0;
    train_forecast_best(&m, 1024, 3, s, &best);
    assert_true(s[best].spare > 900);
    train_forecast_best(&m, 1024 - s[best].spare, 3, less, &now);
    assert_true(less[now].tokens_per_second >= 0.99 * s[best].tokens_per_second);
    m.link_bytes_per_second = 1e18;
    assert_true(train_forecast_best(&m, 2, 3, s, &best) == 2);
    assert_int_equal(s[best].spare, 0);
}

/* No split of n devices beats the best one; with one drafter all splits are tried here. */
static void the_best_is_the_best(void **state) {
    (void)state;
    const uint64_t seed = numbers_seed();
    for (uint64_t i = 0; i < 40; i++) {
        train_forecast_model m = any(seed, i);
        m.n_drafters = 1;
        const int n = 1 + (int)numbers_below(seed, 6, i, 40);
        double most = at(&m, n, n, 1).tokens_per_second;
        for (int a = 1; a < n; a++) {
            const double v = at(&m, a, n - a, 0).tokens_per_second;
            if (v > most) most = v;
        }
        near(best_rate(&m, n), most);
    }
}

static double rate_of(const train_forecast_model *m, train_forecast_split s) {
    train_forecast_at(m, &s);
    return s.tokens_per_second;
}

/* f: m with a faster part. Every split is no slower, and so is the best one where all are tried: with one drafter. Several are dealt
 * their devices one by one, which need not be the best deal, and another model is dealt another. */
static void is_no_slower(const train_forecast_model *f, const train_forecast_model *m, int n) {
    train_forecast_model one = *m, faster = *f;
    train_forecast_split turns = {.targets = n, .turns = 1};
    for (int i = 0; i < m->n_drafters; i++) turns.ranks[i] = n;
    assert_true(rate_of(f, turns) >= rate_of(m, turns) * (1 - 1e-12));
    for (int a = 1; a <= n - m->n_drafters; a++) {
        train_forecast_split s = {.targets = a};
        assert_int_equal(train_forecast_deal(m, n - a, &s), ERR_OK);
        assert_true(rate_of(f, s) >= rate_of(m, s) * (1 - 1e-12));
    }
    one.n_drafters = faster.n_drafters = 1;
    assert_true(best_rate(&faster, n) >= best_rate(&one, n) * (1 - 1e-12));
}

static void faster_parts_make_no_run_slower(void **state) {
    (void)state;
    const uint64_t seed = numbers_seed();
    for (uint64_t i = 0; i < 40; i++) {
        train_forecast_model m = any(seed, i);
        const int n = 2 + m.n_drafters + (int)numbers_below(seed, 6, i, 30);
        train_forecast_model f = m;
        f.link_bytes_per_second *= 2;
        is_no_slower(&f, &m, n);
        f = m;
        f.target_seconds_per_token /= 2;
        is_no_slower(&f, &m, n);
        f = m;
        for (int k = 0; k < m.n_drafters; k++) f.drafter[k].pause_seconds = 0;
        is_no_slower(&f, &m, n);
    }
}

/* Up to as many ranks as an update has rows, and with links that do not matter, devices only help. */
static void more_devices_are_no_slower(void **state) {
    (void)state;
    train_forecast_model m = plain();
    m.rows_per_update = 1024;
    m.tokens_per_update = 1024000;
    m.link_bytes_per_second = 1e18;
    double before = 0;
    for (int n = 1; n <= 1024; n *= 2) {
        const double now = best_rate(&m, n);
        assert_true(now > before);
        before = now;
    }
    assert_true(before > 300 * best_rate(&m, 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(cores_evaluation_and_odd_rows),
        cmocka_unit_test(devices_go_to_the_slowest_drafter),
        cmocka_unit_test(spare_devices_are_not_missed),
        cmocka_unit_test(the_best_is_the_best),
        cmocka_unit_test(faster_parts_make_no_run_slower),
        cmocka_unit_test(more_devices_are_no_slower),
    };
    return cmocka_run_group_tests_name("forecast", tests, NULL, NULL);
}
