/* The generator: one function per type, choosing among the forms of that type.
 *
 * A depth of 0 gives a leaf. Text that would not fit is replaced by `true`, so that callers need no
 * error path. Constants are mostly small; a few are huge, to reach wrapping arithmetic. */
#include "support/random_expr.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const random_expr_capture random_expr_captures[RANDOM_EXPR_CAPTURES] = {
    {"n", 'i', 0},      {"w", 'i', 0},     {"x", 'f', 0},    {"on", 'b', 0},   {"doc", 'i', 1},
    {"anchor", 'i', 1}, {"table", 'i', 2}, {"bias", 'f', 1}, {"keep", 'b', 1},
};

typedef struct writer {
    uint64_t *state;
    char *out;
    size_t n, size;
    int score; /* s may be named */
} writer;

uint64_t random_expr_next(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int random_expr_below(uint64_t *state, int n) { return (int)(random_expr_next(state) >> 33) % n; }

static int below(writer *w, int n) { return random_expr_below(w->state, n); }

__attribute__((format(printf, 2, 3))) static void put(writer *w, const char *fmt, ...) {
    va_list list;
    if (w->n >= w->size) return;
    va_start(list, fmt);
    w->n += (size_t)vsnprintf(w->out + w->n, w->size - w->n, fmt, list);
    va_end(list);
}

static void put_bool(writer *w, int depth);
static void put_int(writer *w, int depth);
static void put_float(writer *w, int depth);

static void put_pair(writer *w, int depth, const char *open, const char *middle,
                     void (*part)(writer *, int)) {
    put(w, "%s", open);
    part(w, depth);
    put(w, "%s", middle);
    part(w, depth);
    put(w, ")");
}

static void put_int_leaf(writer *w) {
    static const char *const names[] = {"q", "kv", "q", "kv", "q", "kv", "b", "h", "n", "w"};
    static const char *const huge[] = {"9223372036854775807", "4611686018427387904", "3037000500"};
    switch (below(w, 4)) {
    case 0: put(w, "%d", below(w, 24) - 4); break;
    case 1:
        if (below(w, 12) == 0 && !w->score) { /* beside them a score's slope drowns */
            put(w, "%s", huge[below(w, 3)]);
            break;
        } /* fall through */
    default: put(w, "%s", names[below(w, 10)]);
    }
}

static void put_load(writer *w, int depth) {
    switch (below(w, 5)) {
    case 0: put(w, "anchor[q // 4]"); break;
    case 1: put(w, "doc[%s]", below(w, 2) ? "q" : "kv"); break;
    case 2:
        put_pair(w, depth, "table[(", "), (", put_int);
        put(w, "]");
        break;
    default:
        put(w, "%s[", below(w, 2) ? "doc" : "anchor");
        put_int(w, depth);
        put(w, "]");
    }
}

static void put_int(writer *w, int depth) {
    if (depth <= 0) {
        put_int_leaf(w);
        return;
    }
    int d = depth - 1 - below(w, 2);
    switch (below(w, 15)) {
    case 0:
    case 1: put_pair(w, d, "(", " + ", put_int); break;
    case 2:
    case 3: put_pair(w, d, "(", " - ", put_int); break;
    case 4:
        put(w, "(%d * ", below(w, 9) - 4);
        put_int(w, d);
        put(w, ")");
        break;
    case 5:
    case 6:
        put(w, "(");
        put_int(w, d);
        put(w, " %s %d)", below(w, 2) ? "//" : "%", below(w, 11) - 2);
        break;
    case 7: put_pair(w, d, "(", below(w, 2) ? " // " : " % ", put_int); break;
    case 8: put_pair(w, d, below(w, 2) ? "min(" : "max(", ", ", put_int); break;
    case 9:
        put(w, "abs(");
        put_int(w, d);
        put(w, ")");
        break;
    case 10:
        put(w, "(");
        put_bool(w, d);
        put(w, " ? ");
        put_int(w, d);
        put(w, " : ");
        put_int(w, d);
        put(w, ")");
        break;
    case 11:
        if (below(w, 3) == 0) {
            put(w, "int(");
            put_float(w, d);
            put(w, ")");
        } else {
            put_pair(w, d, "(", " * ", put_int);
        }
        break;
    case 12:
        put(w, "(-");
        put_int(w, d);
        put(w, ")");
        break;
    default: put_load(w, d);
    }
}

static void put_float(writer *w, int depth) {
    static const char *const calls[] = {"exp",  "exp2",    "log",   "sqrt", "rsqrt",
                                        "tanh", "sigmoid", "floor", "abs",  "float"};
    static const char *const of_scores[] = {"s",        "s",       "s",      "bias[abs(q - kv)]",
                                            "bias[kv]", "bias[h]", "bias[q]"};
    int d = depth - 1;
    if (depth <= 0) {
        if (w->score && below(w, 2))
            put(w, "%s", of_scores[below(w, 7)]);
        else if (below(w, 3) == 0)
            put(w, "%d.%d", below(w, 6), below(w, 10));
        else
            put(w, "%s", below(w, 2) ? "x" : "float(kv)");
        return;
    }
    switch (below(w, 8)) {
    case 0: put_pair(w, d, "(", " + ", put_float); break;
    case 1: put_pair(w, d, "(", " - ", put_float); break;
    case 2: put_pair(w, d, "(", below(w, 2) ? " * " : " / ", put_float); break;
    case 3: put_pair(w, d, below(w, 2) ? "min(" : "max(", ", ", put_float); break;
    case 4:
        put(w, "%s(", calls[below(w, 10)]);
        put_float(w, d);
        put(w, ")");
        break;
    case 5:
        put(w, "float(");
        put_int(w, d);
        put(w, ")");
        break;
    case 6:
        put(w, "(");
        put_bool(w, d);
        put(w, " ? ");
        put_float(w, d);
        put(w, " : -");
        put_float(w, d);
        put(w, ")");
        break;
    default:
        put(w, "bias[");
        put_int(w, d);
        put(w, "]");
    }
}

static void put_bool(writer *w, int depth) {
    static const char *const compare[] = {" < ", " <= ", " > ", " >= ", " == ", " != "};
    int d = depth - 1;
    if (depth <= 0) {
        switch (below(w, 6)) {
        case 0: put(w, "on"); break;
        case 1: put(w, "keep[kv]"); break;
        case 2: put(w, "(doc[q] == doc[kv])"); break;
        default: put(w, "(q%skv)", compare[below(w, 6)]);
        }
        return;
    }
    switch (below(w, 13)) {
    case 0:
    case 1: put_pair(w, d, "(", " && ", put_bool); break;
    case 2:
    case 3: put_pair(w, d, "(", " || ", put_bool); break;
    case 4:
        put(w, "!(");
        put_bool(w, d);
        put(w, ")");
        break;
    case 5:
        put(w, "(");
        put_bool(w, d);
        put(w, " ? ");
        put_bool(w, d);
        put(w, " : ");
        put_bool(w, d);
        put(w, ")");
        break;
    case 6: put_pair(w, d, "(", compare[below(w, 6)], put_float); break;
    case 7:
        put(w, "keep[");
        put_int(w, d);
        put(w, "]");
        break;
    case 9: put_pair(w, d, "(", below(w, 2) ? " == " : " != ", put_bool); break;
    case 8: /* a guard that cuts an index, then a load that relies on it */
        put(w, "(%s >= 0 && %s < n && ", below(w, 2) ? "kv" : "q", below(w, 2) ? "kv" : "q");
        put_bool(w, d);
        put(w, ")");
        break;
    default: put_pair(w, d, "(", compare[below(w, 6)], put_int);
    }
}

void random_expr_mask(uint64_t *state, int depth, char *out, size_t size) {
    writer w = {state, out, 0, size, 0};
    if (below(&w, 4) == 0) {
        put(&w, "let d = ");
        put_int(&w, depth / 2);
        put(&w, ";\nd < ");
        put_int(&w, depth / 2);
        put(&w, " && d == d && ");
    }
    put(&w, "(");
    put_bool(&w, depth);
    put(&w, ")");
    if (w.n >= size) snprintf(out, size, "true");
}

void random_expr_score(uint64_t *state, int depth, char *out, size_t size) {
    writer w = {state, out, 0, size, 1};
    if (below(&w, 3) == 0) {
        put(&w, "let x0 = ");
        put_float(&w, depth / 2);
        put(&w, ";\nx0 * ");
    }
    if (below(&w, 4) == 0) put(&w, "clamp(s, -1.5, 1.5) + ");
    put(&w, "(");
    put_float(&w, depth);
    put(&w, ")");
    if (w.n >= size) snprintf(out, size, "s");
}
