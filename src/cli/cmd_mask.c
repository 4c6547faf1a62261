/* paceline mask: builds the block mask of an expression, reports its tiles, bytes and build time, and draws it.
 * The only inputs are the text, extents and captured values. No attention is run and no per-cell
 * buffer is made but of masks small enough to be drawn cell by cell. */
#include "cli/captures.h"
#include "cli/command.h"
#include "cli/mask_device.h"
#include "cli/mask_lists.h"
#include "cli/mask_picture.h"
#include "cli/mods_list.h"
#include "cli/open_dev.h"
#include "core/file.h"
#include "flex/mods.h"
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const arg_spec spec[] = {
    {"--q", ARG_INT, "L", "query length (needed without --import)"},
    {"--kv", ARG_INT, "S", "key length (needed without --import)"},
    {"--q0", ARG_INT, "N", "first query: the mask of rows N.. of a longer problem (default 0)"},
    {"--kv0", ARG_INT, "N", "first key, likewise (default 0)"},
    {"--mod", ARG_TEXT, "NAME", "a mask of the gallery instead of an expression"},
    {"--mods", ARG_FLAG, NULL, "list the gallery, with what each entry captures"},
    {"--batch", ARG_INT, "B", "batch extent, for masks that name b (default 1)"},
    {"--heads", ARG_INT, "H", "query heads, for masks that name h (default 1)"},
    {"--tile", ARG_INT, "T", "tile edge in cells (default 128)"},
    {"--budget", ARG_INT, "MIB", "bytes the mask may take, in MiB (default 256)"},
    {"--let", ARG_MANY, "NAME=VALUE", "a captured scalar; may be repeated"},
    {"--in", ARG_TEXT, "FILE", "safetensors file with captured arrays, by name"},
    {"--import", ARG_TEXT, "FILE",
     "tiles from a file, in PyTorch's lists; with an expression they are checked against it"},
    {"--export", ARG_TEXT, "FILE", "write the tiles to a file, in PyTorch's lists"},
    {"--device", ARG_TEXT, "cpu|cuda:N",
     "where captured arrays are while the mask is built (default cpu); on a GPU its kernels read them"},
    {"--threads", ARG_INT, "N", "CPU threads (default: usable CPUs)"},
    {"--map", ARG_FLAG, NULL, "draw the tiles as text; on a terminal this is done anyway"},
    {"--png", ARG_TEXT, "FILE", "draw the tiles (small masks: the cells) as a PNG picture"},
    {"--json", ARG_FLAG, NULL, "print one JSON object"},
    {"--explain", ARG_FLAG, NULL, "also print runs, undecided tiles and what was proven"},
    {NULL, ARG_FLAG, NULL, NULL},
};

static void print_json(const block_mask *m, const mask_device *d) {
    printf(
        "{\"tiles\": {\"empty\": %lld, \"partial\": %lld, \"full\": %lld}, \"build_ms\": %.4f, \"bytes\": %zu, \"peak_bytes\": %zu, "
        "\"undecided\": %lld, \"no_empty_row\": %s, \"may_leave\": %s, \"device\": \"%.*s\", \"device_bytes\": %zu}\n",
        (long long)m->empty, (long long)m->partial, (long long)m->full, m->build_ms, m->bytes,
        m->peak_bytes, (long long)m->undecided, m->no_empty_row ? "true" : "false",
        m->may_leave ? "true" : "false", (int)strcspn(d->name, ","), d->name, d->arrays + d->work);
}

static void print_text(const block_mask *m, const mask_device *d) {
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
    if (d->work)
        printf("device     %s: %s of captured arrays there, %s for questions and answers\n",
               d->name, str_bytes((double)d->arrays, bytes), str_bytes((double)d->work, peak));
    else if (strcmp(d->name, "cpu") != 0)
        printf("device     %s was not asked: the mask captures no array\n", d->name);
}

static err print_explained(const block_mask *m) {
    str text = {0};
    err e = blockmask_explain(m, &text);
    if (!e) printf("%s", text.s);
    str_free(&text);
    return e;
}

/* Extents that are given must be the file's; those that are not are. */
static err check_extents(const args *a, block_mask_args *want, const block_mask *m) {
    if (args_has(a, "--tile") && (want->tile_q != m->tile_q || want->tile_kv != m->tile_kv))
        return err_set(ERR_SHAPE, "--tile is %d and the file's tiles are %d x %d; leave --tile out",
                       want->tile_q, m->tile_q, m->tile_kv);
    if (!args_has(a, "--batch")) want->batch = m->batch;
    if (!args_has(a, "--heads")) want->heads = m->heads;
    if (!args_has(a, "--q")) want->q_len = m->q_len;
    if (!args_has(a, "--kv")) want->kv_len = m->kv_len;
    return blockmask_fits(m, want->batch, want->heads, want->q_len, want->kv_len);
}

/* Tiles from the file of --import; with an expression they must say the same. */
static err import(const args *a, const char *path, block_mask_args *want, arena *mem,
                  block_mask *m) {
    st_file *file;
    int64_t loose = 0;
    TRY(safetensors_open(&file, path));
    err e = mask_lists_read(m, file, want->budget, mem);
    if (!e) e = check_extents(a, want, m);
    if (!e && want->mask) e = blockmask_check(m, want, &loose);
    if (!e && loose)
        fprintf(stderr, "%lld tiles are listed as partial that need not be\n", (long long)loose);
    safetensors_close(file);
    return e;
}

