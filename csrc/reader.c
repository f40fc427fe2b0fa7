#include "reader.h"

#include "half.h"

#include <math.h>
#include <string.h>

const uint8_t *sb_take(sb_reader *p, sb_section *section, uint64_t count) {
    if (p->status) return NULL;
    if (count > (uint64_t)(section->end - section->next)) {
        SB_FAIL(p, SB_ERROR_LENGTH, "needs %llu bytes, the section has %llu left", (unsigned long long)count,
                (unsigned long long)(section->end - section->next));
        return NULL;
    }
    const uint8_t *taken = section->next;
    section->next += count;
    return taken;
}

uint8_t sb_read_byte(sb_reader *p, sb_section *section) {
    const uint8_t *byte = sb_take(p, section, 1);
    return byte ? *byte : 0;
}

int32_t sb_read_uint(sb_reader *p, sb_section *section, int64_t highest) {
    uint64_t value = 0;
    for (int position = 0; position < 5; position++) {
        const uint8_t byte = sb_read_byte(p, section);
        value |= (uint64_t)(byte & 0x7f) << (7 * position);
        if (byte >= 0x80) continue;
        if (p->status) return 0;
        if (byte == 0 && position > 0) {
            SB_FAIL(p, SB_ERROR_PROGRAM, "an integer with a superfluous zero byte");
            return 0;
        }
        if (value > (uint64_t)highest) {
            SB_FAIL(p, SB_ERROR_LIMIT, "%llu is over the limit of %lld", (unsigned long long)value, (long long)highest);
            return 0;
        }
        return (int32_t)value;
    }
    SB_FAIL(p, SB_ERROR_PROGRAM, "an integer of more than five bytes");
    return 0;
}

int32_t sb_read_size(sb_reader *p, sb_section *section) {
    const int32_t size = sb_read_uint(p, section, SB_MAX_DIM);
    if (!p->status && size == 0) SB_FAIL(p, SB_ERROR_PROGRAM, "a dimension of size 0");
    return size;
}

int32_t sb_read_sint(sb_reader *p) {
    const int32_t value = sb_read_uint(p, &p->program, INT32_MAX);
    return value & 1 ? -(value / 2) - 1 : value / 2;
}

float sb_read_real(sb_reader *p, sb_section *section) {
    const uint8_t *bytes = sb_take(p, section, 4);
    const float value = bytes ? sb_load_float(bytes) : 0;
    if (!isfinite(value)) SB_FAIL(p, SB_ERROR_VALUE, "a number that is NaN or infinite");
    return p->status ? 0 : value;
}

double sb_read_double(sb_reader *p) {
    const uint8_t *bytes = sb_take(p, &p->program, 8);
    if (!bytes) return 0;
    const uint64_t bits = sb_load_u32(bytes) | (uint64_t)sb_load_u32(bytes + 4) << 32;
    double value;
    memcpy(&value, &bits, sizeof value);
    if (!isfinite(value)) SB_FAIL(p, SB_ERROR_VALUE, "a number that is NaN or infinite");
    return p->status ? 0 : value;
}

uint8_t sb_read_choice(sb_reader *p, int choices) {
    const uint8_t choice = sb_read_byte(p, &p->program);
    if (choice >= choices) SB_FAIL(p, SB_ERROR_PROGRAM, "choice %d is unknown to this version", choice);
    return p->status ? 0 : choice;
}

void sb_read_tuple(sb_reader *p, int32_t *values, int count) {
    const int32_t head = sb_read_uint(p, &p->program, 2 * SB_MAX_DIM + 1);
    bool differ = false;
    values[0] = head / 2;
    for (int i = 1; i < count; i++) {
        values[i] = head & 1 ? sb_read_uint(p, &p->program, SB_MAX_DIM) : values[0];
        differ |= values[i] != values[0];
    }
    if ((head & 1) && !differ) SB_FAIL(p, SB_ERROR_PROGRAM, "equal values stored one by one");
}

int32_t sb_read_rank(sb_reader *p) {
    const uint8_t rank = sb_read_byte(p, &p->program);
    if (rank > SB_MAX_RANK) SB_FAIL(p, SB_ERROR_LIMIT, "%d dimensions, at most %d are possible", rank, SB_MAX_RANK);
    return p->status ? 0 : rank;
}

int32_t sb_read_dim(sb_reader *p) {
    const uint8_t dim = sb_read_byte(p, &p->program);
    if (dim >= SB_MAX_RANK) SB_FAIL(p, SB_ERROR_LIMIT, "dimension %d is over the limit of %d", dim, SB_MAX_RANK - 1);
    return p->status ? 0 : dim;
}

sb_shape sb_read_shape(sb_reader *p, int32_t rank) {
    sb_shape shape = {.rank = rank};
    int64_t count = 1;
    for (int32_t i = 0; i < rank && !p->status; i++) {
        shape.dims[i] = sb_read_size(p, &p->program);
        count *= shape.dims[i];
        if (count > SB_MAX_ELEMENTS) SB_FAIL(p, SB_ERROR_LIMIT, "more than %d elements", SB_MAX_ELEMENTS);
    }
    return shape;
}

void *sb_reserve(sb_reader *p, uint64_t count, uint64_t size) {
    if (p->status) return NULL;
    void *memory = sb_alloc(p->heap, count, size);
    if (!memory)
        SB_FAIL(p, sb_alloc_failure(p->heap), "no memory for %llu bytes, or over the limit",
                (unsigned long long)(count * size));
    return memory;
}

/* ---------------------------------------------------------------------------------------------- payload */

const uint8_t *sb_take_reals(sb_reader *p, int64_t count, int *exponent) {
    *exponent = 0;
    if (p->half) {
        const uint8_t *byte = sb_take(p, &p->payload, 1);
        if (byte) *exponent = *byte < 128 ? *byte : (int)*byte - 256;
    }
    const uint8_t *values = sb_take(p, &p->payload, (uint64_t)count * (p->half ? 2 : 4));
    for (int64_t i = 0; values && i < count; i++) {
        if (!isfinite(ldexpf(sb_load_value(values, p->half, i), *exponent))) {
            SB_FAIL(p, SB_ERROR_VALUE, "NaN or infinity among its stored numbers");
            return NULL;
        }
    }
    return values;
}

float *sb_read_reals(sb_reader *p, int64_t rows, int64_t columns, int64_t skip) {
    int exponent;
    const uint8_t *values = sb_take_reals(p, rows * columns, &exponent);
    float *reals = sb_reserve(p, (uint64_t)(rows * (columns + skip)), sizeof *reals);
    if (!values || !reals) return NULL;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < columns; i++)
            reals[row * (columns + skip) + skip + i] =
                ldexpf(sb_load_value(values, p->half, row * columns + i), exponent);
    return reals;
}

float *sb_read_vector(sb_reader *p, int32_t *count) {
    *count = sb_read_size(p, &p->program);
    return sb_read_reals(p, 1, *count, 0);
}

const uint8_t *sb_take_bits(sb_reader *p, int64_t count) {
    const uint8_t *bits = sb_take(p, &p->payload, ((uint64_t)count + 7) / 8);
    if (bits && count % 8 && bits[count / 8] >> (count % 8)) {
        SB_FAIL(p, SB_ERROR_VALUE, "padding bits behind packed values must be clear");
        return NULL;
    }
    return bits;
}
