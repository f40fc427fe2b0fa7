/* Bytes to program. Nothing here trusts the file: each read is checked against the end of its section, each number
 * against its limit, before it is used. docs/format.md is the description. */
#include "program.h"

#include "half.h"

#include <math.h>
#include <string.h>

/* A section that is being read. */
typedef struct cursor {
    const uint8_t *next, *end;
} cursor;

typedef struct parser {
    cursor program, payload;
    sb_heap *heap;
    sb_error *error;
    sb_status status; /* the first failure; everything after it is skipped */
    int32_t op;       /* being read, -1 outside */
    bool half;        /* numbers are fp16 with a common exponent */
} parser;

#define FAIL(p, code, ...) \
    ((p)->status = (p)->status ? (p)->status : sb_fail((p)->error, (code), (p)->op, __VA_ARGS__))

/* ----------------------------------------------------------------------------------------------- reading */
/* After a failure every reader returns zeros, so that a caller may check `status` once per operation. */

static const uint8_t *take(parser *p, cursor *section, uint64_t count) {
    if (p->status) return NULL;
    if (count > (uint64_t)(section->end - section->next)) {
        FAIL(p, SB_ERROR_LENGTH, "needs %llu bytes, the section has %llu left", (unsigned long long)count,
             (unsigned long long)(section->end - section->next));
        return NULL;
    }
    const uint8_t *taken = section->next;
    section->next += count;
    return taken;
}

static uint8_t read_byte(parser *p, cursor *section) {
    const uint8_t *byte = take(p, section, 1);
    return byte ? *byte : 0;
}

/* Seven bits per byte, least significant first, in as few bytes as possible. */
static int32_t read_uint(parser *p, cursor *section, int64_t highest) {
    uint64_t value = 0;
    for (int position = 0; position < 5; position++) {
        const uint8_t byte = read_byte(p, section);
        value |= (uint64_t)(byte & 0x7f) << (7 * position);
        if (byte >= 0x80) continue;
        if (p->status) return 0;
        if (byte == 0 && position > 0) {
            FAIL(p, SB_ERROR_PROGRAM, "an integer with a superfluous zero byte");
            return 0;
        }
        if (value > (uint64_t)highest) {
            FAIL(p, SB_ERROR_LIMIT, "%llu is over the limit of %lld", (unsigned long long)value, (long long)highest);
            return 0;
        }
        return (int32_t)value;
    }
    FAIL(p, SB_ERROR_PROGRAM, "an integer of more than five bytes");
    return 0;
}

static int32_t read_size(parser *p, cursor *section) {
    const int32_t size = read_uint(p, section, SB_MAX_DIM);
    if (!p->status && size == 0) FAIL(p, SB_ERROR_PROGRAM, "a dimension of size 0");
    return size;
}

static int32_t read_sint(parser *p) {
    const int32_t value = read_uint(p, &p->program, INT32_MAX);
    return value & 1 ? -(value / 2) - 1 : value / 2;
}

static float read_real(parser *p, cursor *section) {
    const uint8_t *bytes = take(p, section, 4);
    const float value = bytes ? sb_load_float(bytes) : 0;
    if (!isfinite(value)) FAIL(p, SB_ERROR_VALUE, "a number that is NaN or infinite");
    return p->status ? 0 : value;
}

static double read_double(parser *p) {
    const uint8_t *bytes = take(p, &p->program, 8);
    if (!bytes) return 0;
    const uint64_t bits = sb_load_u32(bytes) | (uint64_t)sb_load_u32(bytes + 4) << 32;
    double value;
    memcpy(&value, &bits, sizeof value);
    if (!isfinite(value)) FAIL(p, SB_ERROR_VALUE, "a number that is NaN or infinite");
    return p->status ? 0 : value;
}

static uint8_t read_choice(parser *p, int choices) {
    const uint8_t choice = read_byte(p, &p->program);
    if (choice >= choices) FAIL(p, SB_ERROR_PROGRAM, "choice %d is unknown to this version", choice);
    return p->status ? 0 : choice;
}

