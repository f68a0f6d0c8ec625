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

static size_t parts(int count, int each)
{
    return ((size_t)count + (size_t)each - 1) / (size_t)each;
}

bool matrix_packed_sizes(int out, int in, enum matrix_type type,
                         size_t *data_bytes, size_t *scale_bytes)
{
    static const size_t bytes[] = {4, 2, 1};
    size_t data, scales = 0;
    if (out < 1 || in < 1)
        return false;
    const size_t outputs = parts(out, PANEL) * PANEL;
    if (!size_multiply(outputs, (size_t)in, &data)
        || !size_multiply(data, bytes[type], &data))
        return false;
    if (type == MATRIX_INT8
        && (!size_multiply(outputs, parts(in, GROUP), &scales)
            || !size_multiply(scales, sizeof(float), &scales)))
        return false;
    *data_bytes = data;
    *scale_bytes = scales;
    return true;
}

/* Up to 32 outputs and inputs of rows, turned: block[i][o]. */
static void turn_block(const float *rows, int in, int outputs, int inputs,
                       float block[GROUP][PANEL])
{
    for (int o = 0; o < PANEL; o++)
        for (int i = 0; i < inputs; i++)
            block[i][o] = o < outputs ? rows[(size_t)o * (size_t)in
                                             + (size_t)i] : 0.0f;
}

static void block_codes(float block[GROUP][PANEL], int inputs, int8_t *codes,
                        float *scales)
{
    for (int o = 0; o < PANEL; o++) {
        float row[GROUP];
        int8_t code[GROUP];
        for (int i = 0; i < inputs; i++)
            row[i] = block[i][o];
        scales[o] = int8_scale(row, inputs);
        int8_encode(row, inputs, scales[o], code);
        for (int i = 0; i < inputs; i++)
            codes[i * PANEL + o] = code[i];
    }
}

static void pack_block(float block[GROUP][PANEL], int inputs,
                       enum matrix_type type, void *data, size_t at,
                       float *scales)
{
    if (type == MATRIX_INT8)
        block_codes(block, inputs, (int8_t *)data + at, scales);
    else if (type == MATRIX_F32)
        memcpy((float *)data + at, block,
               (size_t)inputs * PANEL * sizeof(float));
    else
        for (int k = 0; k < inputs * PANEL; k++)
            ((uint16_t *)data)[at + (size_t)k]
                = bf16_from_float(block[k / PANEL][k % PANEL]);
}

struct matrix matrix_pack(const float *rows, const float *bias, int out,
                          int in, enum matrix_type type, void *data,
                          float *scales)
{
    const int panels = (int)parts(out, PANEL);
    const size_t groups = parts(in, GROUP);
    #pragma omp parallel for if ((size_t)out * (size_t)in > 1 << 18)
    for (int p = 0; p < panels; p++)
        for (size_t g = 0; g < groups; g++) {
            float block[GROUP][PANEL];
            const int first = (int)g * GROUP, o = p * PANEL;
            const int inputs = in - first < GROUP ? in - first : GROUP;
            turn_block(rows + (size_t)o * (size_t)in + first, in,
                       out - o < PANEL ? out - o : PANEL, inputs, block);
            pack_block(block, inputs, type, data,
                       ((size_t)p * (size_t)in + (size_t)first) * PANEL,
                       scales + (type == MATRIX_INT8
                                 ? ((size_t)p * groups + g) * PANEL : 0));
        }
    return (struct matrix){out, in, MATRIX_PANELS, type, data,
                           type == MATRIX_INT8 ? scales : NULL, bias};
}

float matrix_weight(const struct matrix *m, int o, int i)
{
    const size_t p = (size_t)(o / PANEL), n = (size_t)(o % PANEL);
    const size_t at = (p * (size_t)m->in + (size_t)i) * PANEL + n;
    if (m->layout == MATRIX_ROWS)
        return ((const float *)m->data)[(size_t)o * (size_t)m->in
                                        + (size_t)i];
    if (m->type == MATRIX_F32)
        return ((const float *)m->data)[at];
    if (m->type == MATRIX_BF16)
        return bf16_to_float(((const uint16_t *)m->data)[at]);
    const size_t group = p * parts(m->in, GROUP) + (size_t)(i / GROUP);
    return m->scales[group * PANEL + n]
           * (float)((const int8_t *)m->data)[at];
}
