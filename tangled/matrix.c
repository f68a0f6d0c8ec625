#include "matrix.h"
#include <string.h>
#include "int8_row.h"
#include "tensor.h"

uint16_t bf16_from_float(float x)
{
    const union { float x; uint32_t bits; } as = {x};
    if ((as.bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(as.bits >> 16 | 0x40);
    return (uint16_t)((as.bits + 0x7fff + (as.bits >> 16 & 1)) >> 16);
}

float bf16_to_float(uint16_t high)
{
    const union { uint32_t bits; float x; } as = {(uint32_t)high << 16};
    return as.x;
}

struct matrix matrix_of_rows(const float *weight, const float *bias,
                             int out, int in)
{
    return (struct matrix){out, in, MATRIX_ROWS, MATRIX_F32, weight, NULL,
                           bias};
}

int matrix_word_inputs(enum matrix_type type)
{
    return type == MATRIX_F32 ? 1 : type == MATRIX_BF16 ? 2 : 4;
}

static size_t parts(int count, int each)
{
    return ((size_t)count + (size_t)each - 1) / (size_t)each;
}

bool matrix_packed_sizes(int out, int in, enum matrix_type type,
                         size_t *data_bytes, size_t *scale_bytes)
{
    size_t data, scales = 0;
    if (out < 1 || in < 1)
        return false;
    const size_t outputs = parts(out, PANEL) * PANEL;
    if (!size_multiply(outputs, parts(in, matrix_word_inputs(type)), &data)
        || !size_multiply(data, sizeof(uint32_t), &data))
        return false;
    if (type == MATRIX_INT8
        && (!size_multiply(outputs, parts(in, GROUP), &scales)
            || !size_multiply(scales, sizeof(float), &scales)))
        return false;
    *data_bytes = data;
    *scale_bytes = scales;
    return true;
}

typedef uint32_t words[GROUP][PANEL];

static inline uint32_t bits_of(const enum matrix_type type, float weight,
                               int8_t code)
{
    const union { float x; uint32_t bits; } as = {weight};
    return type == MATRIX_F32 ? as.bits
           : type == MATRIX_BF16 ? bf16_from_float(weight) : (uint8_t)code;
}

static inline void row_words(const enum matrix_type type, const float *row,
                             int inputs, int o, words block,
                             const int8_t *codes)
{
    const int each = type == MATRIX_F32 ? 1 : type == MATRIX_BF16 ? 2 : 4;
    for (int i = 0; i < inputs; i++)
        block[i / each][o] |= bits_of(type, row[i],
                                      codes == NULL ? 0 : codes[i])
                              << i % each * (32 / each);
}

static float row_codes(const float *row, int inputs, int o, words block)
{
    int8_t codes[GROUP];
    const float scale = int8_scale(row, inputs);
    int8_encode(row, inputs, scale, codes);
    row_words(MATRIX_INT8, row, inputs, o, block, codes);
    return scale;
}

/* The words of up to 32 outputs and inputs of rows [·,in]. */
static void pack_block(const float *rows, int in, int outputs, int inputs,
                       enum matrix_type type, words block, float *scales)
{
    memset(block, 0, sizeof (words));
    for (int o = 0; o < outputs; o++, rows += in)
        switch (type) {
        case MATRIX_F32:
            row_words(MATRIX_F32, rows, inputs, o, block, NULL);
            break;
        case MATRIX_BF16:
            row_words(MATRIX_BF16, rows, inputs, o, block, NULL);
            break;
        case MATRIX_INT8:
            scales[o] = row_codes(rows, inputs, o, block);
            break;
        }
    for (int o = outputs; o < PANEL && type == MATRIX_INT8; o++)
        scales[o] = 0;
}

static void pack_panel(const float *rows, int in, int outputs,
                       enum matrix_type type, uint32_t *data, float *scales)
{
    for (int first = 0; first < in; first += GROUP) {
        words block;
        const int inputs = in - first < GROUP ? in - first : GROUP;
        const size_t count = parts(inputs, matrix_word_inputs(type)) * PANEL;
        pack_block(rows + first, in, outputs, inputs, type, block, scales);
        memcpy(data, block, count * sizeof *data);
        data += count;
        scales += type == MATRIX_INT8 ? PANEL : 0;
    }
}

struct matrix matrix_pack(const float *rows, const float *bias, int out,
                          int in, enum matrix_type type, void *data,
                          float *scales)
{
    const int panels = (int)parts(out, PANEL);
    const size_t each = parts(in, matrix_word_inputs(type)) * PANEL;
    const size_t scaled = type == MATRIX_INT8 ? parts(in, GROUP) * PANEL : 0;
    #pragma omp parallel for if ((size_t)out * (size_t)in > 1 << 18)
    for (int p = 0; p < panels; p++)
        pack_panel(rows + (size_t)p * PANEL * (size_t)in, in,
                   out - p * PANEL < PANEL ? out - p * PANEL : PANEL, type,
                   (uint32_t *)data + (size_t)p * each,
                   scales + (size_t)p * scaled);
    return (struct matrix){out, in, MATRIX_PANELS, type, data,
                           type == MATRIX_INT8 ? scales : NULL, bias};
}

float matrix_weight(const struct matrix *m, int o, int i)
{
    const size_t p = (size_t)(o / PANEL), n = (size_t)(o % PANEL);
    if (m->layout == MATRIX_ROWS)
        return ((const float *)m->data)[(size_t)o * (size_t)m->in
                                        + (size_t)i];
    const int each = matrix_word_inputs(m->type), bits = 32 / each;
    const size_t word = p * parts(m->in, each) + (size_t)(i / each);
    const union { uint32_t bits; float x; } as
        = {((const uint32_t *)m->data)[word * PANEL + n] >> i % each * bits};
    if (m->type == MATRIX_F32)
        return as.x;
    if (m->type == MATRIX_BF16)
        return bf16_to_float((uint16_t)as.bits);
    const size_t group = p * parts(m->in, GROUP) + (size_t)(i / GROUP);
    return m->scales[group * PANEL + n] * (float)(int8_t)(uint8_t)as.bits;
}
