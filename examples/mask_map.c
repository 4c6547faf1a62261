/* Draws a mask's tiles in the terminal, and what they save: '#' full, '+' partial, '.' empty.
 *
 *     cc mask_map.c $(pkg-config --cflags --libs paceline) -o mask_map
 *     ./mask_map 'kv <= q && q - kv < 512' 4096
 *
 * A mask alone needs no tensors and no device. */
#include <paceline/flex.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(pl_error e) {
    fprintf(stderr, "%s: %s\n", pl_error_name(e), pl_error_text());
    return 1;
}

int main(int argc, char **argv) {
    const char *text = argc > 1 ? argv[1] : "kv <= q && (q - kv < 256 || kv < 32)";
    const long long length = argc > 2 ? atoll(argv[2]) : 2048;
    pl_shape shape = {
        .size = sizeof shape, .batch = 1, .q_heads = 1, .q_len = length, .kv_len = length};
    pl_mask_info info = {.size = sizeof info};
    pl_problem *problem;
    pl_mask *mask;
    pl_error e;
    if ((e = pl_problem_create(&problem, &shape, PL_F32))) return fail(e);
    if ((e = pl_problem_mask(problem, text))) return fail(e);
    if ((e = pl_mask_create(&mask, problem, NULL)))
        return fail(e); /* a mistake in the text is told here */
    if ((e = pl_mask_get_info(mask, &info))) return fail(e);

    size_t n = (size_t)(info.q_tiles * info.kv_tiles);
    uint8_t *kinds = malloc(n + 1);
    if (!kinds) return 1;
    if ((e = pl_mask_tiles(mask, 0, 0, kinds, n))) return fail(e);
    for (int64_t row = 0; row < info.q_tiles; row++) {
        for (int64_t column = 0; column < info.kv_tiles; column++)
            putchar(".+#"[kinds[row * info.kv_tiles + column]]);
        putchar('\n');
    }
    printf(
        "%lld full, %lld partial, %lld empty tiles of %lld x %lld; %zu bytes, built in %.3f ms\n",
        (long long)info.full, (long long)info.partial, (long long)info.empty,
        (long long)info.tile_q, (long long)info.tile_kv, info.bytes, info.build_ms);
    free(kinds);
    pl_mask_free(mask);
    pl_problem_free(problem);
    return 0;
}