static err build(const args *a, captures *c, dev *d, arena *mem, block_mask *m, mask_device *on) {
    int64_t q, kv, batch, heads, tile, budget;
    const char *needed, *from = args_text(a, "--import", NULL);
    if (!from) {
        TRY(args_need(a, "--q", &needed));
        TRY(args_need(a, "--kv", &needed));
    }
    TRY(args_int(a, "--q", 0, 0, INT64_C(1) << 40, &q));
    TRY(args_int(a, "--kv", 0, 0, INT64_C(1) << 40, &kv));
    TRY(args_int(a, "--q0", 0, 0, INT64_C(1) << 40, &c->env.q0));
    TRY(args_int(a, "--kv0", 0, 0, INT64_C(1) << 40, &c->env.kv0));
    TRY(args_int(a, "--batch", 1, 1, 1 << 20, &batch));
    TRY(args_int(a, "--heads", 1, 1, 1 << 20, &heads));
    TRY(args_int(a, "--tile", 128, 8, 4096, &tile));
    TRY(args_int(a, "--budget", 256, 1, 1 << 20, &budget));
    block_mask_args want = {.mask = c->program,
                            .env = &c->env,
                            .batch = batch,
                            .heads = heads,
                            .q_len = q,
                            .kv_len = kv,
                            .tile_q = (int32_t)tile,
                            .tile_kv = (int32_t)tile,
                            .budget = (size_t)budget << 20};
    *on = (mask_device){.name = "cpu"};
    return from ? import(a, from, &want, mem, m) : mask_device_build(m, &want, d, mem, on);
}

/* The expression: given, of the gallery, or none beside tiles from a file. */
static err choose_text(const args *a, const char **text) {
    const char *name = args_text(a, "--mod", NULL);
    const mod *m;
    *text = a->n_positional ? a->positional[0] : NULL;
    if (name && *text) return err_set(ERR_USAGE, "an expression and --mod are given: choose one");
    if (name) {
        TRY(mods_need(&m, name, EXPR_MASK));
        *text = m->text;
    }
    if (*text || args_text(a, "--import", NULL)) return ERR_OK;
    return err_set(ERR_USAGE, "an expression is needed, or --mod, --mods or --import; see --help");
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

static err show(const args *a, const block_mask *m, const mask_device *on, const captures *c,
                arena *mem) {
    const char *png = args_text(a, "--png", NULL), *to = args_text(a, "--export", NULL);
    if (to) TRY(mask_lists_write(m, to, mem));
    if (png) TRY(mask_picture_png(m, c, png, mem));
    if (args_has(a, "--json")) {
        print_json(m, on);
        return ERR_OK;
    }
    print_text(m, on);
    if (args_has(a, "--explain")) TRY(print_explained(m));
    return args_has(a, "--map") || isatty(STDOUT_FILENO) ? print_map(m, c, mem) : ERR_OK;
}

static err check_flags(const args *a, const char *text) {
    static const char *const of_text[] = {"--let", "--in", "--q0", "--kv0"};
    const char *const outputs[] = {args_text(a, "--png", NULL), args_text(a, "--export", NULL)};
    if (args_has(a, "--map") && args_has(a, "--json"))
        return err_set(ERR_USAGE, "--map draws text and --json prints an object: choose one");
    for (size_t i = 0; !text && i < sizeof of_text / sizeof *of_text; i++)
        if (args_has(a, of_text[i]))
            return err_set(
                ERR_USAGE,
                "%s belongs to an expression and none is given: give one or leave it out",
                of_text[i]);
    if (args_has(a, "--import") && cuda_system_parse(args_text(a, "--device", "cpu")) >= 0)
        return err_set(ERR_USAGE,
                       "--device %s builds tiles and --import takes them from a file: "
                       "leave one out",
                       args_text(a, "--device", "cpu"));
    for (int i = 0; i < 2; i++)
        if (outputs[i]) TRY(file_check_output(outputs[i]));
    return ERR_OK;
}

static err run(const args *a) {
    const char *let[ARGS_MAX_MANY], *in = args_text(a, "--in", NULL), *text;
    int n_let = args_many(a, "--let", let, ARGS_MAX_MANY);
    st_file *file = NULL;
    captures c = {0};
    arena *mem = NULL;
    cuda_system *sys = NULL;
    dev *d = NULL;
    mask_device on;
    block_mask m;
    err e;
    if (args_has(a, "--mods")) return mods_list(args_has(a, "--json"));
    TRY(choose_text(a, &text));
    TRY(check_flags(a, text));
    if (in) TRY_GOTO(safetensors_open(&file, in), done);
    if (text) TRY_GOTO(captures_open(&c, EXPR_MASK, text, NULL, file, let, n_let), done);
    TRY_GOTO(arena_create(&mem, "mask", 0), done);
    TRY_GOTO(open_dev_plain(a, &d, &sys), done);
    TRY_GOTO(build(a, &c, d, mem, &m, &on), done);
    e = show(a, &m, &on, &c, mem);
done:
    dev_close(d);
    cuda_system_close(sys);
    arena_destroy(mem);
    captures_close(&c);
    safetensors_close(file);
    return e;
}

const command command_mask = {
    .name = "mask",
    .usage = "mask [EXPRESSION] --q L --kv S [options]",
    .summary = "tiles of a mask: how many are empty, partial and full, and what it costs",
    .details =
        "The expression is over b, h, q, kv and captured names; docs/LANGUAGE.md describes it. Example:\n"
        "  paceline mask 'q >= kv && q - kv < w' --q 4096 --kv 4096 --let w=1024\n"
        "  paceline mask --mod window --q 4096 --kv 4096 --let w=1024",
    .spec = spec,
    .min_pos = 0,
    .max_pos = 1,
    .run = run,
};
