/* Anchor draws by selection sampling: one pass, no scratch, sorted by construction.
 *
 * Candidate i of the remaining r is taken with probability k / r when k are still wanted, which makes every
 * subset of that size equally likely. Each decision has its own keyed random number. No state is kept. */
#include "train/anchors.h"
#include "core/rng.h"
#include <assert.h>

int64_t anchors_draw(const uint8_t *loss, int64_t n, int64_t limit, int64_t seed, int64_t epoch,
                     int64_t document_id, int32_t *out) {
    assert(document_id >= 0 && document_id < (int64_t)1 << 40);
    const uint64_t key = (uint64_t)epoch << 40 | (uint64_t)document_id;
    int64_t left = data_candidates(loss, n), wanted = limit < left ? limit : left, taken = 0;
    for (int64_t i = 0; i + 1 < n && taken < wanted; i++) {
        if (!loss[i] || !loss[i + 1]) continue;
        uint64_t draw = rng_below((uint64_t)seed, RNG_ANCHORS, key, (uint64_t)i, (uint64_t)left);
        if (draw < (uint64_t)(wanted - taken)) out[taken++] = (int32_t)i;
        left--;
    }
    assert(taken == wanted);
    return taken;
}

int64_t anchors_row(const data_row *row, int64_t limit, int64_t seed, int64_t epoch, int32_t *out) {
    int64_t n = 0;
    for (int64_t d = 0; d < row->docs; d++) {
        int64_t start = row->doc_start[d], length = row->doc_start[d + 1] - start;
        int64_t got =
            anchors_draw(row->loss + start, length, limit, seed, epoch, row->doc_id[d], out + n);
        for (int64_t i = 0; i < got; i++) out[n + i] += (int32_t)start;
        n += got;
    }
    return n;
}

int64_t anchors_row_count(const data_row *row, int64_t limit) {
    int64_t n = 0;
    for (int64_t d = 0; d < row->docs; d++) {
        int64_t start = row->doc_start[d];
        int64_t c = data_candidates(row->loss + start, row->doc_start[d + 1] - start);
        n += c < limit ? c : limit;
    }
    return n;
}
