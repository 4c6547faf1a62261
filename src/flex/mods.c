/* The gallery's table and how to look into it.
 *
 * Masks first, then scores. Order and names are part of the documentation. A mask that holds sequences of different kinds
 * (context and slots, noisy and clean halves) tells in its sentence how positions are counted. */
#include "flex/mods.h"
#include "core/str.h"
#include <string.h>

#define I(name)                                                                                    \
    { name, EXPR_INT, 0 }
#define F(name)                                                                                    \
    { name, EXPR_FLOAT, 0 }
#define I1(name)                                                                                   \
    { name, EXPR_INT, 1 }
#define B1(name)                                                                                   \
    { name, EXPR_BOOL, 1 }
#define B2(name)                                                                                   \
    { name, EXPR_BOOL, 2 }
#define F1(name)                                                                                   \
    { name, EXPR_FLOAT, 1 }
#define I2(name)                                                                                   \
    { name, EXPR_INT, 2 }
#define F2(name)                                                                                   \
    { name, EXPR_FLOAT, 2 }
#define NOTHING                                                                                    \
    {                                                                                              \
        { NULL, EXPR_BOOL, 0 }                                                                     \
    }
#define SLOTS    "(kv - n) // size == q // size"
#define SLOTS_PY "(kv - n) // size == q // size"
#define TWO_HALVES                                                                                 \
    "let bq = (q >= n ? q - n : q) // size;\nlet bk = (kv >= n ? kv - n : kv) // size;\n"

