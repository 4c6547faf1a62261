/* A block mask in words: tiles by kind, what it takes, what was proven.
 *
 * Used by plans and by the command line, so that both say the same. Decides nothing. */
#include "core/str.h"
#include "flex/blockmask.h"

static err explain_loads(const block_mask *m, str *out) {
    static const char *const places[] = {"inside its array", "outside it somewhere",
                                         "not proven: guarded"};
    const interval_proofs *p = &m->proofs;
    if (!p->n_loads) return str_printf(out, "  loads: none\n");
    TRY(str_printf(out, "  loads: %d of %d proven inside their arrays\n", p->inside, p->n_loads));
    for (int i = 0; i < p->n_loads; i++) {
        const interval_load *l = &p->load[i];
        if (l->place == INTERVAL_INSIDE) continue;
        TRY(str_printf(out, "    %s: %s", l->name, places[l->place]));
        for (int j = 0; j < l->ndim; j++)
            TRY(str_printf(out, "%s%lld..%lld of %lld", j ? ", " : "; index ", (long long)l->lo[j],
                           (long long)l->hi[j], (long long)l->dim[j]));
        TRY(str_printf(out, "\n"));
    }
    return ERR_OK;
}

err blockmask_explain(const block_mask *m, str *out) {
    char a[32], b[32], c[32], d[32], bytes[24], peak[24];
    int64_t rows = m->batch * m->heads * m->q_tiles, cols = m->batch * m->heads * m->kv_tiles;
    TRY(str_printf(out, "mask: %s full, %s partial, %s empty tiles (%s left to counting)\n",
                   str_thousands(m->full, a), str_thousands(m->partial, b),
                   str_thousands(m->empty, c), str_thousands(m->undecided, d)));
    TRY(str_printf(
        out,
        "  stored for %lld batch and %lld head entries as %lld runs by query tiles and %lld by key tiles: %s, %s while building, %.3f ms\n",
        (long long)m->batch, (long long)m->heads, (long long)m->row_start[rows],
        (long long)m->col_start[cols], str_bytes((double)m->bytes, bytes),
        str_bytes((double)m->peak_bytes, peak), m->build_ms));
    if (m->given)
        return str_printf(out,
                          "  read from lists: rows that see nothing, loads and what it changes "
                          "with are not known\n");
    TRY(str_printf(out, "  rows that see nothing: %s\n", m->no_empty_row ? "none" : "some"));
    TRY(str_printf(
        out,
        "  changes with the batch entry: %s; with the head: %s; 32-bit integers are enough: %s\n",
        m->proofs.by_batch ? "yes" : "no", m->proofs.by_head ? "yes" : "no",
        m->proofs.fits_32 ? "yes" : "no"));
    return explain_loads(m, out);
}
