/* Fuzzing safetensors: any bytes either open or are refused with a sentence, and what opens is readable whole.
 *
 * The bytes are opened in place, so the address sanitizer sees a read beyond them. It does not fuzz the
 * index of sharded sets, which is plain JSON. */
#include "io/safetensors.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    st_file *f = NULL;
    if (safetensors_open_memory(&f, "fuzz", data, size)) {
        if (f || !*err_text()) abort();
        return 0;
    }
    volatile uint8_t sum = 0;
    for (int i = 0; i < safetensors_count(f); i++) {
        const tensor *t = safetensors_at(f, i);
        const uint8_t *p = t->data;
        for (size_t k = 0; k < tensor_bytes(t); k++) sum = (uint8_t)(sum + p[k]);
        if (safetensors_find(f, t->name) != t) abort();
    }
    safetensors_close(f);
    return 0;
}
