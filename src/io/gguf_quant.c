/* Tensor types of GGUF: names, block sizes, and rows as fp32 exactly as ggml defines them.
 *
 * Products and sums are separate roundings (no fused multiply-add), in the order of the definition, so the
 * values are those of the reference bit for bit. Blocks may start at any address. Types outside the header's
 * list are known by size, so that files holding them can be listed, and are refused when a row is asked for. */
#include "io/gguf_parts.h"
#include "core/dtype.h"
#include <inttypes.h>
#include <string.h>

typedef void (*row_reader)(const uint8_t *src, float *dst, int64_t blocks);

enum { QUANT_BLOCK = 32 };

static float half_at(const uint8_t *p) {
    f16 h;
    memcpy(&h, p, sizeof h);
    return f16_to_f32(h);
}

static void read_f32(const uint8_t *src, float *dst, int64_t n) { memcpy(dst, src, (size_t)n * 4); }
static void read_f16(const uint8_t *src, float *dst, int64_t n) {
    dtype_to_f32(DT_F16, src, dst, (size_t)n);
}
static void read_bf16(const uint8_t *src, float *dst, int64_t n) {
    dtype_to_f32(DT_BF16, src, dst, (size_t)n);
}

/* {f16 d; int8 q[32]}: x = q * d */
static void read_q8_0(const uint8_t *src, float *dst, int64_t blocks) {
    for (int64_t b = 0; b < blocks; b++, src += 34, dst += QUANT_BLOCK) {
        float d = half_at(src);
        for (int i = 0; i < QUANT_BLOCK; i++) dst[i] = (float)(int8_t)src[2 + i] * d;
    }
}

/* {f16 d; u8 q[16]}: low nibbles are values 0..15, high nibbles 16..31; x = (q - 8) * d */
static void read_q4_0(const uint8_t *src, float *dst, int64_t blocks) {
    for (int64_t b = 0; b < blocks; b++, src += 18, dst += QUANT_BLOCK) {
        float d = half_at(src);
        for (int i = 0; i < QUANT_BLOCK / 2; i++) {
            dst[i] = (float)((src[2 + i] & 15) - 8) * d;
            dst[i + QUANT_BLOCK / 2] = (float)((src[2 + i] >> 4) - 8) * d;
        }
    }
}

/* {f16 d; f16 m; u8 q[16]}: x = q * d + m */
static void read_q4_1(const uint8_t *src, float *dst, int64_t blocks) {
    for (int64_t b = 0; b < blocks; b++, src += 20, dst += QUANT_BLOCK) {
        float d = half_at(src), m = half_at(src + 2);
        for (int i = 0; i < QUANT_BLOCK / 2; i++) {
            dst[i] = (float)(src[4 + i] & 15) * d + m;
            dst[i + QUANT_BLOCK / 2] = (float)(src[4 + i] >> 4) * d + m;
        }
    }
}

typedef struct type_row {
    int number;
    const char *name;
    int values, bytes; /* of a block */
    row_reader read;   /* NULL: not read by this build */
} type_row;

static const type_row types[] = {
    {0, "F32", 1, 4, read_f32},     {1, "F16", 1, 2, read_f16},     {2, "Q4_0", 32, 18, read_q4_0},
    {3, "Q4_1", 32, 20, read_q4_1}, {6, "Q5_0", 32, 22, NULL},      {7, "Q5_1", 32, 24, NULL},
    {8, "Q8_0", 32, 34, read_q8_0}, {9, "Q8_1", 32, 40, NULL},      {10, "Q2_K", 256, 84, NULL},
    {11, "Q3_K", 256, 110, NULL},   {12, "Q4_K", 256, 144, NULL},   {13, "Q5_K", 256, 176, NULL},
    {14, "Q6_K", 256, 210, NULL},   {15, "Q8_K", 256, 292, NULL},   {16, "IQ2_XXS", 256, 66, NULL},
    {17, "IQ2_XS", 256, 74, NULL},  {18, "IQ3_XXS", 256, 98, NULL}, {19, "IQ1_S", 256, 50, NULL},
    {20, "IQ4_NL", 32, 18, NULL},   {21, "IQ3_S", 256, 110, NULL},  {22, "IQ2_S", 256, 82, NULL},
    {23, "IQ4_XS", 256, 136, NULL}, {24, "I8", 1, 1, NULL},         {25, "I16", 1, 2, NULL},
    {26, "I32", 1, 4, NULL},        {27, "I64", 1, 8, NULL},        {28, "F64", 1, 8, NULL},
    {29, "IQ1_M", 256, 56, NULL},   {30, "BF16", 1, 2, read_bf16},  {34, "TQ1_0", 256, 54, NULL},
    {35, "TQ2_0", 256, 66, NULL},   {39, "MXFP4", 32, 17, NULL},    {40, "NVFP4", 64, 36, NULL},
};

static const type_row *find_type(int number) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].number == number) return &types[i];
    return NULL;
}

const char *gguf_type_name(int ggml_type) {
    const type_row *t = find_type(ggml_type);
    return t ? t->name : "unknown";
}

int gguf__block(int ggml_type, int64_t *values, int64_t *bytes) {
    const type_row *t = find_type(ggml_type);
    *values = t ? t->values : 0;
    *bytes = t ? t->bytes : 0;
    return t != NULL;
}

err gguf_row(const gguf *g, const gguf_tensor *t, int64_t r, float *dst) {
    const type_row *type = find_type(t->ggml_type);
    if (!type || !type->read)
        return err_set(
            ERR_REFUSED,
            "%s: tensor '%s' has type %s; types F32, F16, BF16, Q8_0, Q4_0 and Q4_1 can be read",
            g->path, t->name, gguf_type_name(t->ggml_type));
    int64_t rows = 1, width = t->dim[t->ndim - 1];
    for (int i = 0; i + 1 < t->ndim; i++) rows *= t->dim[i];
    if (r < 0 || r >= rows)
        return err_set(ERR_RANGE,
                       "%s: tensor '%s' has %" PRId64 " rows and row %" PRId64 " was asked for",
                       g->path, t->name, rows, r);
    int64_t blocks = width / type->values;
    if (blocks) type->read(t->data + (size_t)r * (size_t)blocks * (size_t)type->bytes, dst, blocks);
    return ERR_OK;
}
