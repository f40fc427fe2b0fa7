/* Bytes to program. Nothing here trusts the file: whatever is read is checked before it is used, byte counts in
 * reader.c, meaning here. docs/format.md is the description. */
#include "reader.h"

#include "half.h"

#include <math.h>
#include <string.h>

/* --------------------------------------------------------------------------------------------- selection */

static const uint16_t *read_indices(sb_reader *p, int64_t count, int32_t filters) {
    int width = 0;
    while ((int64_t)1 << width < filters) width++;
    const uint8_t *bits = sb_take_bits(p, count * width);
    uint16_t *indices = sb_reserve(p, (uint64_t)count, sizeof *indices);
    if (!bits || !indices) return NULL;
    for (int64_t i = 0; i < count; i++) {
        uint32_t index = 0;
        for (int bit = 0; bit < width; bit++) {
            const int64_t position = i * width + bit;
            index |= (uint32_t)(bits[position / 8] >> (position % 8) & 1) << bit;
        }
        if (index >= (uint32_t)filters) {
            SB_FAIL(p, SB_ERROR_VALUE, "index %u into a bank of %d filters", (unsigned)index, (int)filters);
            return NULL;
        }
        indices[i] = (uint16_t)index;
    }
    return indices;
}

/* The fixed selection rule of docs/format.md: t in base m is a + b1*m + b2*m^2 + ..., index(t, 0) = a and
 * index(t, i) = (a + i*(1 + b1) + [i >= 2]*bi) mod m. */