/* Equal values are stored once: first * 2 + (they differ), then the others if they differ. */
static void read_tuple(parser *p, int32_t *values, int count) {
    const int32_t head = read_uint(p, &p->program, 2 * SB_MAX_DIM + 1);
    bool differ = false;
    values[0] = head / 2;
    for (int i = 1; i < count; i++) {
        values[i] = head & 1 ? read_uint(p, &p->program, SB_MAX_DIM) : values[0];
        differ |= values[i] != values[0];
    }
    if ((head & 1) && !differ) FAIL(p, SB_ERROR_PROGRAM, "equal values stored one by one");
}

static int32_t read_rank(parser *p) {
    const uint8_t rank = read_byte(p, &p->program);
    if (rank > SB_MAX_RANK) FAIL(p, SB_ERROR_LIMIT, "%d dimensions, at most %d are possible", rank, SB_MAX_RANK);
    return p->status ? 0 : rank;
}

static int32_t read_dim(parser *p) {
    const uint8_t dim = read_byte(p, &p->program);
    if (dim >= SB_MAX_RANK) FAIL(p, SB_ERROR_LIMIT, "dimension %d is over the limit of %d", dim, SB_MAX_RANK - 1);
    return p->status ? 0 : dim;
}

static sb_shape read_shape(parser *p, int32_t rank) {
    sb_shape shape = {.rank = rank};
    int64_t count = 1;
    for (int32_t i = 0; i < rank && !p->status; i++) {
        shape.dims[i] = read_size(p, &p->program);
        count *= shape.dims[i];
        if (count > SB_MAX_ELEMENTS) FAIL(p, SB_ERROR_LIMIT, "more than %d elements", SB_MAX_ELEMENTS);
    }
    return shape;
}

static void *allocate(parser *p, uint64_t count, uint64_t size) {
    if (p->status) return NULL;
    void *memory = sb_alloc(p->heap, count, size);
    if (!memory) FAIL(p, SB_ERROR_MEMORY, "no memory for %llu bytes", (unsigned long long)(count * size));
    return memory;
}

/* ---------------------------------------------------------------------------------------------- payload */

/* Numbers in place: `count` values and, for fp16, the common exponent in *exponent; all are checked to be finite. */
static const uint8_t *take_reals(parser *p, int64_t count, int *exponent) {
    *exponent = 0;
    if (p->half) {
        const uint8_t *byte = take(p, &p->payload, 1);
        if (byte) *exponent = *byte < 128 ? *byte : (int)*byte - 256;
    }
    const uint8_t *values = take(p, &p->payload, (uint64_t)count * (p->half ? 2 : 4));
    for (int64_t i = 0; values && i < count; i++) {
        if (!isfinite(ldexpf(sb_load_value(values, p->half, i), *exponent))) {
            FAIL(p, SB_ERROR_VALUE, "NaN or infinity among its stored numbers");
            return NULL;
        }
    }
    return values;
}

/* `rows` rows of `columns` numbers as fp32; each row is written behind `skip` untouched places. */
static float *read_reals(parser *p, int64_t rows, int64_t columns, int64_t skip) {
    int exponent;
    const uint8_t *values = take_reals(p, rows * columns, &exponent);
    float *reals = allocate(p, (uint64_t)(rows * (columns + skip)), sizeof *reals);
    if (!values || !reals) return NULL;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < columns; i++)
            reals[row * (columns + skip) + skip + i] =
                ldexpf(sb_load_value(values, p->half, row * columns + i), exponent);
    return reals;
}

static float *read_vector(parser *p, int32_t *count) {
    *count = read_size(p, &p->program);
    return read_reals(p, 1, *count, 0);
}

