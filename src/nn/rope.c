/* Rotary position embedding: frequencies of the four known kinds, the table of cosines and sines, and the rotation.
 *
 * Frequencies are made in double. The angle of a position is the double product, its cosine and sine are taken in double,
 * multiplied by the magnitude factor and rounded once, so long positions lose nothing to fp32 angles. The rotation turns
 * pairs (i, i + rotary_dim/2) or (2i, 2i+1); dims from rotary_dim on stay as they are. Other kinds (dynamic, longrope,
 * multi-section) are not known here and whoever reads a config refuses them by name. */
#include "nn/lanes.h"
#include "nn/nn.h"
#include "nn/part.h"
#include <math.h>
#include <string.h>

enum { ROWS = 16, MAX_PAIRS = 512 };
static const double two_pi = 6.283185307179586476925286766559;

err nn_rope_check(const rope_config *c) {
    if (c->kind != ROPE_DEFAULT && c->kind != ROPE_LINEAR && c->kind != ROPE_LLAMA3 &&
        c->kind != ROPE_YARN)
        return err_set(ERR_REFUSED,
                       "RoPE kind %d is unknown; known are default, linear, llama3 "
                       "and yarn",
                       (int)c->kind);
    if (c->pairing != ROPE_HALF && c->pairing != ROPE_INTERLEAVED)
        return err_set(ERR_REFUSED,
                       "RoPE pairing %d is unknown; known are half-split and "
                       "interleaved",
                       (int)c->pairing);
    if (c->rotary_dim < 2 || c->rotary_dim % 2 || c->rotary_dim > c->head_dim ||
        c->rotary_dim / 2 > MAX_PAIRS)
        return err_set(ERR_RANGE,
                       "RoPE rotates %lld of %lld head dimensions; an even number from 2 to the "
                       "head dimension (at most %d) is needed",
                       (long long)c->rotary_dim, (long long)c->head_dim, 2 * MAX_PAIRS);
    if (!(c->theta > 1) || !isfinite(c->theta))
        return err_set(ERR_RANGE, "RoPE theta is %g; a finite number above 1 is needed", c->theta);
    if (c->kind == ROPE_DEFAULT) return ERR_OK;
    if (!(c->factor >= 1) || !isfinite(c->factor))
        return err_set(ERR_RANGE,
                       "RoPE scaling factor is %g; a finite number of at least 1 is "
                       "needed",
                       c->factor);
    if (c->kind == ROPE_LINEAR) return ERR_OK;
    if (c->original_length < 1)
        return err_set(ERR_RANGE, "RoPE scaling needs the original context length; %lld was given",
                       (long long)c->original_length);
    if (c->kind == ROPE_LLAMA3 && !(c->low_freq > 0 && c->high_freq > c->low_freq))
        return err_set(ERR_RANGE,
                       "RoPE llama3 factors low %g and high %g are not rising positive numbers",
                       c->low_freq, c->high_freq);
    if (c->kind == ROPE_YARN &&
        !(c->beta_slow > 0 && c->beta_fast >= c->beta_slow && c->attention_factor >= 0))
        return err_set(ERR_RANGE,
                       "RoPE yarn needs beta_fast %g >= beta_slow %g > 0 and an attention factor "
                       "%g that is not negative",
                       c->beta_fast, c->beta_slow, c->attention_factor);
    return ERR_OK;
}

/* Wavelengths beyond original/low are stretched by factor, below original/high kept, blended between. */
static double llama3(const rope_config *c, double f) {
    double turns = (double)c->original_length * f / two_pi; /* within the original context */
    if (turns < c->low_freq) return f / c->factor;
    if (turns > c->high_freq) return f;
    double keep = (turns - c->low_freq) / (c->high_freq - c->low_freq);
    return (1 - keep) * f / c->factor + keep * f;
}

/* The pair index whose frequency makes the given number of turns within the original context. */
static double yarn_index(const rope_config *c, double turns) {
    return (double)c->rotary_dim * log((double)c->original_length / (turns * two_pi)) /
           (2 * log(c->theta));
}
static double yarn(const rope_config *c, double f, int64_t i) {
    double low = floor(yarn_index(c, c->beta_fast)), high = ceil(yarn_index(c, c->beta_slow));
    if (low < 0) low = 0;
    if (high > (double)(c->rotary_dim - 1)) high = (double)(c->rotary_dim - 1);
    if (high == low) high += 0.001;
    double ramp = ((double)i - low) / (high - low);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return f / c->factor * ramp + f * (1 - ramp);
}

