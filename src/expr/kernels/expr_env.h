/* What a hook gets of captures: scalars, arrays in device memory and the offsets of q and kv.
 *
 * Read by the host, which fills it, and put in front of device text, so both see one layout. Plain C types only:
 * NVRTC has no headers. It is passed to kernels by value. Does not own the arrays. */
#ifndef EXPR_KERNELS_EXPR_ENV_H
#define EXPR_KERNELS_EXPR_ENV_H

typedef struct px_value {
    const void *data; /* arrays: device memory, contiguous row-major */
    long long dim[4];
    long long i; /* scalars: integers and conditions, */
    float f;     /* floats */
} px_value;

typedef struct px_env {
    px_value value[16]; /* by capture */
    long long q0, kv0;  /* added to q and kv */
} px_env;

#endif