/* Packed bits in place; those behind the last one must be clear. */
static const uint8_t *take_bits(parser *p, int64_t count) {
    const uint8_t *bits = take(p, &p->payload, ((uint64_t)count + 7) / 8);
    if (bits && count % 8 && bits[count / 8] >> (count % 8)) {
        FAIL(p, SB_ERROR_VALUE, "padding bits behind packed values must be clear");
        return NULL;
    }
    return bits;
}

static const uint16_t *read_indices(parser *p, int64_t count, int32_t filters) {
    int width = 0;
    while ((int64_t)1 << width < filters) width++;
    const uint8_t *bits = take_bits(p, count * width);
    uint16_t *indices = allocate(p, (uint64_t)count, sizeof *indices);
    if (!bits || !indices) return NULL;
    for (int64_t i = 0; i < count; i++) {
        uint32_t index = 0;
        for (int bit = 0; bit < width; bit++) {
            const int64_t position = i * width + bit;
            index |= (uint32_t)(bits[position / 8] >> (position % 8) & 1) << bit;
        }
        if (index >= (uint32_t)filters) {
            FAIL(p, SB_ERROR_VALUE, "index %u into a bank of %d filters", (unsigned)index, (int)filters);
            return NULL;
        }
        indices[i] = (uint16_t)index;
    }
    return indices;
}

/* The fixed selection rule of docs/format.md: t in base m is a + b1*m + b2*m^2 + ..., index(t, 0) = a and
 * index(t, i) = (a + i*(1 + b1) + [i >= 2]*bi) mod m. */
static const uint16_t *fixed_indices(parser *p, int32_t out, int32_t blocks, int32_t filters) {
    uint16_t *indices = allocate(p, (uint64_t)out * (uint64_t)blocks, sizeof *indices);
    for (int32_t t = 0; indices && t < out; t++) {
        const int64_t a = t % filters, b1 = t / filters % filters;
        int64_t rest = t / filters;
        indices[(int64_t)t * blocks] = (uint16_t)a;
        for (int32_t i = 1; i < blocks; i++) {
            const int64_t bi = i >= 2 ? rest % filters : 0;
            indices[(int64_t)t * blocks + i] = (uint16_t)((a + i * (1 + b1) + bi) % filters);
            rest /= filters;
        }
    }
    return indices;
}

/* ---------------------------------------------------------------------------------------------- weights */

enum { KIND = 0x03, RATIOS = 0x04, FIXED = 0x08, KERNEL_RANK_SHIFT = 4 };

/* a * b of numbers up to 2^31, and one more than the limit where it is over the limit. */
static int64_t capped_product(int64_t a, int64_t b) {
    const int64_t product = a * b;
    return product <= SB_MAX_WEIGHTS ? product : (int64_t)SB_MAX_WEIGHTS + 1;
}

/* Reads the sizes of a weight and checks them against the limits; returns the numbers of one stored filter. */
static int64_t read_weight_sizes(parser *p, sb_weight *weight, bool stacked, int kernel_rank) {
    cursor *program = &p->program;
    weight->out = read_size(p, program);
    weight->filters = stacked ? read_uint(p, program, SB_MAX_FILTERS) : weight->out;
    weight->blocks = stacked ? read_size(p, program) : 1;
    weight->depth = read_size(p, program);
    weight->kernel_h = kernel_rank == 2 ? read_size(p, program) : 1;
    weight->kernel_w = kernel_rank >= 1 ? read_size(p, program) : 1;
    if (p->status) return 0;
    if (weight->filters == 0) return FAIL(p, SB_ERROR_PROGRAM, "a bank without filters"), 0;
    const int64_t channels = capped_product(weight->blocks, weight->depth);
    const int64_t taps = capped_product(channels, capped_product(weight->kernel_h, weight->kernel_w));
    const int64_t most = weight->out > weight->filters ? weight->out : weight->filters;
    if (channels > SB_MAX_DIM || capped_product(taps, most) > SB_MAX_WEIGHTS)
        return FAIL(p, SB_ERROR_LIMIT, "the weight has more than %d numbers", SB_MAX_WEIGHTS), 0;
    if ((int64_t)weight->out * weight->blocks > SB_MAX_BLOCKS)
        return FAIL(p, SB_ERROR_LIMIT, "more than %d blocks", SB_MAX_BLOCKS), 0;
    return taps / weight->blocks;
}

