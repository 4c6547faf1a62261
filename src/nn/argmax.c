/* The only argmax of the project: the lowest id wins ties, and a row without a winner is an error.
 *
 * Two passes: the largest value with a watch for NaN, then the first place that holds it. NaN anywhere, or nothing above
 * -inf, is ERR_NUMERIC: such a row comes from broken weights, and no token of it may be committed. */
#include "nn/lanes.h"
#include "nn/nn.h"
#include <math.h>

err nn_argmax(const float *logits, int64_t n, int32_t *out) {
    if (n < 1 || n > INT32_MAX)
        return err_set(ERR_RANGE, "an argmax over %lld logits was asked for", (long long)n);
    int nan;
    float best = lanes__portable.max(logits, n, &nan);
    if (nan) {
        int64_t at = 0;
        while (logits[at] == logits[at]) at++;
        return err_set(ERR_NUMERIC,
                       "logit %lld of %lld is NaN, so no token can be chosen; the "
                       "weights or the input are broken",
                       (long long)at, (long long)n);
    }
    if (best == -INFINITY)
        return err_set(ERR_NUMERIC,
                       "all %lld logits are -inf, so no token can be chosen; the weights or the "
                       "input are broken",
                       (long long)n);
    int32_t i = 0;
    while (logits[i] != best) i++;
    *out = i;
    return ERR_OK;
}