static const mod table[] = {
    {"noop", EXPR_MASK, "true", NOTHING, "q >= 0", "Every query sees every key."},
    {"causal", EXPR_MASK, "q >= kv", NOTHING, "q >= kv", "The present and the past."},
    {"window",
     EXPR_MASK,
     "q >= kv && q - kv < w",
     {I("w")},
     "(q >= kv) & (q - kv < w)",
     "The last w keys, the present one included."},
    {"window_both",
     EXPR_MASK,
     "abs(q - kv) <= w",
     {I("w")},
     "(q - kv).abs() <= w",
     "w keys to either side, and the present one."},
    {"dilated",
     EXPR_MASK,
     "q >= kv && q - kv < w && (q - kv) % step == 0",
     {I("w"), I("step")},
     "(q >= kv) & (q - kv < w) & ((q - kv) % step == 0)",
     "Every step-th key of the last w."},
    {"prefix_lm",
     EXPR_MASK,
     "kv < prefix[b] || q >= kv",
     {I1("prefix")},
     "(kv < prefix[b]) | (q >= kv)",
     "A prefix that everybody sees, causal behind it; prefix[b] is its length for each batch entry."},
    {"document",
     EXPR_MASK,
     "doc[q] == doc[kv]",
     {I1("doc")},
     "doc[q] == doc[kv]",
     "Packed documents, each seeing itself; doc[position] is the document's number."},
    {"document_causal",
     EXPR_MASK,
     "doc[q] == doc[kv] && q >= kv",
     {I1("doc")},
     "(doc[q] == doc[kv]) & (q >= kv)",
     "Packed documents, each causal in itself."},
    {"global",
     EXPR_MASK,
     "special[q] || special[kv]",
     {B1("special")},
     "special[q] | special[kv]",
     "Special tokens see and are seen by all; special[position] tells which."},
    {"longformer",
     EXPR_MASK,
     "abs(q - kv) <= w || special[q] || special[kv]",
     {I("w"), B1("special")},
     "((q - kv).abs() <= w) | special[q] | special[kv]",
     "A window to both sides, and special tokens that see and are seen by all."},
    {"natten_2d",
     EXPR_MASK,
     "let r = side // 2;\n"
     "abs(clamp(q // width, r, height - 1 - r) - kv // width) <= r &&\n"
     "abs(clamp(q % width, r, width - 1 - r) - kv % width) <= r",
     {I("width"), I("height"), I("side")},
     "((torch.clamp(q // width, side // 2, height - 1 - side // 2) - kv // width).abs() <= side // 2) & "
     "((torch.clamp(q % width, side // 2, width - 1 - side // 2) - kv % width).abs() <= side // 2)",
     "Neighbourhoods of side x side pixels in an image of height rows of width pixels, moved inwards at its edges."},
    {"sta_3d",
     EXPR_MASK,
     "let i = q // tile;\nlet j = kv // tile;\n"
     "abs(clamp(i // (rows * cols), rt, times - 1 - rt) - j // (rows * cols)) <= rt &&\n"
     "abs(clamp(i // cols % rows, r, rows - 1 - r) - j // cols % rows) <= r &&\n"
     "abs(clamp(i % cols, r, cols - 1 - r) - j % cols) <= r",
     {I("tile"), I("times"), I("rows"), I("cols"), I("rt"), I("r")},
     "((torch.clamp(q // tile // (rows * cols), rt, times - 1 - rt) - kv // tile // (rows * cols)).abs() <= rt) & "
     "((torch.clamp(q // tile // cols % rows, r, rows - 1 - r) - kv // tile // cols % rows).abs() <= r) & "
     "((torch.clamp(q // tile % cols, r, cols - 1 - r) - kv // tile % cols).abs() <= r)",
     "Sliding tiles of a video: tile tokens each, in a grid of times x rows x cols tiles; rt and r tiles to either side."},
    {"block_diffusion",
     EXPR_MASK,
     TWO_HALVES "(q >= n) == (kv >= n) && bq == bk || kv >= n && (q >= n ? bq >= bk : bq > bk)",
     {I("n"), I("size")},
     "((torch.where(q >= n, q - n, q) // size == torch.where(kv >= n, kv - n, kv) // size) & ((q >= n) == (kv >= n))) | "
     "((torch.where(q >= n, q - n, q) // size > torch.where(kv >= n, kv - n, kv) // size) & (kv >= n) & (q < n)) | "
     "((torch.where(q >= n, q - n, q) // size >= torch.where(kv >= n, kv - n, kv) // size) & (kv >= n) & (q >= n))",
     "Block diffusion: n noisy positions, then the n clean ones, in blocks of size; noisy blocks see themselves and the "
     "clean past, clean ones are causal by block."},
    {"dflash",
     EXPR_MASK,
     "kv < n ? kv < anchor[q // size] : " SLOTS,
     {I("n"), I("size"), I1("anchor")},
     "torch.where(kv < n, kv < anchor[q // size], " SLOTS_PY ")",
     "A DFlash drafter: keys are n context positions, then the slots of draft blocks of size; a slot sees the context before "
     "its block's anchor and its own block."},
    {"dflash_window",
     EXPR_MASK,
     "let a = anchor[q // size];\nkv < n ? kv < a && a - kv <= w : " SLOTS,
     {I("n"), I("size"), I("w"), I1("anchor")},
     "torch.where(kv < n, (kv < anchor[q // size]) & (anchor[q // size] - kv <= w), " SLOTS_PY ")",
     "DFlash with the last w context positions before the anchor only."},
    {"dflash_packed",
     EXPR_MASK,
     "let a = anchor[q // size];\nkv < n ? kv < a && doc[kv] == doc[a] : " SLOTS,
     {I("n"), I("size"), I1("anchor"), I1("doc")},
     "torch.where(kv < n, (kv < anchor[q // size]) & (doc[kv.clamp(max=n - 1)] == doc[anchor[q // size]]), " SLOTS_PY
     ")",
     "DFlash over packed documents: context of the anchor's own document only; doc[position] of the context."},
    {"dflash_unused",
     EXPR_MASK,
     "let block = q // size;\nlet a = anchor[block];\n"
     "keep[block] && (kv < n ? kv < a && doc[kv] == doc[a] : " SLOTS ")",
     {I("n"), I("size"), I1("anchor"), I1("doc"), B1("keep")},
     "keep[q // size] & torch.where(kv < n, (kv < anchor[q // size]) & (doc[kv.clamp(max=n - 1)] == doc[anchor[q // size]]), " SLOTS_PY
     ")",
     "The same with blocks that are not used: their slots see nothing, and nobody sees them."},
    {"jetspec",
     EXPR_MASK,
     "kv < n ? kv < anchor[q // size] : " SLOTS " && kv - n <= q",
     {I("n"), I("size"), I1("anchor")},
     "torch.where(kv < n, kv < anchor[q // size], ((kv - n) // size == q // size) & (kv - n <= q))",
     "JetSpec's draft head: like DFlash, but causal inside a block."},
    {"shared_prefix",
     EXPR_MASK,
     "q >= kv && (kv < n || branch[q] == branch[kv])",
     {I("n"), I1("branch")},
     "(q >= kv) & ((kv < n) | (branch[q] == branch[kv]))",
     "Continuations behind a common prefix of n positions; branch[position] is the continuation's number."},
    {"tree",
     EXPR_MASK,
     "kv < n || ancestor[q, kv - n]",
     {I("n"), B2("ancestor")},
     "(kv < n) | ancestor[q, (kv - n).clamp(min=0)]",
     "Nodes of a draft tree behind n context positions; ancestor[node, other] is true for a node's ancestors and itself."},
    {"transfusion",
     EXPR_MASK,
     "q >= kv || span[q] >= 0 && span[q] == span[kv]",
     {I1("span")},
     "(q >= kv) | ((span[q] >= 0) & (span[q] == span[kv]))",
     "Causal text with images that see themselves whole; span[position] is the image's number, -1 in text."},
    {"flamingo",
     EXPR_MASK,
     "kv // size == image[q]",
     {I("size"), I1("image")},
     "kv // size == image[q]",
     "Text to images of size tokens each; image[q] is the latest image before the token, -1 when there is none."},
    {"alibi",
     EXPR_SCORE,
     "s + exp2(-8.0 * float(h + 1) / float(heads)) * float(kv - q)",
     {I("heads")},
     "s + torch.exp2(-8.0 * (h + 1) / heads) * (kv - q)",
     "ALiBi with the published slopes for a power of two of heads."},
    {"alibi_learned",
     EXPR_SCORE,
     "s + slope[h] * float(kv - q)",
     {F1("slope")},
     "s + slope[h] * (kv - q)",
     "ALiBi with a slope of each head's own."},
    {"softcap",
     EXPR_SCORE,
     "cap * tanh(s / cap)",
     {F("cap")},
     "cap * torch.tanh(s / cap)",
     "Scores bent softly towards -cap and cap."},
    {"relative",
     EXPR_SCORE,
     "s + bias[bucket[clamp(q - kv + far, 0, 2 * far)], h]",
     {I("far"), I1("bucket"), F2("bias")},
     "s + bias[bucket[torch.clamp(q - kv + far, 0, 2 * far)], h]",
     "T5's learned bias by distance: bucket[distance + far] is the row of the table bias[row, head]."},
    {"graphormer",
     EXPR_SCORE,
     "s + spatial[dist[q, kv]] + edge[kind[q, kv]]",
     {I2("dist"), I2("kind"), F1("spatial"), F1("edge")},
     "s + spatial[dist[q, kv]] + edge[kind[q, kv]]",
     "Graphormer: learned biases by the distance of two nodes and by the kind of their edge."},
    {"temperature",
     EXPR_SCORE,
     "s * temperature[h]",
     {F1("temperature")},
     "s * temperature[h]",
     "A factor for each head."},
    {"decay",
     EXPR_SCORE,
     "s - rate[h] * float(abs(q - kv))",
     {F1("rate")},
     "s - rate[h] * (q - kv).abs()",
     "Scores fall with distance, at each head's own rate."},
    {"log_relu", EXPR_SCORE, "log(max(s, 0.0))", NOTHING, "torch.log(torch.clamp(s, min=0.0))",
     "An activation in log space: the softmax of it weighs keys by max(s, 0)."},
};