err nn_rope_freqs(const rope_config *c, double *inv_freq, double *mscale) {
    TRY(nn_rope_check(c));
    *mscale = 1;
    for (int64_t i = 0; i < c->rotary_dim / 2; i++) {
        double f = pow(c->theta, -2.0 * (double)i / (double)c->rotary_dim);
        if (c->kind == ROPE_LINEAR) f /= c->factor;
        if (c->kind == ROPE_LLAMA3) f = llama3(c, f);
        if (c->kind == ROPE_YARN) f = yarn(c, f, i);
        inv_freq[i] = f;
    }
    if (c->kind == ROPE_YARN)
        *mscale = c->attention_factor > 0 ? c->attention_factor : 0.1 * log(c->factor) + 1;
    return ERR_OK;
}

err nn_rope_table(rope_table *out, const rope_config *c, int64_t positions, arena *a) {
    double f[MAX_PAIRS], m;
    TRY(nn_rope_freqs(c, f, &m));
    if (positions < 0)
        return err_set(ERR_RANGE, "a RoPE table of %lld positions was asked for",
                       (long long)positions);
    int64_t half = c->rotary_dim / 2;
    rope_table t = {.cfg = *c, .positions = positions};
    TRY(arena_alloc_raw(a, (size_t)positions, (size_t)half * sizeof(float), &t.cos));
    TRY(arena_alloc_raw(a, (size_t)positions, (size_t)half * sizeof(float), &t.sin));
    for (int64_t p = 0; p < positions; p++)
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)p * f[i];
            t.cos[p * half + i] = (float)(cos(angle) * m);
            t.sin[p * half + i] = (float)(sin(angle) * m);
        }
    *out = t;
    return ERR_OK;
}

typedef struct rope_job {
    const lanes *v;
    const rope_table *t;
    float *x;
    const int32_t *position;
    int64_t ldx, n, heads;
    float sign;
} rope_job;

static void rotate_interleaved(const rope_job *j, float *x, const float *c, const float *s,
                               int64_t half) {
    float even[MAX_PAIRS], odd[MAX_PAIRS];
    for (int64_t i = 0; i < half; i++) {
        even[i] = x[2 * i];
        odd[i] = x[2 * i + 1];
    }
    j->v->rotate(even, odd, c, s, j->sign, half);
    for (int64_t i = 0; i < half; i++) {
        x[2 * i] = even[i];
        x[2 * i + 1] = odd[i];
    }
}

static err rope_part(void *ctx, int64_t part, int thread) {
    const rope_job *j = ctx;
    const rope_config *c = &j->t->cfg;
    int64_t half = c->rotary_dim / 2;
    (void)thread;
    for (int64_t r = part * ROWS; r < part__end(part, ROWS, j->n); r++) {
        const float *cs = j->t->cos + j->position[r] * half,
                    *sn = j->t->sin + j->position[r] * half;
        for (int64_t h = 0; h < j->heads; h++) {
            float *x = j->x + r * j->ldx + h * c->head_dim;
            if (c->pairing == ROPE_HALF)
                j->v->rotate(x, x + half, cs, sn, j->sign, half);
            else
                rotate_interleaved(j, x, cs, sn, half);
        }
    }
    return ERR_OK;
}

err nn_rope(dev *d, const rope_table *t, float *x, int64_t ldx, const int32_t *position, int64_t n,
            int64_t heads, int back) {
    for (int64_t i = 0; i < n; i++)
        if (position[i] < 0 || position[i] >= t->positions)
            return err_set(ERR_RANGE,
                           "position %d of row %lld is outside the RoPE table of %lld "
                           "positions",
                           (int)position[i], (long long)i, (long long)t->positions);
    rope_job j = {.v = lanes__of(d), .t = t, .x = x, .position = position, .ldx = ldx, .n = n};
    j.heads = heads;
    j.sign = back ? -1.0f : 1.0f;
    return part__run(d, part__count(n, ROWS), n * heads * t->cfg.rotary_dim, rope_part, &j);
}