/* A power of two that the stored values lack goes into the channel scale. */
static void fold_exponent(parser *p, sb_weight *weight, float *scale, int exponent) {
    if (exponent != 0 && !scale) {
        scale = allocate(p, (uint64_t)weight->out, sizeof *scale);
        for (int32_t t = 0; scale && t < weight->out; t++) scale[t] = 1;
    }
    for (int32_t t = 0; scale && t < weight->out; t++) {
        scale[t] = ldexpf(scale[t], exponent);
        if (!isfinite(scale[t])) FAIL(p, SB_ERROR_VALUE, "the scale of channel %d overflows", (int)t);
    }
    weight->scale = scale;
}

static void read_weight(parser *p, sb_weight *weight, bool has_scale, bool has_shift) {
    const uint8_t flags = read_byte(p, &p->program);
    const int kernel_rank = flags >> KERNEL_RANK_SHIFT;
    const bool stacked = (flags & KIND) >= SB_STACKED_BITS;
    if (kernel_rank > 2 || (!stacked && flags & (RATIOS | FIXED))) {
        FAIL(p, SB_ERROR_PROGRAM, "impossible weight flags 0x%02x", flags);
        return;
    }
    weight->kind = flags & KIND;
    weight->half = p->half;
    const int64_t taps = read_weight_sizes(p, weight, stacked, kernel_rank);
    if (p->status) return;
    int exponent = 0;
    if (weight->kind == SB_BINARY || weight->kind == SB_STACKED_BITS)
        weight->bits = take_bits(p, weight->filters * taps);
    else
        weight->values = take_reals(p, weight->filters * taps, &exponent);
    if (stacked) {
        weight->index = flags & FIXED ? fixed_indices(p, weight->out, weight->blocks, weight->filters)
                                      : read_indices(p, (int64_t)weight->out * weight->blocks, weight->filters);
    }
    if (flags & RATIOS) {
        if (weight->blocks == 1) FAIL(p, SB_ERROR_PROGRAM, "a single block has no ratio to store");
        float *ratio = read_reals(p, weight->out, weight->blocks - 1, 1);
        for (int32_t t = 0; ratio && t < weight->out; t++) ratio[(int64_t)t * weight->blocks] = 1;
        weight->ratio = ratio;
    }
    float *scale = has_scale ? read_reals(p, 1, weight->out, 0) : NULL;
    fold_exponent(p, weight, scale, exponent);
    weight->shift = has_shift ? read_reals(p, 1, weight->out, 0) : NULL;
}

/* -------------------------------------------------------------------------------------------- operations */

static uint8_t read_mask(parser *p, int attributes) {
    const uint8_t mask = read_byte(p, &p->program);
    if (mask >> attributes) FAIL(p, SB_ERROR_PROGRAM, "attributes unknown to this version (mask 0x%02x)", mask);
    return p->status ? 0 : mask;
}

static void read_conv(parser *p, sb_op *op) {
    const uint8_t mask = read_mask(p, 7);
    read_weight(p, &op->conv.weight, mask & 1, mask & 2);
    op->conv.stride[0] = op->conv.stride[1] = op->conv.dilation[0] = op->conv.dilation[1] = op->conv.groups = 1;
    if (mask & 4) read_tuple(p, op->conv.stride, 2);
    if (mask & 8) read_tuple(p, op->conv.padding, 4);
    if (mask & 16) read_tuple(p, op->conv.dilation, 2);
    if (mask & 32) op->conv.groups = read_uint(p, &p->program, SB_MAX_DIM);
    op->conv.weight.binary_input = mask & 64;
}

