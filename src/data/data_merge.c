/* Which shards of a store are written again when it grows: small ones at its end, so that many small growths leave few shards.
 *
 * From the last shard back, one is taken along while it is no larger than all that comes behind it: the shards taken before, and the
 * documents that are about to come, of which only an estimate is known. A shard that is taken so ends in one of twice its size or more: its
 * bytes are copied at most log2(limit / size) times in the life of a store, and never once they lie in a shard above half the limit. Of the
 * small ones that stay each is larger than all behind it together, so there are few. It decides only: data_out.c copies. */
#include "data/data_prepare.h"

/* Behind a growth of any size lie at least this many parts of a shard, so that tiny growths leave no chain of tiny shards. */
enum { LEAST_PART = 64 };

int64_t data__shard_most(const data_config *cfg) {
    return cfg->shard_bytes ? cfg->shard_bytes : (int64_t)256 << 20;
}

size_t data__merge_from(const data__manifest *m, double coming, int64_t most) {
    const double least = (double)most / LEAST_PART;
    double behind = coming > least ? coming : least;
    size_t at = m->n_shards;
    for (; at > 0; at--) {
        const int64_t bytes = m->shards[at - 1].bytes;
        if (bytes > most / 2 || (double)bytes > behind) break;
        behind += (double)bytes;
    }
    return at;
}

int64_t data__merge_bytes(const data__manifest *m, size_t from) {
    int64_t bytes = 0;
    for (size_t i = from; i < m->n_shards; i++) bytes += m->shards[i].bytes;
    return bytes;
}
