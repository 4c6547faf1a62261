/* The figures of `paceline bench` by source of prompts, and their printing as a table for people and
 * as JSON for programs. The keys of the JSON are stable. Sums over prompts are taken here; rates and
 * tau are derived from them once, when they are printed. */
#ifndef CLI_BENCH_TABLE_H
#define CLI_BENCH_TABLE_H
#include "core/str.h"
#include "decode/decode.h"

typedef struct bench_line {
    const char *source;
    int64_t prompts, identical; /* prompts whose texts are token for token the same both ways */
    int64_t tokens;             /* new tokens, plain */
    int64_t shortest;           /* fewest new tokens of a prompt */
    int64_t plain_steps;        /* tokens behind the prefill's, plain */
    int64_t spec_steps;
    double plain_s, spec_s;                  /* decoding without the prefill */
    decode_stats stats;                      /* of the speculative runs */
    int64_t bigram_rounds, bigram_committed; /* 0: no table given */
} bench_line;

enum { BENCH_MAX_SOURCES = 64 };
typedef struct bench_table {
    bench_line line[BENCH_MAX_SOURCES];
    int n;
    int64_t block_size;
    char digest[33];
} bench_table;

bench_line *bench_table_find(bench_table *t,
                             const char *source); /* makes it; NULL beyond BENCH_MAX_SOURCES */
void bench_table_print(const bench_table *t);
MUST_CHECK err bench_table_json(const bench_table *t, const char *path);

#endif
