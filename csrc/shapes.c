/* The shape of every value, with PyTorch's arithmetic; a program whose operations do not fit each other stops here. */
#include "program.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BAD(...) sb_fail(error, SB_ERROR_SHAPE, number, __VA_ARGS__)

/* `shape` with other last two dimensions; (C, L) stays of rank 2 as long as its height is 1. */
static sb_status set_plane(int32_t number, sb_shape *shape, int64_t height, int64_t width, sb_error *error) {
    if (height < 1 || width < 1 || height > SB_MAX_DIM || width > SB_MAX_DIM)
        return BAD("an output of %lld x %lld: the input is too small, or it is over the limit", (long long)height,
                   (long long)width);
    if (shape->rank == 2 && height != 1) return BAD("a height of %lld for a value of rank 2", (long long)height);
    if (shape->rank > 2) shape->dims[shape->rank - 2] = (int32_t)height;
    shape->dims[shape->rank - 1] = (int32_t)width;
    return SB_OK;
}

static sb_status check_plane(int32_t number, const sb_shape *in, sb_error *error) {
    if (in->rank < 2) return BAD("needs a value with a plane, (..., H, W) or (C, L), got rank %d", (int)in->rank);
    return SB_OK;
}

static sb_status check_dim(int32_t number, int32_t dim, const sb_shape *in, sb_error *error) {
    if (dim >= in->rank) return BAD("dimension %d of a value of rank %d", (int)dim, (int)in->rank);
    return SB_OK;
}

static sb_status infer_conv(int32_t number, const sb_op *op, sb_shape *shape, sb_error *error) {
    const sb_weight *weight = &op->conv.weight;
    const int64_t channels = (int64_t)weight->blocks * weight->depth * op->conv.groups;
    if (shape->rank != 2 && shape->rank != 3)
        return BAD("a convolution needs (C, H, W) or (C, L), got rank %d", (int)shape->rank);
    if (op->conv.groups < 1 || weight->out % op->conv.groups)
        return BAD("%d filters in %d groups", (int)weight->out, (int)op->conv.groups);
    if (channels != shape->dims[0])
        return BAD("the weight is for %lld channels, the input has %d", (long long)channels, (int)shape->dims[0]);
    const int32_t kernel[2] = {weight->kernel_h, weight->kernel_w};
    const int32_t size[2] = {sb_height(shape), sb_width(shape)};
    int64_t out[2];
    for (int i = 0; i < 2; i++) {
        if (op->conv.stride[i] < 1 || op->conv.dilation[i] < 1) return BAD("a stride or dilation of 0");
        const int64_t padded = (int64_t)size[i] + op->conv.padding[2 * i] + op->conv.padding[2 * i + 1];
        const int64_t room = padded - (int64_t)op->conv.dilation[i] * (kernel[i] - 1) - 1;
        out[i] = room < 0 ? 0 : room / op->conv.stride[i] + 1;
    }
    shape->dims[0] = weight->out;
    return set_plane(number, shape, out[0], out[1], error);
}

static sb_status infer_linear(int32_t number, const sb_op *op, sb_shape *shape, sb_error *error) {
    const sb_weight *weight = &op->conv.weight;
    if (shape->rank < 1 || shape->dims[shape->rank - 1] != weight->blocks * weight->depth)
        return BAD("the weight is for %d features, the input has %d", (int)(weight->blocks * weight->depth),
                   shape->rank < 1 ? 0 : (int)shape->dims[shape->rank - 1]);
    shape->dims[shape->rank - 1] = weight->out;
    return SB_OK;
}

static sb_status infer_pool(int32_t number, const sb_op *op, sb_shape *shape, sb_error *error) {
    if (check_plane(number, shape, error)) return SB_ERROR_SHAPE;
    const int32_t size[2] = {sb_height(shape), sb_width(shape)};
    int64_t out[2];
    for (int i = 0; i < 2; i++) {
        const int64_t kernel = op->pool.kernel[i], stride = op->pool.stride[i], dilation = op->pool.dilation[i];
        const int64_t padding = op->pool.padding[i];
        if (kernel < 1 || stride < 1 || dilation < 1) return BAD("a window, stride or dilation of 0");
        const int64_t window = dilation * (kernel - 1) + 1;
        if (2 * padding > window) return BAD("padding of more than half a window");
        if (op->pool.average && dilation != 1) return BAD("average pooling with dilation");
        const int64_t room = size[i] + 2 * padding - window;
        out[i] = room < 0 ? 0 : (room + (op->pool.ceil_mode ? stride - 1 : 0)) / stride + 1;
        /* a window may hang over the end but must start inside the input or its left padding */
        if (op->pool.ceil_mode && (out[i] - 1) * stride >= size[i] + padding) out[i]--;
    }
    return set_plane(number, shape, out[0], out[1], error);
}

