/* The table of loops over boxes for any processor, and the choice between the tables.
 *
 * The choice follows that of expr_lanes, so one switch (PACELINE_ISA) bounds both. Results do not depend
 * on it. Knows nothing of programs. */
#define INTERVAL_LANES_TABLE interval_lanes__portable
#include "expr/interval_lanes_body.h"
#include "expr/expr_lanes.h"

const interval_lanes *interval_lanes__choose(void) {
#if defined(__x86_64__)
    const expr_lanes *wide = expr_lanes__choose();
    if (wide == &expr_lanes__avx512) return &interval_lanes__avx512;
    if (wide == &expr_lanes__avx2) return &interval_lanes__avx2;
#endif
    return &interval_lanes__portable;
}