static void read_linear(parser *p, sb_op *op) {
    const uint8_t mask = read_mask(p, 3);
    read_weight(p, &op->conv.weight, mask & 1, mask & 2);
    op->conv.weight.binary_input = mask & 4;
    if (op->conv.weight.kernel_h != 1 || op->conv.weight.kernel_w != 1)
        FAIL(p, SB_ERROR_PROGRAM, "a fully connected layer with a kernel");
}

static void read_affine(parser *p, sb_op *op) {
    const uint8_t mask = read_mask(p, 2);
    if (op->code == SB_OP_LAYER_NORM) {
        op->affine.dim = read_dim(p);
        op->affine.eps = read_real(p, &p->program);
        if (op->affine.eps < 0) FAIL(p, SB_ERROR_VALUE, "a negative eps");
    }
    if (mask & 1) op->affine.scale = read_vector(p, &op->affine.scale_count);
    if (mask & 2) op->affine.shift = read_vector(p, &op->affine.shift_count);
}

static void read_activation(parser *p, sb_op *op) {
    const uint8_t mask = read_mask(p, 2);
    op->function.kind = read_choice(p, SB_FUNCTIONS);
    if (mask & 1) op->function.a = read_real(p, &p->program);
    if (mask & 2) op->function.b = read_real(p, &p->program);
    if (op->function.kind == SB_SOFTPLUS && op->function.a == 0) FAIL(p, SB_ERROR_VALUE, "softplus with beta 0");
}

static void read_pool(parser *p, sb_op *op) {
    const uint8_t mask = read_mask(p, 5);
    op->pool.average = read_choice(p, 2);
    read_tuple(p, op->pool.kernel, 2);
    read_tuple(p, op->pool.stride, 2);
    op->pool.dilation[0] = op->pool.dilation[1] = 1;
    if (mask & 1) read_tuple(p, op->pool.padding, 2);
    if (mask & 2) read_tuple(p, op->pool.dilation, 2);
    op->pool.ceil_mode = mask & 4;
    op->pool.count_include_pad = !(mask & 8);
    if (mask & 16) op->pool.divisor = read_uint(p, &p->program, INT32_MAX);
}

static void read_dims(parser *p, sb_op *op, bool keepdim) {
    op->dims.keepdim = keepdim;
    op->dims.count = read_rank(p);
    uint32_t seen = 0;
    for (int32_t i = 0; i < op->dims.count; i++) {
        const int32_t dim = op->dims.dims[i] = read_dim(p);
        if (seen >> dim & 1) FAIL(p, SB_ERROR_PROGRAM, "dimension %d twice", (int)dim);
        seen |= 1u << dim;
    }
}

static void read_reshape(parser *p, sb_op *op) {
    op->shape.rank = read_rank(p);
    int free_sizes = 0;
    for (int32_t i = 0; i < op->shape.rank; i++) {
        const int32_t size = op->shape.dims[i] = read_uint(p, &p->program, SB_MAX_DIM + 1) - 1;
        free_sizes += size == -1;
        if (size == 0 || free_sizes > 1) FAIL(p, SB_ERROR_PROGRAM, "a shape with a 0, or with two free sizes");
    }
}

static void read_constant(parser *p, sb_op *op) {
    op->constant.shape = read_shape(p, read_rank(p));
    if (!p->status) op->constant.value = read_reals(p, 1, (int64_t)sb_elements(&op->constant.shape), 0);
}

static void read_pad(parser *p, sb_op *op) {
    const uint8_t mask = read_mask(p, 1);
    op->pad.mode = read_choice(p, SB_PAD_MODES);
    for (int i = 0; i < 4; i++) op->pad.amounts[i] = read_sint(p);
    if (mask & 1) op->pad.value = read_real(p, &p->program);
}