int mods_count(void) { return (int)(sizeof table / sizeof *table); }
const mod *mods_at(int i) { return &table[i]; }

const mod *mods_find(const char *name) {
    for (int i = 0; i < mods_count(); i++)
        if (strcmp(table[i].name, name) == 0) return &table[i];
    return NULL;
}

int mods_captures(const mod *m) {
    int n = 0;
    while (n < MODS_MAX_CAPTURES && m->capture[n].name) n++;
    return n;
}

static const char *role_name(expr_role role) { return role == EXPR_MASK ? "mask" : "score"; }

static err unknown(const char *name, expr_role role) {
    const char *known[sizeof table / sizeof *table];
    str names = {0};
    err e = ERR_OK;
    int n = 0;
    for (int i = 0; !e && i < mods_count(); i++) {
        if (table[i].role != role) continue;
        e = str_printf(&names, "%s%s", n ? ", " : "", table[i].name);
        known[n++] = table[i].name;
    }
    const char *near = str_nearest(name, known, n);
    if (!e && near)
        e = err_set(ERR_USAGE, "'%s' is no %s of the gallery; did you mean %s?", name,
                    role_name(role), near);
    else if (!e)
        e = err_set(ERR_USAGE, "'%s' is no %s of the gallery; there are %s", name, role_name(role),
                    names.s);
    str_free(&names);
    return e;
}

err mods_need(const mod **out, const char *name, expr_role role) {
    const mod *m = mods_find(name);
    *out = NULL;
    if (!m) return unknown(name, role);
    if (m->role != role)
        return err_set(ERR_USAGE, "'%s' is a %s of the gallery, and a %s is needed here", name,
                       role_name(m->role), role_name(role));
    *out = m;
    return ERR_OK;
}
