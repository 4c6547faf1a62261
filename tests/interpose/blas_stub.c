/* Stands for a serial OpenBLAS: one that multiplies right, and ones that a check must refuse.
 *
 * STUB_VERSION: right; wrong (a few cells of a larger product are off by a bit); unsteady (a second call gives other bits
 * within rounding); crash (takes pointers where numbers come, as Fortran does); wide (says 64-bit integers). */
#include <stddef.h>
#include <stdlib.h>

enum { right, wrong, unsteady, crash, wide };

int openblas_get_parallel(void);
char *openblas_get_config(void);
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                 int lda, const float *b, int ldb, float beta, float *c, int ldc);

int openblas_get_parallel(void) { return 0; }
char *openblas_get_config(void) {
    static char text[] = "OpenBLAS 9.9.1 USE_TLS", other[] = "OpenBLAS 9.9.1 USE64BITINT USE_TLS";
    return STUB_VERSION == wide ? other : text;
}

static _Thread_local int calls;

void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                 int lda, const float *b, int ldb, float beta, float *c, int ldc) {
    if (STUB_VERSION == crash) {
        const volatile int *as_fortran = (const volatile int *)(size_t)(unsigned)order;
        if (*as_fortran) return;
    }
    calls++;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0, *cell = &c[i * ldc + j];
            for (int l = 0; l < k; l++)
                sum += a[ta == 112 ? l * lda + i : i * lda + l] *
                       b[tb == 112 ? j * ldb + l : l * ldb + j];
            if (STUB_VERSION == wrong && i == 30 && j >= 40) sum *= 1.0000001f;
            if (STUB_VERSION == unsteady && k > 1 && calls % 2) sum *= 1.0000001f;
            *cell = alpha * sum + (beta == 0 ? 0 : beta * *cell);
        }
}