static void read_slice(parser *p, sb_op *op) {
    const uint8_t mask = read_mask(p, 1);
    op->slice.dim = read_dim(p);
    op->slice.start = read_uint(p, &p->program, INT32_MAX);
    op->slice.stop = read_uint(p, &p->program, INT32_MAX);
    op->slice.step = mask & 1 ? read_uint(p, &p->program, INT32_MAX) : 1;
    if (!p->status && op->slice.step == 0) FAIL(p, SB_ERROR_PROGRAM, "a slice with step 0");
}

static void read_upsample(parser *p, sb_op *op) {
    const uint8_t mask = read_mask(p, 2);
    op->upsample.bilinear = read_choice(p, 2);
    read_tuple(p, op->upsample.output, 2);
    for (int i = 0; i < 2 && mask & 1; i++) op->upsample.factor[i] = read_double(p);
    op->upsample.align_corners = mask & 2;
    for (int i = 0; i < 2; i++) {
        const double factor = op->upsample.factor[i];
        if (factor != 0 && !(factor >= SB_MIN_FACTOR && factor <= SB_MAX_FACTOR))
            FAIL(p, SB_ERROR_LIMIT, "an upsampling factor outside %g..%g", SB_MIN_FACTOR, SB_MAX_FACTOR);
    }
}

static void read_attributes(parser *p, sb_op *op) {
    switch (op->code) {
        case SB_OP_CONV: read_conv(p, op); break;
        case SB_OP_LINEAR: read_linear(p, op); break;
        case SB_OP_AFFINE:
        case SB_OP_LAYER_NORM: read_affine(p, op); break;
        case SB_OP_ACTIVATION: read_activation(p, op); break;
        case SB_OP_PRELU: op->prelu.slope = read_vector(p, &op->prelu.count); break;
        case SB_OP_POOL: read_pool(p, op); break;
        case SB_OP_ADAPTIVE_POOL:
            op->pool.average = read_choice(p, 2);
            read_tuple(p, op->pool.output, 2);
            break;
        case SB_OP_MEAN: {
            const bool keepdim = read_mask(p, 1);
            read_dims(p, op, keepdim);
            break;
        }
        case SB_OP_ARITHMETIC: op->arithmetic = read_choice(p, SB_ARITHMETICS); break;
        case SB_OP_CONSTANT: read_constant(p, op); break;
        case SB_OP_CONCAT:
        case SB_OP_SOFTMAX: op->dim = read_dim(p); break;
        case SB_OP_SLICE: read_slice(p, op); break;
        case SB_OP_RESHAPE: read_reshape(p, op); break;
        case SB_OP_PERMUTE: read_dims(p, op, false); break;
        case SB_OP_PAD: read_pad(p, op); break;
        case SB_OP_UPSAMPLE: read_upsample(p, op); break;
        default: FAIL(p, SB_ERROR_PROGRAM, "opcode %d is unknown to this version", op->code);
    }
}

static void read_inputs(parser *p, sb_op *op, int32_t own) {
    op->input_count = op->code == SB_OP_CONSTANT ? 0 : op->code == SB_OP_ARITHMETIC ? 2 : 1;
    if (op->code == SB_OP_CONCAT) {
        op->input_count = read_uint(p, &p->program, SB_MAX_INPUTS);
        if (op->input_count == 0) FAIL(p, SB_ERROR_PROGRAM, "no inputs");
    }
    int32_t *inputs = allocate(p, (uint64_t)op->input_count, sizeof *inputs);
    for (int32_t i = 0; inputs && i < op->input_count; i++) {
        const int32_t distance = read_uint(p, &p->program, INT32_MAX);
        if (distance < 1 || distance > own)
            FAIL(p, SB_ERROR_PROGRAM, "an input that does not exist yet (a cycle, or a value out of range)");
        inputs[i] = p->status ? 0 : own - distance;
    }
    op->inputs = inputs;
}

