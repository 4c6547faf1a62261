/* What the lanes of a warp do together: shuffles, votes, reductions, ldmatrix, mma.sync, by the fragment layouts of PTX.
 *
 * Called when all lanes of the mask have come. A product of 16 x 8 x 16 adds to its float sums in the order of k, each
 * product exact and each sum rounded; a tensor core may round otherwise. A shuffle from a lane outside the mask fails, as
 * its value is not defined. */
#include "emu_run.h"
#include <string.h>

enum { LAUNCH_FAILED = 719 };

static float float_of(unsigned bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline float wide(unsigned x, int bf16) {
    if (bf16) return float_of(x << 16);
    const unsigned sign = (x & 0x8000u) << 16, mantissa = x & 0x3ffu, exponent = x >> 10 & 31u;
    if (exponent == 31) return float_of(sign | 0x7f800000u | mantissa << 13);
    if (exponent) return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
    const float tiny = (float)mantissa * 0x1p-24f;
    return sign ? -tiny : tiny;
}

/* Which lane's value lane i takes; PTX's rule with a width. */
static int source(const emu_lane *l, int i) {
    const int base = i & ~(l->width - 1), within = i & (l->width - 1);
    int from = i;
    switch (l->op) {
    case EMU_SHUFFLE: return base + (l->by & (l->width - 1));
    case EMU_SHUFFLE_XOR: from = i ^ l->by; return from < base + l->width ? from : i;
    case EMU_SHUFFLE_UP: return within >= l->by ? i - l->by : i;
    default: return within + l->by < l->width ? i + l->by : i;
    }
}

static void shuffle(emu_lane *const *lane, unsigned mask) {
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        const int from = source(lane[i], i);
        if (!lane[from])
            emu_fail(LAUNCH_FAILED, lane[i]->site,
                     "lane %d shuffles from lane %d, which mask %08x lacks", i, from, mask);
        lane[i]->out = lane[from]->x;
    }
}

static void reduce(emu_lane *const *lane, unsigned mask, emu_op op) {
    unsigned all = op == EMU_AND || op == EMU_MIN ? ~0u : 0;
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        const unsigned x = (unsigned)lane[i]->x;
        switch (op) {
        case EMU_BALLOT: all |= x << i; break;
        case EMU_OR: all |= x; break;
        case EMU_AND: all &= x; break;
        case EMU_ADD: all += x; break;
        case EMU_MIN: all = x < all ? x : all; break;
        default: all = x > all ? x : all;
        }
    }
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) lane[i]->out = all;
}

static void match(emu_lane *const *lane, unsigned mask) {
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        unsigned same = 0;
        for (int k = 0; k < 32; k++)
            if (mask >> k & 1 && lane[k]->x == lane[i]->x) same |= 1u << k;
        lane[i]->out = same;
    }
}

/* Four matrices of 8 x 8: lanes 8m .. 8m + 7 bring the rows of matrix m; lane i gets of each two neighbours of row i / 4, or
 * of column i / 4. */
static void ldmatrix(emu_lane *const *lane, int turned) {
    uint16_t m[4][8][8];
    const int me = emu_m.now;
    for (int i = 0; i < 32; i++) {
        const char *at = emu_m.launch.module->begin + (unsigned)lane[i]->x;
        emu_m.now = (me & ~31) + i; /* it is this lane that reads */
        emu_memory_access(at, 16, EMU_READ | EMU_MAY_BE_EMPTY, lane[i]->site);
        memcpy(m[i / 8][i % 8], at, 16);
    }
    emu_m.now = me;
    for (int i = 0; i < 32; i++) {
        for (int k = 0; k < 4; k++) {
            const int row = i / 4, column = i % 4 * 2;
            const unsigned low = turned ? m[k][column][row] : m[k][row][column],
                           high = turned ? m[k][column + 1][row] : m[k][row][column + 1];
            lane[i]->r[k] = low | high << 16;
        }
    }
}

static inline __attribute__((always_inline)) void mma(emu_lane *const *lane, int bf16) {
    float a[16][16], b[16][8], c[16][8];
    for (int i = 0; i < 32; i++) {
        const int g = i / 4, t = i % 4 * 2;
        for (int k = 0; k < 4; k++) {
            const unsigned x = lane[i]->left[k];
            const int row = g + k % 2 * 8, column = t + k / 2 * 8;
            a[row][column] = wide(x & 0xffffu, bf16), a[row][column + 1] = wide(x >> 16, bf16);
            c[g + k / 2 * 8][t + k % 2] = lane[i]->c[k];
        }
        for (int k = 0; k < 2; k++) {
            b[t + 8 * k][g] = wide(lane[i]->b[k] & 0xffffu, bf16);
            b[t + 8 * k + 1][g] = wide(lane[i]->b[k] >> 16, bf16);
        }
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++) c[i][j] += a[i][k] * b[k][j];
    for (int i = 0; i < 32; i++)
        for (int k = 0; k < 4; k++) lane[i]->c[k] = c[i / 4 + k / 2 * 8][i % 4 * 2 + k % 2];
}

void emu_warp_finish(emu_fiber *first, unsigned mask) {
    emu_lane *lane[32] = {NULL};
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) lane[i] = first[i].lane;
    const emu_op op = lane[__builtin_ctz(mask)]->op;
    switch (op) {
    case EMU_SYNC: break;
    case EMU_SHUFFLE:
    case EMU_SHUFFLE_XOR:
    case EMU_SHUFFLE_UP:
    case EMU_SHUFFLE_DOWN: shuffle(lane, mask); break;
    case EMU_MATCH: match(lane, mask); break;
    case EMU_LDMATRIX: ldmatrix(lane, 0); break;
    case EMU_LDMATRIX_TURNED: ldmatrix(lane, 1); break;
    case EMU_MMA_BF16: mma(lane, 1); break;
    case EMU_MMA_F16: mma(lane, 0); break;
    default: reduce(lane, mask, op);
    }
}
