/* Numbers as the file stores them: little-endian, at any address. */
#ifndef SUBBIT_HALF_H
#define SUBBIT_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t sb_load_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline float sb_float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float sb_load_float(const uint8_t *p) { return sb_float_from_bits(sb_load_u32(p)); }

/* fp16 to fp32, exact. Subnormals are normalised by a multiplication with a power of two. */
static inline float sb_load_half(const uint8_t *p) {
    const uint32_t half = (uint32_t)p[0] | (uint32_t)p[1] << 8;
    const uint32_t sign = (half & 0x8000u) << 16;
    const uint32_t magnitude = half & 0x7fffu;
    if (magnitude >= 0x7c00u) return sb_float_from_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude >= 0x0400u) return sb_float_from_bits(sign | ((magnitude << 13) + (112u << 23)));
    const float tiny = (float)magnitude * 0x1p-24f;
    return sign ? -tiny : tiny;
}

static inline float sb_load_value(const uint8_t *values, int half, int64_t i) {
    return half ? sb_load_half(values + 2 * i) : sb_load_float(values + 4 * i);
}

#endif
