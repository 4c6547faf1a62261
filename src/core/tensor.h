/* A view of a named array: type, extents, bytes. Contiguous, row-major.
 *
 * Whoever makes a view has checked its extents against the bytes it points to. It owns nothing
 * and holds no strides. */
#ifndef CORE_TENSOR_H
#define CORE_TENSOR_H
#include "core/dtype.h"
#include "core/err.h"

#define TENSOR_MAX_DIMS 8
typedef struct tensor {
    const char *name; /* borrowed from the file or arena that holds it */
    dtype type;
    int ndim;
    int64_t dim[TENSOR_MAX_DIMS];
    const void *data; /* any alignment: read through dtype_to_f32 or memcpy */
} tensor;

int64_t tensor_count(const tensor *t); /* product of extents (1 for ndim 0) */
size_t tensor_bytes(const tensor *t);
/* "[3, 576]" into buf; returns buf. */
const char *tensor_shape_text(const tensor *t, char *buf, size_t n);
/* ERR_SHAPE naming tensor, both shapes. A wanted extent of -1 matches anything. */
MUST_CHECK err tensor_expect(const tensor *t, int ndim, const int64_t *dim);

#endif
