/* paceline mask: builds the block mask of an expression, reports its tiles, bytes and build time, and draws it.
 * The only inputs are the text, extents and captured values. No attention is run and no per-cell
 * buffer is made but of masks small enough to be drawn cell by cell. */
#include "cli/captures.h"
#include "cli/command.h"
#include "cli/mask_picture.h"
#include "cli/open_dev.h"
#include "core/file.h"
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const arg_spec spec[] = {
    {"--q", ARG_INT, "L", "query length (needed)"},
    {"--kv", ARG_INT, "S", "key length (needed)"},
    {"--batch", ARG_INT, "B", "batch extent, for masks that name b (default 1)"},
    {"--heads", ARG_INT, "H", "query heads, for masks that name h (default 1)"},
    {"--tile", ARG_INT, "T", "tile edge in cells (default 128)"},
    {"--budget", ARG_INT, "MIB", "bytes the mask may take, in MiB (default 256)"},
    {"--let", ARG_MANY, "NAME=VALUE", "a captured scalar; may be repeated"},
    {"--in", ARG_TEXT, "FILE", "safetensors file with captured arrays, by name"},
    {"--threads", ARG_INT, "N", "CPU threads (default: usable CPUs)"},
    {"--map", ARG_FLAG, NULL, "draw the tiles as text; on a terminal this is done anyway"},
    {"--png", ARG_TEXT, "FILE", "draw the tiles (small masks: the cells) as a PNG picture"},
    {"--json", ARG_FLAG, NULL, "print one JSON object"},
    {"--explain", ARG_FLAG, NULL, "also print runs, undecided tiles and what was proven"},
    {NULL, ARG_FLAG, NULL, NULL},
};

static void print_json(const block_mask *m) {
    printf(
        "{\"tiles\": {\"empty\": %lld, \"partial\": %lld, \"full\": %lld}, \"build_ms\": %.4f, \"bytes\": %zu, \"peak_bytes\": %zu, "
        "\"undecided\": %lld, \"no_empty_row\": %s, \"may_leave\": %s}\n",
        (long long)m->empty, (long long)m->partial, (long long)m->full, m->build_ms, m->bytes,
        m->peak_bytes, (long long)m->undecided, m->no_empty_row ? "true" : "false",
        m->may_leave ? "true" : "false");
}

static void print_text(const block_mask *m, int explain) {
    char bytes[24], peak[24], count[3][32];
    double all = (double)(m->empty + m->partial + m->full);
    printf("mask       %lld x %lld cells, tiles of %d x %d, batch %lld, heads %lld\n",
           (long long)m->q_len, (long long)m->kv_len, m->tile_q, m->tile_kv, (long long)m->batch,
           (long long)m->heads);
    printf("tiles      %s empty, %s partial, %s full (%.2f %% visited)\n",
           str_thousands(m->empty, count[0]), str_thousands(m->partial, count[1]),
           str_thousands(m->full, count[2]),
           all > 0 ? 100.0 * (double)(m->partial + m->full) / all : 0.0);
    printf("bytes      %s (%s while building)\n", str_bytes((double)m->bytes, bytes),
           str_bytes((double)m->peak_bytes, peak));
    printf("build      %.3f ms\n", m->build_ms);
    if (!explain) return;
    int64_t rows = m->batch * m->heads * m->q_tiles, cols = m->batch * m->heads * m->kv_tiles;
    printf("runs       %lld by query tiles, %lld by key tiles\n", (long long)m->row_start[rows],
           (long long)m->col_start[cols]);
    printf("undecided  %lld tiles were counted cell by cell\n", (long long)m->undecided);
    printf("rows       %s\n", m->no_empty_row ? "every query sees at least one key"
                                              : "some query sees no key: its output is 0");
    printf("loads      %s\n",
           m->may_leave ? "an index is not proven to stay in its array: guarded at run time"
                        : "every index is proven to stay in its array");
}

static err build(const args *a, const captures *c, dev *d, arena *mem, block_mask *m) {
    int64_t q, kv, batch, heads, tile, budget;
    const char *needed;
    TRY(args_need(a, "--q", &needed));
    TRY(args_need(a, "--kv", &needed));
    TRY(args_int(a, "--q", 0, 0, INT64_C(1) << 40, &q));
    TRY(args_int(a, "--kv", 0, 0, INT64_C(1) << 40, &kv));
    TRY(args_int(a, "--batch", 1, 1, 1 << 20, &batch));
    TRY(args_int(a, "--heads", 1, 1, 1 << 20, &heads));
    TRY(args_int(a, "--tile", 128, 8, 4096, &tile));
    TRY(args_int(a, "--budget", 256, 1, 1 << 20, &budget));
    return blockmask_build(m,
                           &(block_mask_args){.mask = c->program,
                                              .env = &c->env,
                                              .batch = batch,
                                              .heads = heads,
                                              .q_len = q,
                                              .kv_len = kv,
                                              .tile_q = (int32_t)tile,
                                              .tile_kv = (int32_t)tile,
                                              .budget = (size_t)budget << 20},
                           mem, d);
}

static err print_map(const block_mask *m, const captures *c, arena *mem) {
    struct winsize size = {0};
    str text = {0};
    int width = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
    err e = mask_picture_text(m, c, width, mem, &text);
    if (!e && text.s) printf("\n%s", text.s);
    str_free(&text);
    return e;
}

static err run(const args *a) {
    const char *let[ARGS_MAX_MANY], *in = args_text(a, "--in", NULL),
                                    *png = args_text(a, "--png", NULL);
    int n_let = args_many(a, "--let", let, ARGS_MAX_MANY);
    st_file *file = NULL;
    captures c = {0};
    arena *mem = NULL;
    dev *d = NULL;
    block_mask m;
    err e;
    if (args_has(a, "--map") && args_has(a, "--json"))
        return err_set(ERR_USAGE, "--map draws text and --json prints an object: choose one");
    if (png) TRY(file_check_output(png));
    if (in) TRY_GOTO(safetensors_open(&file, in), done);
    TRY_GOTO(captures_open(&c, EXPR_MASK, a->positional[0], NULL, file, let, n_let), done);
    TRY_GOTO(arena_create(&mem, "mask", 0), done);
    TRY_GOTO(open_dev(a, &d), done);
    TRY_GOTO(build(a, &c, d, mem, &m), done);
    if (png) TRY_GOTO(mask_picture_png(&m, &c, png, mem), done);
    if (args_has(a, "--json")) {
        print_json(&m);
        goto done;
    }
    print_text(&m, args_has(a, "--explain"));
    if (args_has(a, "--map") || isatty(STDOUT_FILENO)) e = print_map(&m, &c, mem);
done:
    dev_close(d);
    arena_destroy(mem);
    captures_close(&c);
    safetensors_close(file);
    return e;
}

const command command_mask = {
    .name = "mask",
    .usage = "mask EXPRESSION --q L --kv S [options]",
    .summary = "tiles of a mask: how many are empty, partial and full, and what it costs",
    .details =
        "The expression is over b, h, q, kv and captured names; docs/LANGUAGE.md describes it. Example:\n"
        "  paceline mask 'q >= kv && q - kv < w' --q 4096 --kv 4096 --let w=1024",
    .spec = spec,
    .min_pos = 1,
    .max_pos = 1,
    .run = run,
};