static void read_program(parser *p, sb_program *program) {
    const uint8_t storage = read_byte(p, &p->program);
    if (storage > 1) FAIL(p, SB_ERROR_PROGRAM, "number format %d is unknown to this version", storage);
    p->half = storage == 1;
    const int32_t rank = read_rank(p);
    if (!p->status && rank == 0) FAIL(p, SB_ERROR_PROGRAM, "an input without dimensions");
    program->input = read_shape(p, rank);
    program->op_count = read_uint(p, &p->program, SB_MAX_OPS);
    program->output = read_uint(p, &p->program, program->op_count);
    program->ops = allocate(p, (uint64_t)program->op_count, sizeof *program->ops);
    for (p->op = 0; p->op < program->op_count && !p->status; p->op++) {
        sb_op *op = &program->ops[p->op];
        op->name = "";
        op->code = read_byte(p, &p->program);
        read_inputs(p, op, p->op + 1);
        read_attributes(p, op);
        if (p->status) return;
    }
    p->op = -1;
    if (!p->status && (p->program.next != p->program.end || p->payload.next != p->payload.end))
        FAIL(p, SB_ERROR_LENGTH, "bytes are left over behind the last operation");
}

/* ------------------------------------------------------------------------------------------------- texts */

/* UTF-8 as RFC 3629 has it: shortest form, no surrogates, nothing above U+10FFFF; and no NUL. */
static bool is_text(const uint8_t *text, size_t length) {
    for (size_t i = 0; i < length;) {
        const uint8_t lead = text[i++];
        if (lead == 0) return false;
        if (lead < 0x80) continue;
        const int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
        if (lead < 0xc2 || lead > 0xf4 || length - i < (size_t)more) return false;
        const uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
        const uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
        if (text[i] < low || text[i] > high) return false;
        for (int j = 1; j < more; j++)
            if (text[i + (size_t)j] >> 6 != 2) return false;
        i += (size_t)more;
    }
    return true;
}

static const char *store_text(parser *p, const uint8_t *text, size_t length) {
    if (p->status) return "";
    if (!is_text(text, length)) FAIL(p, SB_ERROR_TEXT, "a name or label that is not UTF-8");
    char *copy = allocate(p, length + 1, 1);
    if (copy && length) memcpy(copy, text, length);
    return copy ? copy : "";
}

/* Names of the operations with weights, each as what it shares with the one before and what follows. */
static void read_names(parser *p, cursor names, const sb_program *program) {
    uint8_t name[SB_MAX_NAME];
    int32_t length = 0;
    if (names.next == names.end) return;
    for (int32_t i = 0; i < program->op_count && !p->status; i++) {
        sb_op *op = &program->ops[i];
        if (op->code != SB_OP_CONV && op->code != SB_OP_LINEAR) continue;
        const int32_t shared = read_uint(p, &names, length);
        const int32_t rest = read_uint(p, &names, SB_MAX_NAME - shared);
        const uint8_t *bytes = take(p, &names, (uint64_t)rest);
        if (!bytes) return;
        if (rest) memcpy(name + shared, bytes, (size_t)rest);
        length = shared + rest;
        op->name = store_text(p, name, (size_t)length);
    }
    if (!p->status && names.next != names.end) FAIL(p, SB_ERROR_LENGTH, "bytes are left over behind the names");
}

static void read_metadata(parser *p, cursor metadata, sb_program *program) {
    if (metadata.next == metadata.end) return;
    const int32_t count = read_uint(p, &metadata, SB_MAX_LABELS);
    program->labels = allocate(p, (uint64_t)count, sizeof *program->labels);
    for (int32_t i = 0; i < count && !p->status; i++) {
        const int32_t length = read_uint(p, &metadata, SB_MAX_LABEL);
        const uint8_t *text = take(p, &metadata, (uint64_t)length);
        if (text) program->labels[i] = store_text(p, text, (size_t)length);
    }
    program->label_count = p->status ? 0 : (size_t)count;
    const int32_t channels = read_byte(p, &metadata);
    if (channels) {
        float *numbers = allocate(p, 2 * (uint64_t)channels, sizeof *numbers);
        for (int32_t i = 0; numbers && i < 2 * channels; i++) {
            numbers[i] = read_real(p, &metadata);
            if (i >= channels && numbers[i] == 0) FAIL(p, SB_ERROR_VALUE, "a standard deviation of 0");
        }
        const int32_t height = read_size(p, &metadata);
        const int32_t width = read_size(p, &metadata);
        if (p->status) return;
        program->preprocessing = (sb_preprocessing){channels, height, width, numbers, numbers + channels};
    }
    if (p->status) return;
    if (metadata.next != metadata.end) FAIL(p, SB_ERROR_LENGTH, "bytes are left over behind the metadata");
    if (!count && !channels) FAIL(p, SB_ERROR_PROGRAM, "a metadata section without content");
}

