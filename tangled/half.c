#include <string.h>
#include "half.h"

static float float_of(uint32_t bits)
{
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static uint32_t bits_of(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

/* bits / 2^count to the nearest, ties to even; 1 <= count <= 31. */
static uint32_t shift_rounded(uint32_t bits, unsigned count)
{
    const uint32_t half = 1u << (count - 1);
    const uint32_t rest = bits & (2 * half - 1);
    uint32_t kept = bits >> count;
    if (rest > half || (rest == half && kept % 2 == 1))
        kept++;
    return kept;
}

float f16_to_f32(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t exponent = half >> 10 & 31u, fraction = half & 1023u;
    if (exponent == 0)
        return float_of(sign | bits_of((float)fraction * 0x1p-24f));
    if (exponent == 31)
        return float_of(sign | 0x7f800000u | fraction << 13);
    return float_of(sign | (exponent + 127 - 15) << 23 | fraction << 13);
}

float bf16_to_f32(uint16_t half)
{
    return float_of((uint32_t)half << 16);
}

uint16_t f16_from_f32(float number)
{
    const uint32_t bits = bits_of(number), size = bits & 0x7fffffffu;
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t exponent = size >> 23;
    uint32_t half;
    if (size > 0x7f800000u) {
        half = 0x7e00u | (size >> 13 & 0x3ffu);
    } else if (exponent >= 127 + 16)    /* 2^16 and more */
        half = 0x7c00u;
    else if (exponent >= 127 - 14)
        half = shift_rounded(size, 13) - ((127 - 15) << 10);
    else {
        const uint32_t whole = (size & 0x7fffffu) | 0x800000u;
        const uint32_t count = 127 - 1 - exponent;    /* in units of 2^-24 */
        half = count > 24 ? 0 : shift_rounded(whole, count);
    }
    return (uint16_t)(sign | half);
}

uint16_t bf16_from_f32(float number)
{
    const uint32_t bits = bits_of(number), size = bits & 0x7fffffffu;
    const uint32_t sign = bits >> 16 & 0x8000u;
    if (size > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)(sign | shift_rounded(size, 16));
}

bool dtype_is_weight(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

void floats_from(enum dtype dtype, const void *data, size_t count,
                 float *out)
{
    const unsigned char *at = data;
    const size_t size = dtype_size(dtype);
    for (size_t k = 0; k < count; k++, at += size) {
        const uint32_t low = (uint32_t)at[0] | (uint32_t)at[1] << 8;
        if (dtype == DTYPE_F16)
            out[k] = f16_to_f32((uint16_t)low);
        else if (dtype == DTYPE_BF16)
            out[k] = bf16_to_f32((uint16_t)low);
        else
            out[k] = float_of(low | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
    }
}
