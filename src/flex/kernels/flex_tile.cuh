/* Tiles of cells on their way from products to weights: which cells are seen, scores, keys that nobody sees.
 *
 * Chooses the width of integers by the run's flags; stands behind both inclusions of flex_cells.cuh. */

/* Bits of the cells inside the lengths. */
PX_FN void bound_bits(px_i64 rows, px_i64 columns, px_i64 row, px_i64 column, unsigned bits[MT]) {
    for (int m = 0; m < MT; m++) {
        bits[m] = 0;
        for (int i = 0; i < BN / 2; i++) {
            int seen = row + 16 * m + 8 * (i >> 1 & 1) < rows && column + 8 * (i / 4) + i % 2 < columns;
            bits[m] |= (unsigned)seen << i;
        }
    }
}
/* Bits of the cells that are seen; 0 when all are, and bits are not set. full: of the tile. */
PX_FN int tile_bits(const flex_gpu_args *a, px_i64 b, px_i64 h, px_i64 row, px_i64 column, px_i64 row_end, px_i64 column_end, int full, unsigned bits[MT]) {
#if TURNED
    const px_i64 rows = a->kv_len, columns = a->q_len;
#else
    const px_i64 rows = a->q_len, columns = a->kv_len;
#endif
#if HAS_MASK
    if (!full) {
        if (a->mask_narrow)
            mask_bits_32(a, b, h, row, column, bits);
        else
            mask_bits_64(a, b, h, row, column, bits);
        return 1;
    }
#endif
    if (row_end <= rows && column_end <= columns) return 0;
    bound_bits(rows, columns, row, column, bits);
    return 1;
}

/* Adds to seen[BN / 32] the columns of which this warp sees a cell. */
PX_FN void note_columns(unsigned *seen, const unsigned bits[MT], int lane) {
#pragma unroll
    for (int word = 0; word < (BN + 31) / 32; word++) {
        unsigned mine = 0;
        for (int j = 0; j < 4; j++) {
            unsigned any = 0;
            for (int m = 0; m < MT; m++) any |= bits[m] >> (4 * (4 * word + j)) & 15u;
            any = (any | any >> 2) & 3u;
            mine |= any << (8 * j + (lane & 3) * 2);
        }
        unsigned warp = __reduce_or_sync(ALL, mine);
        if (lane == 0) atomicOr(&seen[word], warp);
    }
}
PX_FN int all_seen(const unsigned *seen) {
    int all = 1;
    for (int word = 0; word < (BN + 31) / 32; word++) all &= seen[word] == (BN < 32 ? (1u << BN % 32) - 1 : ALL);
    return all;
}
PX_FN void forget_columns(unsigned *seen) {
    for (int word = 0; word < (BN + 31) / 32; word++) seen[word] = 0;
}

/* What makes scores, up to it, exponents of 2. */
PX_FN float score_factor(const flex_gpu_args *a) {
#if HAS_SCORE
    return LOG2E;
#else
    return a->scale == 0.0f ? 1.0f : fabsf(a->scale) * LOG2E;
#endif
}
/* 2^(s * factor - base): a weight relative to its row's largest score or to its LSE. Scores as expressions may hide cells by
 * numbers like -1e30, whose product with the factor is rounded by more than an exponent holds: there base is a score, and
 * the difference is made before the product. Else base is a power of 2 already. */
PX_FN float power(float s, float base, float factor) {
#if HAS_SCORE
    return fast_exp2((s - base) * factor);
#else
    return fast_exp2(__fmaf_rn(s, factor, -base));
#endif
}
PX_FN float power_base(float s, float factor) { return HAS_SCORE ? s : s * factor; }
PX_FN float power_score(float base) { return HAS_SCORE ? base : base * LN2; } /* in natural units */
/* Products to scores, up to the factor. */
PX_FN void tile_scores(const flex_gpu_args *a, px_i64 b, px_i64 h, px_i64 row, px_i64 column, float s[MT][BN / 8][4]
#if HAS_SLOPE
                       ,
                       float slope[MT][BN / 8][4]
#endif
) {
#if HAS_SCORE && HAS_SLOPE
    if (a->score_narrow)
        score_cells_32(a, b, h, row, column, s, slope);
    else
        score_cells_64(a, b, h, row, column, s, slope);
#elif HAS_SCORE
    if (a->score_narrow)
        score_cells_32(a, b, h, row, column, s);
    else
        score_cells_64(a, b, h, row, column, s);
#else
    if (a->scale > 0.0f) return;
    for (int m = 0; m < MT; m++)
        for (int j = 0; j < BN / 8; j++)
            for (int i = 0; i < 4; i++) s[m][j][i] = a->scale < 0.0f ? -s[m][j][i] : 0.0f;
#endif
}
PX_FN void hide_cells(float s[MT][BN / 8][4], const unsigned bits[MT], float with) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (!(bits[m] >> (4 * j + i) & 1)) s[m][j][i] = with;
}

/* s = left rows times the rows of right. */
PX_FN void products(float s[MT][BN / 8][4], unsigned left, unsigned right, int dim, int row, int lane) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[m][j][i] = 0.0f;
#pragma unroll
    for (int k = 0; k < PAD16(dim) / 16; k++) {
        unsigned x[MT][4], y[4];
#pragma unroll
        for (int m = 0; m < MT; m++) load_left(x[m], left, STRIDE(dim), row + 16 * m, k, lane);
#pragma unroll
        for (int j = 0; j < BN / 16; j++) {
            load_right(y, right, STRIDE(dim), 16 * j, k, lane);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                multiply(s[m][2 * j], x[m], y[0], y[1]);
                multiply(s[m][2 * j + 1], x[m], y[2], y[3]);
            }
        }
    }
}
/* sum += weights times the rows of right, columns from chunk `first` on. */
#define ADD_PRODUCTS(sum, columns, w, right, dim, first)                                           \
    _Pragma("unroll") for (int k = 0; k < BN / 16; k++) {                                          \
        unsigned x[MT][4], y[4];                                                                   \
        _Pragma("unroll") for (int m = 0; m < MT; m++) {                                           \
            x[m][0] = element_pair(w[m][2 * k][0], w[m][2 * k][1]);                                \
            x[m][1] = element_pair(w[m][2 * k][2], w[m][2 * k][3]);                                \
            x[m][2] = element_pair(w[m][2 * k + 1][0], w[m][2 * k + 1][1]);                        \
            x[m][3] = element_pair(w[m][2 * k + 1][2], w[m][2 * k + 1][3]);                        \
        }                                                                                          \
        _Pragma("unroll") for (int j = 0; j < (columns) / 16; j++) {                               \
            load_right_t(y, right, STRIDE(dim), 16 * k, (first) + 2 * j, lane);                    \
            _Pragma("unroll") for (int m = 0; m < MT; m++) {                                       \
                multiply(sum[m][2 * j], x[m], y[0], y[1]);                                         \
                multiply(sum[m][2 * j + 1], x[m], y[2], y[3]);                                     \
            }                                                                                      \
        }                                                                                          \
    }
#define CLEAR_SUMS(sum, columns)                                                                   \
    _Pragma("unroll") for (int m = 0; m < MT; m++) _Pragma("unroll") for (int j = 0;               \
                                                                          j < (columns) / 8; j++)  \
        _Pragma("unroll") for (int i = 0; i < 4; i++) sum[m][j][i] = 0.0f;
