/* The portable row primitives, and the choice between the three forms.
 *
 * The choice follows the device handle (dev_get_isa), so PACELINE_ISA bounds it; the three forms give the same bits.
 * On machines that are not x86-64 it is always the portable one. */
#define LANES_TABLE lanes__portable
#include "nn/lanes_body.h"

const lanes *lanes__of(const dev *d) {
#if defined(__x86_64__)
    switch (dev_get_isa(d)) {
    case DEV_ISA_AVX512: return &lanes__avx512;
    case DEV_ISA_AVX2: return &lanes__avx2;
    default: break;
    }
#else
    (void)d;
#endif
    return &lanes__portable;
}