static sb_status infer_adaptive(int32_t number, const sb_op *op, sb_shape *shape, sb_error *error) {
    if (check_plane(number, shape, error)) return SB_ERROR_SHAPE;
    const int32_t height = op->pool.output[0] ? op->pool.output[0] : sb_height(shape);
    const int32_t width = op->pool.output[1] ? op->pool.output[1] : sb_width(shape);
    return set_plane(number, shape, height, width, error);
}

static sb_status infer_mean(int32_t number, const sb_op *op, sb_shape *shape, sb_error *error) {
    bool gone[SB_MAX_RANK] = {false};
    if (op->dims.count == 0) return BAD("a mean over no dimension");
    for (int32_t i = 0; i < op->dims.count; i++) {
        if (check_dim(number, op->dims.dims[i], shape, error)) return SB_ERROR_SHAPE;
        gone[op->dims.dims[i]] = true;
    }
    int32_t rank = 0;
    for (int32_t i = 0; i < shape->rank; i++) {
        if (gone[i] && !op->dims.keepdim) continue;
        shape->dims[rank++] = gone[i] ? 1 : shape->dims[i];
    }
    shape->rank = rank;
    return SB_OK;
}

static sb_status infer_arithmetic(int32_t number, const sb_shape *a, const sb_shape *b, sb_shape *shape,
                                  sb_error *error) {
    shape->rank = a->rank > b->rank ? a->rank : b->rank;
    for (int32_t i = 1; i <= shape->rank; i++) { /* aligned at the end */
        const int32_t of_a = i <= a->rank ? a->dims[a->rank - i] : 1;
        const int32_t of_b = i <= b->rank ? b->dims[b->rank - i] : 1;
        if (of_a != of_b && of_a != 1 && of_b != 1)
            return BAD("sizes %d and %d cannot be broadcast", (int)of_a, (int)of_b);
        shape->dims[shape->rank - i] = of_a > of_b ? of_a : of_b;
    }
    return SB_OK;
}

static sb_status infer_concat(int32_t number, const sb_op *op, const sb_value *values, sb_shape *shape,
                              sb_error *error) {
    if (check_dim(number, op->dim, shape, error)) return SB_ERROR_SHAPE;
    int64_t total = 0;
    for (int32_t i = 0; i < op->input_count; i++) {
        const sb_shape *in = &values[op->inputs[i]].shape;
        bool fits = in->rank == shape->rank;
        for (int32_t d = 0; fits && d < shape->rank; d++) fits = d == op->dim || in->dims[d] == shape->dims[d];
        if (!fits) return BAD("input %d does not fit the first one", (int)i);
        total += in->dims[op->dim];
    }
    if (total > SB_MAX_DIM) return BAD("a dimension of %lld is over the limit", (long long)total);
    shape->dims[op->dim] = (int32_t)total;
    return SB_OK;
}

static sb_status infer_slice(int32_t number, const sb_op *op, sb_shape *shape, sb_error *error) {
    if (check_dim(number, op->slice.dim, shape, error)) return SB_ERROR_SHAPE;
    const int32_t size = shape->dims[op->slice.dim];
    const int32_t stop = op->slice.stop < size ? op->slice.stop : size;
    if (op->slice.start >= stop) return BAD("nothing between %d and %d", (int)op->slice.start, (int)stop);
    shape->dims[op->slice.dim] = (stop - op->slice.start - 1) / op->slice.step + 1;
    return SB_OK;
}

static sb_status infer_reshape(int32_t number, const sb_op *op, sb_shape *shape, sb_error *error) {
    const int64_t count = (int64_t)sb_elements(shape);
    int64_t known = 1;
    int32_t free_dim = -1;
    *shape = op->shape;
    for (int32_t i = 0; i < shape->rank; i++) {
        if (shape->dims[i] < 0) free_dim = i;
        else known *= shape->dims[i];
        if (known > SB_MAX_ELEMENTS) break;
    }
    if (known > SB_MAX_ELEMENTS || count % known || (free_dim < 0 && known != count))
        return BAD("%lld elements do not fit the new shape", (long long)count);
    if (free_dim >= 0) {
        if (count / known > SB_MAX_DIM) return BAD("a dimension of %lld is over the limit", (long long)(count / known));
        shape->dims[free_dim] = (int32_t)(count / known);
    }
    return SB_OK;
}

static sb_status infer_permute(int32_t number, const sb_op *op, sb_shape *shape, sb_error *error) {
    if (op->dims.count != shape->rank) return BAD("%d dimensions of %d", (int)op->dims.count, (int)shape->rank);
    const sb_shape in = *shape;
    for (int32_t i = 0; i < in.rank; i++) {
        if (check_dim(number, op->dims.dims[i], &in, error)) return SB_ERROR_SHAPE;
        shape->dims[i] = in.dims[op->dims.dims[i]];
    }
    return SB_OK;
}

