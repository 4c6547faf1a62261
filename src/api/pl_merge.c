/* Merging of partial results by their LSE, row by row through flex_merge.
 *
 * The parts' rows are gathered into the short tables that flex_merge reads; the arithmetic is its own. */
#include "api/api_private.h"

static err check(int parts, int64_t rows, int64_t dim, const float *const *o,
                 const float *const *lse, const float *out, const float *out_lse) {
    if (parts < 0 || rows < 0 || dim < 0)
        return err_set(ERR_RANGE, "pl_merge: %d parts of %lld rows of %lld; none may be negative",
                       parts, (long long)rows, (long long)dim);
    if (rows == 0) return ERR_OK;
    if (dim > 0) TRY(pl__need(out, "pl_merge", "out"));
    TRY(pl__need(out_lse, "pl_merge", "out_lse"));
    if (parts > 0) TRY(pl__need(o, "pl_merge", "o"));
    if (parts > 0) TRY(pl__need(lse, "pl_merge", "lse"));
    for (int i = 0; i < parts; i++) {
        if (lse[i] && (o[i] || dim == 0)) continue;
        return err_set(ERR_USAGE, "pl_merge: part %d has no %s", i, lse[i] ? "o" : "lse");
    }
    return ERR_OK;
}

static err merge(int parts, int64_t rows, int64_t dim, const float *const *o,
                 const float *const *lse, float *out, float *out_lse) {
    const float **at = NULL; /* [parts] rows of o */
    float *l = NULL;         /* [parts] */
    err e;
    TRY(check(parts, rows, dim, o, lse, out, out_lse));
    TRY_GOTO(mem_new((size_t)parts + 1, sizeof *at, &at), done);
    TRY_GOTO(mem_new((size_t)parts + 1, sizeof *l, &l), done);
    for (int64_t r = 0; r < rows; r++) {
        for (int i = 0; i < parts; i++) at[i] = o[i] + r * dim, l[i] = lse[i][r];
        flex_merge(parts, at, l, dim, out + r * dim, &out_lse[r]);
    }
done:
    mem_free(at);
    mem_free(l);
    return e;
}

pl_error pl_merge(int parts, int64_t rows, int64_t dim, const float *const *o,
                  const float *const *lse, float *out, float *out_lse) {
    return pl__result(merge(parts, rows, dim, o, lse, out, out_lse));
}