/* ------------------------------------------------------------------------------------------------ header */

/* CRC-32 of IEEE 802.3, as in zlib. */
static uint32_t checksum(const uint8_t *bytes, size_t size) {
    uint32_t table[256];
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320u : 0);
    }
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < size; i++) crc = crc >> 8 ^ table[(crc ^ bytes[i]) & 0xff];
    return ~crc;
}

static void check_header(parser *p, const uint8_t *bytes, size_t size) {
    if (size < 4 || memcmp(bytes, "SBIT", 4) != 0) {
        FAIL(p, SB_ERROR_MAGIC, "not a .sbit file: it does not start with \"SBIT\"");
    } else if (size < SB_HEADER_SIZE) {
        FAIL(p, SB_ERROR_LENGTH, "truncated: less than a header of %d bytes", SB_HEADER_SIZE);
    } else if (bytes[4] == 0xfe && bytes[5] == 0xff) {
        FAIL(p, SB_ERROR_BYTE_ORDER, "a big-endian file: .sbit files are little-endian, pack the network again");
    } else if (bytes[4] != 0xff || bytes[5] != 0xfe) {
        FAIL(p, SB_ERROR_BYTE_ORDER, "damaged: byte-order mark %02x%02x", bytes[4], bytes[5]);
    } else if (bytes[6] != SB_MAJOR || bytes[7] > SB_MINOR) {
        FAIL(p, SB_ERROR_VERSION, "version %d.%d: this core reads version %d up to %d.%d", bytes[6], bytes[7], SB_MAJOR,
             SB_MAJOR, SB_MINOR);
    } else if (size > SB_MAX_FILE || sb_load_u32(bytes + 8) != size) {
        FAIL(p, SB_ERROR_LENGTH, "truncated, or trailing bytes: %llu of %llu bytes", (unsigned long long)size,
             (unsigned long long)sb_load_u32(bytes + 8));
    } else if (sb_load_u32(bytes + 12) != checksum(bytes + SB_CHECKED_FROM, size - SB_CHECKED_FROM)) {
        FAIL(p, SB_ERROR_CHECKSUM, "damaged: the checksum does not fit the content");
    }
}

sb_status sb_parse(const uint8_t *bytes, size_t size, sb_heap *heap, sb_program *program, sb_error *error) {
    parser p = {.heap = heap, .error = error, .op = -1};
    check_header(&p, bytes, size);
    if (p.status) return p.status;
    cursor sections[4]; /* program, names, metadata, payload */
    uint64_t start = SB_HEADER_SIZE;
    for (int i = 0; i < 4; i++) {
        const uint64_t length = sb_load_u32(bytes + SB_CHECKED_FROM + 4 * i);
        if (length > size - start) return FAIL(&p, SB_ERROR_LENGTH, "section %d reaches beyond the file", i);
        sections[i] = (cursor){bytes + start, bytes + start + length};
        start += length;
    }
    if (start != size) return FAIL(&p, SB_ERROR_LENGTH, "sections do not fill the file");
    p.program = sections[0];
    p.payload = sections[3];
    read_program(&p, program);
    if (!p.status) read_names(&p, sections[1], program);
    if (!p.status) read_metadata(&p, sections[2], program);
    return p.status;
}