static const uint16_t *fixed_indices(sb_reader *p, int32_t out, int32_t blocks, int32_t filters) {
    uint16_t *indices = sb_reserve(p, (uint64_t)out * (uint64_t)blocks, sizeof *indices);
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

enum { KIND = 0x03, RATIOS = 0x04, FIXED = 0x08, KERNEL_RANK_SHIFT = 4, SHARED = 0x40 };

/* a * b of numbers up to 2^31, and one more than the limit where it is over the limit. */
static int64_t capped_product(int64_t a, int64_t b) {
    const int64_t product = a * b;
    return product <= SB_MAX_WEIGHTS ? product : (int64_t)SB_MAX_WEIGHTS + 1;
}

/* Reads the sizes of a weight and checks them against the limits; returns the numbers of one stored filter. */
static int64_t read_weight_sizes(sb_reader *p, sb_weight *weight, bool stacked, int kernel_rank) {
    sb_section *program = &p->program;
    weight->out = sb_read_size(p, program);
    weight->filters = stacked ? sb_read_uint(p, program, SB_MAX_FILTERS) : weight->out;
    weight->blocks = stacked ? sb_read_size(p, program) : 1;
    weight->depth = sb_read_size(p, program);
    weight->kernel_h = kernel_rank == 2 ? sb_read_size(p, program) : 1;
    weight->kernel_w = kernel_rank >= 1 ? sb_read_size(p, program) : 1;
    if (p->status) return 0;
    if (weight->filters == 0) return SB_FAIL(p, SB_ERROR_PROGRAM, "a bank without filters"), 0;
    const int64_t channels = capped_product(weight->blocks, weight->depth);
    const int64_t taps = capped_product(channels, capped_product(weight->kernel_h, weight->kernel_w));
    const int64_t most = weight->out > weight->filters ? weight->out : weight->filters;
    if (taps > SB_MAX_FILTER || capped_product(taps, most) > SB_MAX_WEIGHTS)
        return SB_FAIL(p, SB_ERROR_LIMIT, "a filter of more than %d numbers, or a weight of more than %d",
                       SB_MAX_FILTER, SB_MAX_WEIGHTS), 0;
    if (stacked) p->blocks += (int64_t)weight->out * weight->blocks;
    if (p->blocks > SB_MAX_BLOCKS)
        return SB_FAIL(p, SB_ERROR_LIMIT, "more than %d blocks in all stacked weights together", SB_MAX_BLOCKS), 0;
    return taps / weight->blocks;
}

/* A power of two that the stored values lack goes into the channel scale. */
static void fold_exponent(sb_reader *p, sb_weight *weight, float *scale, int exponent) {
    if (exponent != 0 && !scale) {
        scale = sb_reserve(p, (uint64_t)weight->out, sizeof *scale);
        for (int32_t t = 0; scale && t < weight->out; t++) scale[t] = 1;
    }
    for (int32_t t = 0; scale && t < weight->out; t++) {
        scale[t] = ldexpf(scale[t], exponent);
        if (!isfinite(scale[t])) SB_FAIL(p, SB_ERROR_VALUE, "the scale of channel %d overflows", (int)t);
    }
    weight->scale = scale;
}

/* `ranks` has bit n set where a kernel of n dimensions is possible. */
static void read_stored_weight(sb_reader *p, sb_op *op, uint8_t flags, int ranks) {
    sb_weight *weight = &op->conv.weight;
    const int kernel_rank = flags >> KERNEL_RANK_SHIFT;
    const bool stacked = (flags & KIND) >= SB_STACKED_BITS;
    if (!(ranks >> kernel_rank & 1) || (!stacked && flags & (RATIOS | FIXED))) {
        SB_FAIL(p, SB_ERROR_PROGRAM, "impossible weight flags 0x%02x", flags);
        return;
    }
    weight->kind = flags & KIND;
    weight->half = p->half;
    const int64_t taps = read_weight_sizes(p, weight, stacked, kernel_rank);
    if (p->status) return;
    if (weight->kind == SB_BINARY || weight->kind == SB_STACKED_BITS)
        weight->bits = sb_take_bits(p, weight->filters * taps);
    else
        weight->values = sb_take_reals(p, weight->filters * taps, &op->conv.exponent);
    if (stacked) {
        weight->index = flags & FIXED ? fixed_indices(p, weight->out, weight->blocks, weight->filters)
                                      : read_indices(p, (int64_t)weight->out * weight->blocks, weight->filters);
    }
    if (flags & RATIOS) {
        if (weight->blocks == 1) SB_FAIL(p, SB_ERROR_PROGRAM, "a single block has no ratio to store");
        float *ratio = sb_read_reals(p, weight->out, weight->blocks - 1, 1);
        for (int32_t t = 0; ratio && t < weight->out; t++) ratio[(int64_t)t * weight->blocks] = 1;
        weight->ratio = ratio;
    }
}

/* The weight of an earlier operation. It takes no room in the file, but what kernels prepare from it takes memory. */
static void share_weight(sb_reader *p, sb_op *op) {
    const int32_t distance = sb_read_uint(p, &p->program, SB_MAX_OPS);
    const sb_op *earlier = distance >= 1 && distance <= p->op ? &p->ops[p->op - distance] : NULL;
    if (!earlier || earlier->code != op->code || earlier->conv.shared) {
        SB_FAIL(p, SB_ERROR_PROGRAM, "shares the weight of an operation that is not an earlier one of its kind, or "
                "does not store it itself");
        return;
    }
    op->conv.weight = earlier->conv.weight;
    op->conv.exponent = earlier->conv.exponent;
    op->conv.shared = true;
    const sb_weight *weight = &op->conv.weight;
    p->shared += (int64_t)weight->filters * weight->depth * weight->kernel_h * weight->kernel_w;
    if (weight->index) p->blocks += (int64_t)weight->out * weight->blocks;
    if (p->shared > SB_MAX_SHARED || p->blocks > SB_MAX_BLOCKS)
        SB_FAIL(p, SB_ERROR_LIMIT, "shared weights of more than %d numbers together, or %d blocks in all weights",
                SB_MAX_SHARED, SB_MAX_BLOCKS);
}

static void read_weight(sb_reader *p, sb_op *op, int ranks, bool has_scale, bool has_shift) {
    sb_weight *weight = &op->conv.weight;
    const uint8_t flags = sb_read_byte(p, &p->program);
    if (flags == SHARED)
        share_weight(p, op);
    else
        read_stored_weight(p, op, flags, ranks);
    if (p->status) return;
    if (weight->ratio && !has_scale) SB_FAIL(p, SB_ERROR_PROGRAM, "ratios without a scale that they refer to");
    float *scale = has_scale ? sb_read_reals(p, 1, weight->out, 0) : NULL;
    fold_exponent(p, weight, scale, op->conv.exponent);
    weight->shift = has_shift ? sb_read_reals(p, 1, weight->out, 0) : NULL;
}

/* -------------------------------------------------------------------------------------------- operations */

static uint8_t read_mask(sb_reader *p, int attributes) {
    const uint8_t mask = sb_read_byte(p, &p->program);
    if (mask >> attributes) SB_FAIL(p, SB_ERROR_PROGRAM, "attributes unknown to this version (mask 0x%02x)", mask);
    return p->status ? 0 : mask;
}

/* The step between levels goes into the channel scale: sums of levels times this are sums of inputs. */
static void read_levels(sb_reader *p, sb_op *op) {
    sb_weight *weight = &op->conv.weight;
    op->conv.levels.is_signed = sb_read_choice(p, 2);
    const float step = sb_read_real(p, &p->program);
    if (p->status) return;
    if (!(step >= SB_MIN_STEP && step <= SB_MAX_STEP))
        SB_FAIL(p, SB_ERROR_LIMIT, "levels %g apart, possible are %g..%g", (double)step, SB_MIN_STEP, SB_MAX_STEP);
    if (!weight->bits || weight->binary_input)
        SB_FAIL(p, SB_ERROR_PROGRAM, "levels of the input go with +-1 filters, and not with the signs of the input");
    float *scale = sb_reserve(p, (uint64_t)weight->out, sizeof *scale);
    for (int32_t t = 0; scale && t < weight->out; t++) {
        scale[t] = (weight->scale ? weight->scale[t] : 1) * step;
        if (!isfinite(scale[t])) SB_FAIL(p, SB_ERROR_VALUE, "the scale of channel %d overflows", (int)t);
    }
    op->conv.levels.step = step;
    weight->scale = scale;
}

/* Levels are the last attribute of a layer, and not known to version 1.0. */
static int layer_attributes(const sb_reader *p, int count) { return count - (p->minor < SB_MINOR_OF_LEVELS); }

static void read_conv(sb_reader *p, sb_op *op) {
    const uint8_t mask = read_mask(p, layer_attributes(p, 8));
    read_weight(p, op, 1 << 1 | 1 << 2, mask & 1, mask & 2);
    op->conv.stride[0] = op->conv.stride[1] = op->conv.dilation[0] = op->conv.dilation[1] = op->conv.groups = 1;
    if (mask & 4) sb_read_tuple(p, op->conv.stride, 2);
    if (mask & 8) sb_read_tuple(p, op->conv.padding, 4);
    if (mask & 16) sb_read_tuple(p, op->conv.dilation, 2);
    if (mask & 32) op->conv.groups = sb_read_uint(p, &p->program, SB_MAX_DIM);
    op->conv.weight.binary_input = mask & 64;
    if (mask & 128) read_levels(p, op);
}

static void read_linear(sb_reader *p, sb_op *op) {
    const uint8_t mask = read_mask(p, layer_attributes(p, 4));
    read_weight(p, op, 1 << 0, mask & 1, mask & 2);
    op->conv.weight.binary_input = mask & 4;
    if (mask & 8) read_levels(p, op);
}

static void read_affine(sb_reader *p, sb_op *op) {
    const uint8_t mask = read_mask(p, 2);
    if (op->code == SB_OP_LAYER_NORM) {
        op->affine.dim = sb_read_dim(p);
        op->affine.eps = sb_read_real(p, &p->program);
        if (op->affine.eps < 0) SB_FAIL(p, SB_ERROR_VALUE, "a negative eps");
    }
    if (mask & 1) op->affine.scale = sb_read_vector(p, &op->affine.scale_count);
    if (mask & 2) op->affine.shift = sb_read_vector(p, &op->affine.shift_count);
}

static void read_activation(sb_reader *p, sb_op *op) {
    const uint8_t mask = read_mask(p, 2);
    op->function.kind = sb_read_choice(p, SB_FUNCTIONS);
    if (mask & 1) op->function.a = sb_read_real(p, &p->program);
    if (mask & 2) op->function.b = sb_read_real(p, &p->program);
    if (op->function.kind == SB_SOFTPLUS && op->function.a == 0) SB_FAIL(p, SB_ERROR_VALUE, "softplus with beta 0");
}

static void read_pool(sb_reader *p, sb_op *op) {
    const uint8_t mask = read_mask(p, 5);
    op->pool.average = sb_read_choice(p, 2);
    sb_read_tuple(p, op->pool.kernel, 2);
    sb_read_tuple(p, op->pool.stride, 2);
    op->pool.dilation[0] = op->pool.dilation[1] = 1;
    if (mask & 1) sb_read_tuple(p, op->pool.padding, 2);
    if (mask & 2) sb_read_tuple(p, op->pool.dilation, 2);
    op->pool.ceil_mode = mask & 4;
    op->pool.count_include_pad = !(mask & 8);
    if (mask & 16) op->pool.divisor = sb_read_uint(p, &p->program, INT32_MAX);
}

static void read_dims(sb_reader *p, sb_op *op, bool keepdim) {
    op->dims.keepdim = keepdim;
    op->dims.count = sb_read_rank(p);
    uint32_t seen = 0;
    for (int32_t i = 0; i < op->dims.count; i++) {
        const int32_t dim = op->dims.dims[i] = sb_read_dim(p);
        if (seen >> dim & 1) SB_FAIL(p, SB_ERROR_PROGRAM, "dimension %d twice", (int)dim);
        seen |= 1u << dim;
    }
}

static void read_reshape(sb_reader *p, sb_op *op) {
    op->shape.rank = sb_read_rank(p);
    int free_sizes = 0;
    for (int32_t i = 0; i < op->shape.rank; i++) {
        const int32_t size = op->shape.dims[i] = sb_read_uint(p, &p->program, SB_MAX_DIM + 1) - 1;
        free_sizes += size == -1;
        if (size == 0 || free_sizes > 1) SB_FAIL(p, SB_ERROR_PROGRAM, "a shape with a 0, or with two free sizes");
    }
}

static void read_constant(sb_reader *p, sb_op *op) {
    op->constant.shape = sb_read_shape(p, sb_read_rank(p));
    if (!p->status) op->constant.value = sb_read_reals(p, 1, (int64_t)sb_elements(&op->constant.shape), 0);
}

static void read_pad(sb_reader *p, sb_op *op) {
    const uint8_t mask = read_mask(p, 1);
    op->pad.mode = sb_read_choice(p, SB_PAD_MODES);
    for (int i = 0; i < 4; i++) op->pad.amounts[i] = sb_read_sint(p);
    if (mask & 1) op->pad.value = sb_read_real(p, &p->program);
}

static void read_slice(sb_reader *p, sb_op *op) {
    const uint8_t mask = read_mask(p, 1);
    op->slice.dim = sb_read_dim(p);
    op->slice.start = sb_read_uint(p, &p->program, INT32_MAX);
    op->slice.stop = sb_read_uint(p, &p->program, INT32_MAX);
    op->slice.step = mask & 1 ? sb_read_uint(p, &p->program, INT32_MAX) : 1;
    if (!p->status && op->slice.step == 0) SB_FAIL(p, SB_ERROR_PROGRAM, "a slice with step 0");
}

static void read_upsample(sb_reader *p, sb_op *op) {
    const uint8_t mask = read_mask(p, 2);
    op->upsample.bilinear = sb_read_choice(p, 2);
    sb_read_tuple(p, op->upsample.output, 2);
    for (int i = 0; i < 2 && mask & 1; i++) op->upsample.factor[i] = sb_read_double(p);
    op->upsample.align_corners = mask & 2;
    for (int i = 0; i < 2; i++) {
        const double factor = op->upsample.factor[i];
        if (factor != 0 && !(factor >= SB_MIN_FACTOR && factor <= SB_MAX_FACTOR))
            SB_FAIL(p, SB_ERROR_LIMIT, "an upsampling factor outside %g..%g", SB_MIN_FACTOR, SB_MAX_FACTOR);
    }
}

static void read_attributes(sb_reader *p, sb_op *op) {
    switch (op->code) {
        case SB_OP_CONV: read_conv(p, op); break;
        case SB_OP_LINEAR: read_linear(p, op); break;
        case SB_OP_AFFINE:
        case SB_OP_LAYER_NORM: read_affine(p, op); break;
        case SB_OP_ACTIVATION: read_activation(p, op); break;
        case SB_OP_PRELU: op->prelu.slope = sb_read_vector(p, &op->prelu.count); break;
        case SB_OP_POOL: read_pool(p, op); break;
        case SB_OP_ADAPTIVE_POOL:
            op->pool.average = sb_read_choice(p, 2);
            sb_read_tuple(p, op->pool.output, 2);
            break;
        case SB_OP_MEAN: {
            const bool keepdim = read_mask(p, 1);
            read_dims(p, op, keepdim);
            break;
        }
        case SB_OP_ARITHMETIC: op->arithmetic = sb_read_choice(p, SB_ARITHMETICS); break;
        case SB_OP_CONSTANT: read_constant(p, op); break;
        case SB_OP_CONCAT:
        case SB_OP_SOFTMAX: op->dim = sb_read_dim(p); break;
        case SB_OP_SLICE: read_slice(p, op); break;
        case SB_OP_RESHAPE: read_reshape(p, op); break;
        case SB_OP_PERMUTE: read_dims(p, op, false); break;
        case SB_OP_PAD: read_pad(p, op); break;
        case SB_OP_UPSAMPLE: read_upsample(p, op); break;
        default: SB_FAIL(p, SB_ERROR_PROGRAM, "opcode %d is unknown to this version", op->code);
    }
}

static void read_inputs(sb_reader *p, sb_op *op, int32_t own) {
    op->input_count = op->code == SB_OP_CONSTANT ? 0 : op->code == SB_OP_ARITHMETIC ? 2 : 1;
    if (op->code == SB_OP_CONCAT) {
        op->input_count = sb_read_uint(p, &p->program, SB_MAX_INPUTS);
        if (op->input_count == 0) SB_FAIL(p, SB_ERROR_PROGRAM, "no inputs");
    }
    int32_t *inputs = sb_reserve(p, (uint64_t)op->input_count, sizeof *inputs);
    for (int32_t i = 0; inputs && i < op->input_count; i++) {
        const int32_t distance = sb_read_uint(p, &p->program, INT32_MAX);
        if (distance < 1 || distance > own)
            SB_FAIL(p, SB_ERROR_PROGRAM, "an input that does not exist yet (a cycle, or a value out of range)");
        inputs[i] = p->status ? 0 : own - distance;
    }
    op->inputs = inputs;
}

static void read_program(sb_reader *p, sb_program *program) {
    const uint8_t storage = sb_read_byte(p, &p->program);
    if (storage > 1) SB_FAIL(p, SB_ERROR_PROGRAM, "number format %d is unknown to this version", storage);
    p->half = storage == 1;
    const int32_t rank = sb_read_rank(p);
    if (!p->status && rank == 0) SB_FAIL(p, SB_ERROR_PROGRAM, "an input without dimensions");
    program->input = sb_read_shape(p, rank);
    program->op_count = sb_read_uint(p, &p->program, SB_MAX_OPS);
    program->output = sb_read_uint(p, &p->program, program->op_count);
    p->ops = program->ops = sb_reserve(p, (uint64_t)program->op_count, sizeof *program->ops);
    for (p->op = 0; p->op < program->op_count && !p->status; p->op++) {
        sb_op *op = &program->ops[p->op];
        op->name = "";
        op->code = sb_read_byte(p, &p->program);
        read_inputs(p, op, p->op + 1);
        read_attributes(p, op);
        if (p->status) return;
    }
    p->op = -1;
    if (!p->status && (p->program.next != p->program.end || p->payload.next != p->payload.end))
        SB_FAIL(p, SB_ERROR_LENGTH, "bytes are left over behind the last operation");
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

static const char *store_text(sb_reader *p, const uint8_t *text, size_t length) {
    if (p->status) return "";
    if (!is_text(text, length)) SB_FAIL(p, SB_ERROR_TEXT, "a name or label that is not UTF-8");
    char *copy = sb_reserve(p, length + 1, 1);
    if (copy && length) memcpy(copy, text, length);
    return copy ? copy : "";
}

/* Names of the operations with weights, each as what it shares with the one before and what follows. */
static void read_names(sb_reader *p, sb_section names, const sb_program *program) {
    uint8_t name[SB_MAX_NAME];
    int32_t length = 0;
    if (names.next == names.end) return;
    for (int32_t i = 0; i < program->op_count && !p->status; i++) {
        sb_op *op = &program->ops[i];
        if (op->code != SB_OP_CONV && op->code != SB_OP_LINEAR) continue;
        const int32_t shared = sb_read_uint(p, &names, length);
        const int32_t rest = sb_read_uint(p, &names, SB_MAX_NAME - shared);
        const uint8_t *bytes = sb_take(p, &names, (uint64_t)rest);
        if (!bytes) return;
        if (rest) memcpy(name + shared, bytes, (size_t)rest);
        length = shared + rest;
        op->name = store_text(p, name, (size_t)length);
    }
    if (!p->status && names.next != names.end) SB_FAIL(p, SB_ERROR_LENGTH, "bytes are left over behind the names");
}

static void read_metadata(sb_reader *p, sb_section metadata, sb_program *program) {
    if (metadata.next == metadata.end) return;
    const int32_t count = sb_read_uint(p, &metadata, SB_MAX_LABELS);
    program->labels = sb_reserve(p, (uint64_t)count, sizeof *program->labels);
    for (int32_t i = 0; i < count && !p->status; i++) {
        const int32_t length = sb_read_uint(p, &metadata, SB_MAX_LABEL);
        const uint8_t *text = sb_take(p, &metadata, (uint64_t)length);
        if (text) program->labels[i] = store_text(p, text, (size_t)length);
    }
    program->label_count = p->status ? 0 : (size_t)count;
    const int32_t channels = sb_read_byte(p, &metadata);
    if (channels) {
        float *numbers = sb_reserve(p, 2 * (uint64_t)channels, sizeof *numbers);
        for (int32_t i = 0; numbers && i < 2 * channels; i++) {
            numbers[i] = sb_read_real(p, &metadata);
            if (i >= channels && numbers[i] == 0) SB_FAIL(p, SB_ERROR_VALUE, "a standard deviation of 0");
        }
        const int32_t height = sb_read_size(p, &metadata);
        const int32_t width = sb_read_size(p, &metadata);
        if (p->status) return;
        program->preprocessing = (sb_preprocessing){channels, height, width, numbers, numbers + channels};
    }
    if (p->status) return;
    if (metadata.next != metadata.end) SB_FAIL(p, SB_ERROR_LENGTH, "bytes are left over behind the metadata");
    if (!count && !channels) SB_FAIL(p, SB_ERROR_PROGRAM, "a metadata section without content");
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

static void check_header(sb_reader *p, const uint8_t *bytes, size_t size) {
    if (size < 4 || memcmp(bytes, "SBIT", 4) != 0) {
        SB_FAIL(p, SB_ERROR_MAGIC, "not a .sbit file: it does not start with \"SBIT\"");
    } else if (size < SB_HEADER_SIZE) {
        SB_FAIL(p, SB_ERROR_LENGTH, "truncated: less than a header of %d bytes", SB_HEADER_SIZE);
    } else if (bytes[4] == 0xfe && bytes[5] == 0xff) {
        SB_FAIL(p, SB_ERROR_BYTE_ORDER, "a big-endian file: .sbit files are little-endian, pack the network again");
    } else if (bytes[4] != 0xff || bytes[5] != 0xfe) {
        SB_FAIL(p, SB_ERROR_BYTE_ORDER, "damaged: byte-order mark %02x%02x", bytes[4], bytes[5]);
    } else if (bytes[6] != SB_MAJOR || bytes[7] > SB_MINOR) {
        SB_FAIL(p, SB_ERROR_VERSION, "version %d.%d: this core reads version %d up to %d.%d", bytes[6], bytes[7],
                SB_MAJOR, SB_MAJOR, SB_MINOR);
    } else if (size > SB_MAX_FILE || sb_load_u32(bytes + 8) != size) {
        SB_FAIL(p, SB_ERROR_LENGTH, "truncated, or trailing bytes: %llu of %llu bytes", (unsigned long long)size,
                (unsigned long long)sb_load_u32(bytes + 8));
    } else if (sb_load_u32(bytes + 12) != checksum(bytes + SB_CHECKED_FROM, size - SB_CHECKED_FROM)) {
        SB_FAIL(p, SB_ERROR_CHECKSUM, "damaged: the checksum does not fit the content");
    }
}

/* A file has the lowest minor version that has all of its operations, so that a damaged version does not go unseen. */
static uint8_t lowest_minor(const sb_program *program) {
    for (int32_t i = 0; i < program->op_count; i++)
        if (sb_has_levels(&program->ops[i])) return SB_MINOR_OF_LEVELS;
    return 0;
}

sb_status sb_parse(const uint8_t *bytes, size_t size, sb_heap *heap, sb_program *program, sb_error *error) {
    sb_reader p = {.heap = heap, .error = error, .op = -1};
    check_header(&p, bytes, size);
    if (p.status) return p.status;
    sb_section sections[4]; /* program, names, metadata, payload */
    uint64_t start = SB_HEADER_SIZE;
    for (int i = 0; i < 4; i++) {
        const uint64_t length = sb_load_u32(bytes + SB_CHECKED_FROM + 4 * i);
        if (length > size - start) return SB_FAIL(&p, SB_ERROR_LENGTH, "section %d reaches beyond the file", i);
        sections[i] = (sb_section){bytes + start, bytes + start + length};
        start += length;
    }
    if (start != size) return SB_FAIL(&p, SB_ERROR_LENGTH, "sections do not fill the file");
    p.program = sections[0];
    p.payload = sections[3];
    p.minor = bytes[7];
    read_program(&p, program);
    if (!p.status && p.minor != lowest_minor(program))
        SB_FAIL(&p, SB_ERROR_VERSION, "version %d.%d, but nothing in it is newer than %d.%d", SB_MAJOR, p.minor,
                SB_MAJOR, lowest_minor(program));
    if (!p.status) read_names(&p, sections[1], program);
    if (!p.status) read_metadata(&p, sections[2], program);
    return p.status;
}
