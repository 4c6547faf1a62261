/* Stands for NCCL where a test needs a library that opens and tells a version: STUB_VERSION as NCCL counts.
 *
 * Version 0 is a library whose constructor ends the process, as a broken one may. */
#include <stdlib.h>

int ncclGetVersion(int *version);
int ncclGetVersion(int *version) {
    *version = STUB_VERSION;
    return 0;
}

__attribute__((constructor)) static void start(void) {
    if (STUB_VERSION == 0) abort();
}