static sb_status infer_pad(int32_t number, const sb_op *op, sb_shape *shape, sb_error *error) {
    if (check_plane(number, shape, error)) return SB_ERROR_SHAPE;
    const int32_t size[2] = {sb_height(shape), sb_width(shape)};
    int64_t out[2];
    for (int i = 0; i < 2; i++) {
        const int64_t before = op->pad.amounts[2 * i], after = op->pad.amounts[2 * i + 1];
        const int64_t most = op->pad.mode == SB_PAD_REFLECT ? size[i] - 1 : size[i];
        if ((op->pad.mode == SB_PAD_REFLECT || op->pad.mode == SB_PAD_CIRCULAR) && (before > most || after > most))
            return BAD("padding by %lld of a size of %d", (long long)(before > after ? before : after), (int)size[i]);
        if (before < -(int64_t)size[i] || after < -(int64_t)size[i]) return BAD("nothing is left after cropping");
        out[i] = size[i] + before + after;
    }
    return set_plane(number, shape, out[0], out[1], error);
}

static sb_status infer_upsample(int32_t number, const sb_op *op, sb_shape *shape, sb_error *error) {
    if (check_plane(number, shape, error)) return SB_ERROR_SHAPE;
    const int32_t size[2] = {sb_height(shape), sb_width(shape)};
    int64_t out[2];
    for (int i = 0; i < 2; i++) {
        out[i] = op->upsample.output[i];
        if (out[i] == 0) {
            const double scaled = floor(size[i] * op->upsample.factor[i]);
            if (!(scaled <= SB_MAX_DIM)) return BAD("an upsampling factor over the limit");
            out[i] = (int64_t)scaled;
        }
    }
    return set_plane(number, shape, out[0], out[1], error);
}

static sb_status check_lengths(int32_t number, int32_t expected, int32_t scale, int32_t shift, sb_error *error) {
    if ((scale && scale != expected) || (shift && shift != expected))
        return BAD("%d numbers for %d channels", (int)(scale && scale != expected ? scale : shift), (int)expected);
    return SB_OK;
}

static sb_status infer(int32_t number, const sb_op *op, const sb_value *values, sb_shape *shape, sb_error *error) {
    if (op->input_count) *shape = values[op->inputs[0]].shape;
    switch (op->code) {
        case SB_OP_CONV: return infer_conv(number, op, shape, error);
        case SB_OP_LINEAR: return infer_linear(number, op, shape, error);
        case SB_OP_AFFINE:
            if (check_dim(number, 0, shape, error)) return SB_ERROR_SHAPE;
            return check_lengths(number, shape->dims[0], op->affine.scale_count, op->affine.shift_count, error);
        case SB_OP_LAYER_NORM:
            if (check_dim(number, op->affine.dim, shape, error)) return SB_ERROR_SHAPE;
            return check_lengths(number, shape->dims[op->affine.dim], op->affine.scale_count, op->affine.shift_count,
                                 error);
        case SB_OP_ACTIVATION: return SB_OK;
        case SB_OP_PRELU:
            if (op->prelu.count == 1) return SB_OK;
            if (check_dim(number, 0, shape, error)) return SB_ERROR_SHAPE;
            return check_lengths(number, shape->dims[0], op->prelu.count, 0, error);
        case SB_OP_POOL: return infer_pool(number, op, shape, error);
        case SB_OP_ADAPTIVE_POOL: return infer_adaptive(number, op, shape, error);
        case SB_OP_MEAN: return infer_mean(number, op, shape, error);
        case SB_OP_ARITHMETIC:
            return infer_arithmetic(number, &values[op->inputs[0]].shape, &values[op->inputs[1]].shape, shape, error);
        case SB_OP_CONSTANT: *shape = op->constant.shape; return SB_OK;
        case SB_OP_CONCAT: return infer_concat(number, op, values, shape, error);
        case SB_OP_SLICE: return infer_slice(number, op, shape, error);
        case SB_OP_RESHAPE: return infer_reshape(number, op, shape, error);
        case SB_OP_PERMUTE: return infer_permute(number, op, shape, error);
        case SB_OP_PAD: return infer_pad(number, op, shape, error);
        case SB_OP_UPSAMPLE: return infer_upsample(number, op, shape, error);
        case SB_OP_SOFTMAX: return check_dim(number, op->dim, shape, error);
        default: return BAD("opcode %d", op->code);
    }
}

sb_status sb_infer_shapes(const sb_program *program, sb_value *values, sb_error *error) {
    values[0].shape = program->input;
    for (int32_t i = 0; i < program->op_count; i++) {
        sb_shape *shape = &values[i + 1].shape;
        const sb_status status = infer(i, &program->ops[i], values, shape, error);
        if (status) return status;
        int64_t count = 1;
        for (int32_t d = 0; d < shape->rank; d++) {
            count *= shape->dims[d]; /* at most 2^28 * 2^24 */
            if (count > SB_MAX_ELEMENTS)
                return sb_fail(error, SB_ERROR_LIMIT, i, "a value of more than %d elements", SB_MAX_ELEMENTS);
        }
    }
    return SB_OK;
}
