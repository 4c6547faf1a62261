/* Tensor views: counting, printing and checking extents.
 *
 * A view is made by whoever owns the bytes (a file reader, an arena) and was checked there against
 * overflow; nothing here reads or copies data, and no view ever owns memory. */
#include "core/tensor.h"
#include <stdio.h>

int64_t tensor_count(const tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->dim[i];
    return n;
}

size_t tensor_bytes(const tensor *t) { return (size_t)tensor_count(t) * dtype_size(t->type); }

static const char *shape_text(int ndim, const int64_t *dim, char *buf, size_t n) {
    size_t at = 0;
    for (int i = 0; i <= ndim; i++) {
        char part[32];
        if (i == ndim)
            snprintf(part, sizeof part, "%s]", ndim ? "" : "[");
        else if (dim[i] < 0)
            snprintf(part, sizeof part, "%sany", i ? ", " : "[");
        else
            snprintf(part, sizeof part, "%s%lld", i ? ", " : "[", (long long)dim[i]);
        int r = snprintf(buf + at, n - at, "%s", part);
        if (r < 0 || (size_t)r >= n - at) break; /* cut: the buffer stays terminated */
        at += (size_t)r;
    }
    return buf;
}

const char *tensor_shape_text(const tensor *t, char *buf, size_t n) {
    return shape_text(t->ndim, t->dim, buf, n);
}

err tensor_expect(const tensor *t, int ndim, const int64_t *dim) {
    int same = t->ndim == ndim;
    for (int i = 0; same && i < ndim; i++) same = dim[i] < 0 || dim[i] == t->dim[i];
    if (same) return ERR_OK;
    char have[192], want[192];
    return err_set(ERR_SHAPE, "tensor '%s' has shape %s where %s is needed",
                   t->name ? t->name : "?", tensor_shape_text(t, have, sizeof have),
                   shape_text(ndim, dim, want, sizeof want));
}
