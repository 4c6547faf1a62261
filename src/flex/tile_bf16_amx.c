/* tile_bf16 on Intel's matrix unit (AMX), with AVX-512 for the softmax and the packing.
 *
 * Compiled with its own flags and reached through tile_bf16_get only where the CPU has the unit and the system lets the process
 * use it. All eight registers are 16 rows of 64 bytes for the whole of a task. Chooses nothing. */
#if defined(__x86_64__)
#include "flex/tile_bf16.h"
#include <immintrin.h>
#include <string.h>

/* The compiler does not see that tile instructions read and write memory. */
#define VECTOR_FENCE            __asm__ volatile("" ::: "memory")
#define TILES                   (void)0
#define T_ZERO(t)               _tile_zero(t)
#define T_LOAD(t, from, stride) _tile_loadd(t, from, (size_t)(stride))
#define T_STORE(t, to, stride)  _tile_stored(t, to, (size_t)(stride))
#define T_DOT(c, a, b)          _tile_dpbf16ps(c, a, b)

#include "flex/tile_bf16_tiles.h"
#include "flex/tile_bf16_vec512.h"

static void take_unit(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) config.row_bytes[i] = 64, config.rows[i] = TILE_BF16_ROWS;
    VECTOR_FENCE;
    _tile_loadconfig(&config);
    VECTOR_FENCE;
}

static void give_unit(void) { _tile_release(); }

const tile_bf16 tile_bf16__amx = {"AMX",         take_unit,        give_unit, tiles_mm,
                                  tiles_softmax, tiles_scale_cols, turn,      pack_values};
#else
typedef int tile_bf16_amx_not_built;
#endif
