"""Hostile files made by hand, one per check that a reader must make, each with the name of its error."""

from __future__ import annotations

import struct

from subbit import records as r
from subbit.format import limits
from tests.hostile.files import F16, RELU, Hostile, network, numbers, op, raw, seal, sections, uint

INF, NAN = float("inf"), float("nan")
LARGEST = 2**31 - 1
SOUND = network(RELU)

# weight flags: kind, + 4 ratios, + 8 fixed selection, + 16 per kernel dimension; 64: of an earlier operation
DENSE, BINARY, BITS, VALUES, RATIOS, FIXED, PLANE, SHARED = 0, 1, 2, 3, 4, 8, 32, 64


def linear(flags: int, *sizes: int, mask: int = 0) -> bytes:
    return op(r.Linear, 1, mask, flags, *sizes)


def conv(*sizes: int, flags: int = DENSE, mask: int = 0, attributes: bytes = b"") -> bytes:
    return op(r.Conv, 1, bytes([mask]), flags | PLANE, *sizes) + attributes


def one_by_one(mask: int, attributes: bytes) -> bytes:
    """A sound convolution of the 4 channels but for its attributes."""
    return network(conv(1, 4, 1, 1, mask=mask, attributes=attributes), payload=numbers(1, 2, 3, 4))


def rounded(*attribute: int | float | bytes, minor: int = 1, flags: int = BINARY, mask: int = 8) -> bytes:
    """A linear layer of 4 features whose levels are this attribute."""
    payload = numbers(1, 2, 3, 4) if flags == DENSE else b"\x05"
    return network(linear(flags, 1, 4, mask=mask) + raw(*attribute), payload=payload, minor=minor)


def lengths(*claimed: int) -> bytes:
    """A sound file whose header claims other section lengths."""
    return seal(SOUND[:16] + struct.pack("<4I", *claimed) + SOUND[32:])


REST = len(SOUND) - 32

HEADER = {
    "empty": Hostile(b"", "magic"),
    "one_byte": Hostile(b"S", "magic"),
    "another_file": Hostile(b"PK\x03\x04" + bytes(100), "magic"),
    "magic_in_lower_case": Hostile(b"sbit" + SOUND[4:], "magic"),
    "magic_alone": Hostile(b"SBIT", "length"),
    "header_cut": Hostile(SOUND[:31], "length"),
    "big_endian": Hostile(SOUND[:4] + b"\xfe\xff" + SOUND[6:], "byte order"),
    "byte_order_mark_damaged": Hostile(SOUND[:4] + b"\x00\x00" + SOUND[6:], "byte order"),
    "major_version_before": Hostile(SOUND[:6] + b"\x00\x00" + SOUND[8:], "version"),
    "major_version_behind": Hostile(SOUND[:6] + b"\x02\x00" + SOUND[8:], "version"),
    "minor_version_behind": Hostile(SOUND[:6] + b"\x01\x02" + SOUND[8:], "version"),
    "minor_version_without_need": Hostile(SOUND[:6] + b"\x01\x01" + SOUND[8:], "version"),
    "length_huge": Hostile(SOUND[:8] + b"\xff\xff\xff\xff" + SOUND[12:], "length"),
    "length_zero": Hostile(SOUND[:8] + bytes(4) + SOUND[12:], "length"),
    "trailing_byte": Hostile(SOUND + b"\0", "length"),
    "two_files_in_one": Hostile(SOUND + SOUND, "length"),
    "checksum_zero": Hostile(SOUND[:12] + bytes(4) + SOUND[16:], "checksum"),
    "section_huge": Hostile(lengths(2**32 - 1, 0, 0, 0), "length"),
    "sections_wrap_around_32_bits": Hostile(lengths(2**32 - 1, 1, 0, REST), "length"),
    "sections_overlap": Hostile(lengths(REST, REST, 0, 0), "length"),
    "section_beyond_the_end": Hostile(lengths(REST, 0, 0, 1), "length"),
    "hole_behind_the_sections": Hostile(lengths(REST - 1, 0, 0, 0), "length"),
    "no_sections": Hostile(seal(bytes(32)), "length"),
}

PROGRAM = {
    "number_format_unknown": Hostile(network(RELU, storage=2), "program"),
    "input_without_dimensions": Hostile(network(RELU, shape=()), "program"),
    "input_of_rank_7": Hostile(network(RELU, shape=(1,) * 7), "limit"),
    "input_of_size_0": Hostile(network(RELU, shape=(4, 0, 4)), "program"),
    "input_dimension_over_limit": Hostile(network(RELU, shape=(2**24 + 1,)), "limit"),
    "input_elements_over_limit": Hostile(network(RELU, shape=(2**24, 2**5)), "limit"),
    "input_elements_overflow_64_bits": Hostile(network(RELU, shape=(2**24,) * 6), "limit"),
    "more_operations_than_stored": Hostile(network(RELU, count=2, output=1), "length"),
    "fewer_operations_than_stored": Hostile(network(RELU, RELU, count=1, output=1), "length"),
    "operations_over_limit": Hostile(network(RELU, count=16385, output=1), "limit"),
    "output_beyond_the_last_value": Hostile(network(RELU, output=2), "limit"),
    "integer_of_six_bytes": Hostile(sections(raw(0, 1) + b"\xff\xff\xff\xff\xff\x01"), "program"),
    "integer_of_33_bits": Hostile(sections(raw(0, 1) + b"\xff\xff\xff\xff\x1f"), "limit"),
    "integer_with_superfluous_zero": Hostile(sections(raw(0, 1) + b"\x84\x00"), "program"),
    "integer_cut": Hostile(sections(raw(0, 1) + b"\x84"), "length"),
    "opcode_0": Hostile(network(b"\x00\x01"), "program"),
    "opcode_unknown": Hostile(network(b"\x7f\x01"), "program"),
    "opcode_of_two_bytes": Hostile(network(b"\xff\x01"), "program"),
    "reads_its_own_output": Hostile(network(op(r.Activation, 0, 0, 0)), "program"),
    "reads_before_the_input": Hostile(network(op(r.Activation, 2, 0, 0)), "program"),
    "reads_far_before_the_input": Hostile(network(op(r.Activation, LARGEST, 0, 0)), "program"),
    "second_operand_is_a_cycle": Hostile(network(op(r.Arithmetic, 1, 0, 0)), "program"),
    "concat_of_nothing": Hostile(network(op(r.Concat, 0, 0)), "program"),
    "concat_inputs_over_limit": Hostile(network(op(r.Concat, 4097) + b"\x01" * 4097 + b"\0"), "limit"),
    "concat_inputs_missing": Hostile(network(op(r.Concat, 4096)), "length"),
    "attribute_unknown": Hostile(network(op(r.Activation, 1, 4, 0)), "program"),
    "function_unknown": Hostile(network(op(r.Activation, 1, 0, 120)), "program"),
    "arithmetic_unknown": Hostile(network(op(r.Arithmetic, 1, 1, 6)), "program"),
    "pooling_unknown": Hostile(network(op(r.Pool, 1, 0, 2, 4, 4)), "program"),
    "padding_mode_unknown": Hostile(network(op(r.Pad, 1, 0, 4, 0, 0, 0, 0)), "program"),
    "equal_values_one_by_one": Hostile(network(op(r.Pool, 1, 0, 0, 5, 2, 4)), "program"),
    "reshape_to_size_0": Hostile(network(op(r.Reshape, 1, 1, 1)), "program"),
    "reshape_with_two_free_sizes": Hostile(network(op(r.Reshape, 1, 2, 0, 0)), "program"),
    "reshape_to_rank_7": Hostile(network(op(r.Reshape, 1, 7, *[2] * 7)), "limit"),
    "slice_with_step_0": Hostile(network(op(r.Slice, 1, 1, 0, 0, 4, 0)), "program"),
    "permute_repeats_a_dimension": Hostile(network(op(r.Permute, 1, 3, 0, 0, 1)), "program"),
    "mean_repeats_a_dimension": Hostile(network(op(r.Mean, 1, 0, 2, 1, 1)), "program"),
    "dimension_over_limit": Hostile(network(op(r.Softmax, 1, 6)), "limit"),
    "groups_over_limit": Hostile(one_by_one(32, uint(2**24 + 1)), "limit"),
    "stride_over_limit": Hostile(one_by_one(4, uint(2 * (2**24 + 1))), "limit"),
}

WEIGHTS = {
    "kernel_of_three_dimensions": Hostile(network(linear(DENSE | 48, 1, 4, 1, 1, 1)), "program"),
    "linear_with_a_kernel": Hostile(network(linear(DENSE | PLANE, 1, 4, 1, 1), payload=numbers(1, 1, 1, 1)), "program"),
    "convolution_without_kernel": Hostile(network(op(r.Conv, 1, 0, BINARY, 1, 4), payload=b"\0"), "program"),
    "ratios_of_a_dense_weight": Hostile(network(linear(DENSE | RATIOS, 1, 4)), "program"),
    "selection_of_a_binary_weight": Hostile(network(linear(BINARY | FIXED, 1, 4)), "program"),
    "ratio_of_a_single_block": Hostile(network(linear(BITS | RATIOS, 1, 1, 1, 4), payload=b"\x05"), "program"),
    "no_filters": Hostile(network(linear(DENSE, 0, 4)), "program"),
    "filters_without_depth": Hostile(network(linear(DENSE, 1, 0)), "program"),
    "bank_without_filters": Hostile(network(linear(BITS, 1, 0, 1, 4)), "program"),
    "no_blocks": Hostile(network(linear(BITS, 1, 1, 0, 4)), "program"),
    "kernel_of_size_0": Hostile(network(conv(1, 4, 0, 1)), "program"),
    "bank_over_limit": Hostile(network(linear(BITS, 1, 2**16 + 1, 1, 4)), "limit"),
    "weight_over_limit": Hostile(network(linear(BINARY, 2**24, 2**24)), "limit"),
    "weight_overflows_64_bits": Hostile(network(conv(2**24, 2**24, 2**24, 2**24)), "limit"),
    "channels_over_limit": Hostile(network(linear(BITS | FIXED, 1, 1, 2**24, 2**24)), "limit"),
    "blocks_over_limit": Hostile(network(linear(BITS | FIXED, 2**24, 1, 2, 1), payload=b"\x01"), "limit"),
    "blocks_over_limit_together": Hostile(
        network(*[linear(BITS, 2**20, 1, 4, 1)] * 5, payload=b"\0" * 5), "limit"
    ),
    "shares_its_own_weight": Hostile(network(linear(SHARED, 0)), "program"),
    "shares_a_later_weight": Hostile(network(linear(SHARED, 1), linear(BINARY, 4, 4), payload=b"\0\0"), "program"),
    "shares_a_weight_before_the_first": Hostile(
        network(linear(BINARY, 4, 4), linear(SHARED, 2), payload=b"\0\0"), "program"
    ),
    "shares_a_weight_from_far_away": Hostile(
        network(linear(BINARY, 4, 4), linear(SHARED, 16385), payload=b"\0\0"), "limit"
    ),
    "shares_the_weight_of_a_relu": Hostile(
        network(linear(BINARY, 4, 4), RELU, linear(SHARED, 1), payload=b"\0\0"), "program"
    ),
    "shares_a_shared_weight": Hostile(
        network(linear(BINARY, 4, 4), linear(SHARED, 1), linear(SHARED, 1), payload=b"\0\0"), "program"
    ),
    "convolution_shares_a_linear_weight": Hostile(
        network(linear(BINARY, 4, 4), op(r.Conv, 1, 0, SHARED, 1), payload=b"\0\0"), "program"
    ),
    "linear_shares_a_convolution": Hostile(
        network(conv(4, 4, 1, 1, flags=BINARY), linear(SHARED, 1), payload=b"\0\0"), "program"
    ),
    "shared_weight_with_flags": Hostile(
        network(linear(BINARY, 4, 4), linear(SHARED | BINARY, 1), payload=b"\0\0"), "program"
    ),
    "shared_weight_without_reference": Hostile(
        network(linear(BINARY, 4, 4), linear(SHARED), payload=b"\0\0"), "length"
    ),
    "shared_numbers_over_limit": Hostile(
        network(linear(BINARY, 2**10, 2**10), *[linear(SHARED, 1 + i) for i in range(129)], payload=bytes(2**17)),
        "limit",
    ),
    "shared_blocks_over_limit": Hostile(
        network(linear(BITS, 2**20, 1, 4, 1), *[linear(SHARED, i) for i in range(1, 5)], payload=b"\0"), "limit"
    ),
    "ratios_without_scale": Hostile(
        network(linear(BITS | RATIOS, 1, 1, 2, 2), payload=b"\0" + numbers(0.5)), "program"
    ),
    "values_missing": Hostile(network(linear(DENSE, 2, 4), payload=numbers(1, 2, 3)), "length"),
    "values_of_a_huge_weight_missing": Hostile(network(linear(DENSE, 2**10, 2**20)), "length"),
    "bits_of_a_huge_weight_missing": Hostile(network(linear(BINARY, 2**10, 2**20)), "length"),
    "indices_missing": Hostile(network(linear(BITS, 4, 3, 2, 2), payload=b"\0"), "length"),
    "payload_left_over": Hostile(network(linear(BINARY, 1, 4), payload=b"\0\0"), "length"),
    "payload_without_weights": Hostile(network(RELU, payload=b"\0"), "length"),
    "index_equals_m": Hostile(network(linear(BITS, 1, 3, 2, 2), payload=b"\x00\x0c"), "value"),
    "padding_bits_of_filters_set": Hostile(network(linear(BINARY, 1, 4), payload=b"\x10"), "value"),
    "padding_bits_of_indices_set": Hostile(network(linear(BITS, 1, 2, 2, 2), payload=b"\x00\x04"), "value"),
    "weight_is_nan": Hostile(network(linear(DENSE, 1, 4), payload=numbers(1, NAN, 3, 4)), "value"),
    "scale_is_nan": Hostile(network(linear(BINARY, 1, 4, mask=1), payload=b"\0" + numbers(NAN)), "value"),
    "scale_is_infinite": Hostile(network(linear(BINARY, 1, 4, mask=1), payload=b"\0" + numbers(-INF)), "value"),
    "shift_is_nan": Hostile(network(linear(BINARY, 1, 4, mask=2), payload=b"\0" + numbers(NAN)), "value"),
    "ratio_is_nan": Hostile(
        network(linear(BITS | RATIOS, 1, 1, 2, 2), payload=b"\0" + numbers(NAN)), "value"
    ),
    "half_scale_is_nan": Hostile(
        network(linear(BINARY, 1, 4, mask=1), storage=F16, payload=b"\0\0\x01\x7e"), "value"
    ),
    "half_scale_overflows_with_its_exponent": Hostile(
        network(linear(BINARY, 1, 4, mask=1), storage=F16, payload=b"\0\x7f\x00\x7b"), "value"
    ),
    "filters_and_scale_overflow_together": Hostile(  # 2^100 * 2^14 in both is finite, their product is not
        network(linear(DENSE, 1, 4, mask=1), storage=F16, payload=b"\x64" + b"\x00\x74" * 4 + b"\x64\x00\x74"),
        "value", decodes=True,
    ),
    "constant_is_nan": Hostile(network(op(r.Constant, 1, 1), payload=numbers(NAN)), "value"),
    "slope_missing": Hostile(network(op(r.PReLU, 1, 4)), "length"),
    "constant_over_limit": Hostile(network(op(r.Constant, 2, 2**24, 2**24)), "limit"),
}  # fmt: skip

NUMBERS = {
    "leaky_slope_is_nan": Hostile(network(op(r.Activation, 1, 1, 2, NAN)), "value"),
    "softplus_with_beta_0": Hostile(network(op(r.Activation, 1, 0, 14)), "value"),
    "layer_norm_eps_is_infinite": Hostile(network(op(r.LayerNorm, 1, 0, 0, INF)), "value"),
    "layer_norm_eps_is_negative": Hostile(network(op(r.LayerNorm, 1, 0, 0, -1.0)), "value"),
    "upsampling_factor_is_nan": Hostile(network(op(r.Upsample, 1, 1, 0, 0, struct.pack("<2d", NAN, 1))), "value"),
    "upsampling_factor_is_huge": Hostile(network(op(r.Upsample, 1, 1, 0, 0, struct.pack("<2d", 1e300, 1))), "limit"),
    "upsampling_factor_is_negative": Hostile(network(op(r.Upsample, 1, 1, 0, 0, struct.pack("<2d", -2, 1))), "limit"),
}


LEVELS = {
    "levels_in_version_1_0": Hostile(rounded(0, 0.5, minor=0), "program"),
    "levels_of_a_convolution_in_version_1_0": Hostile(
        network(conv(1, 4, 1, 1, flags=BINARY, mask=128, attributes=raw(0, 0.5)), payload=b"\0"), "program"
    ),
    "levels_of_unknown_sign": Hostile(rounded(2, 0.5), "program"),
    "levels_cut": Hostile(rounded(0, b"\0\0"), "length"),
    "levels_missing": Hostile(rounded(), "length"),
    "levels_0_apart": Hostile(rounded(0, 0.0), "limit"),
    "levels_a_negative_step_apart": Hostile(rounded(0, -0.5), "limit"),
    "levels_a_subnormal_step_apart": Hostile(rounded(1, 1e-40), "limit"),
    "levels_a_tiny_step_apart": Hostile(rounded(1, 2.0**-65), "limit"),
    "levels_a_huge_step_apart": Hostile(rounded(1, 2.0**65), "limit"),
    "levels_an_infinite_step_apart": Hostile(rounded(0, INF), "value"),
    "levels_a_nan_step_apart": Hostile(rounded(0, NAN), "value"),
    "levels_of_dense_filters": Hostile(rounded(0, 0.5, flags=DENSE), "program"),
    "levels_of_real_filters": Hostile(
        network(linear(VALUES, 1, 1, 1, 4, mask=8) + raw(0, 0.5), payload=numbers(1, 2, 3, 4), minor=1), "program"
    ),
    "levels_and_signs_of_the_input": Hostile(rounded(0, 0.5, mask=12), "program"),
    "scale_and_step_overflow_together": Hostile(
        network(linear(BINARY, 1, 4, mask=9) + raw(0, 2.0**64), payload=b"\0" + numbers(2.0**64), minor=1), "value"
    ),
}


def misfit(*ops: bytes, shape: tuple[int, ...] = (4, 4, 4), payload: bytes = b"", status: str = "shape") -> Hostile:
    """Sound operations that do not fit each other."""
    return Hostile(network(*ops, shape=shape, payload=payload), status, decodes=True)


FULL = 2**12  # (1, 2^12, 2^12) is a sixteenth of the largest value

SHAPES = {
    "weight_for_other_channels": misfit(conv(1, 3, 1, 1), payload=numbers(1, 2, 3)),
    "weight_for_other_features": misfit(linear(BINARY, 1, 5), payload=b"\0"),
    "convolution_of_a_vector": misfit(conv(1, 4, 1, 1), shape=(4,), payload=numbers(1, 2, 3, 4)),
    "linear_of_a_single_number": misfit(op(r.Mean, 1, 0, 1, 0), linear(BINARY, 1, 1), shape=(4,), payload=b"\0"),
    "kernel_larger_than_input": misfit(conv(1, 4, 9, 9, flags=BINARY), payload=bytes(41)),
    "groups_0": Hostile(one_by_one(32, uint(0)), "shape"),
    "groups_do_not_divide": Hostile(one_by_one(32, uint(3)), "shape", decodes=True),
    "stride_0": Hostile(one_by_one(4, uint(0)), "shape"),
    "dilation_0": Hostile(one_by_one(16, uint(0)), "shape"),
    "padding_to_a_huge_output": Hostile(one_by_one(8, uint(2 * 2**24)), "shape", decodes=True),
    "pooling_window_0": Hostile(network(op(r.Pool, 1, 0, 0, 0, 2)), "shape"),
    "pooling_stride_0": Hostile(network(op(r.Pool, 1, 0, 0, 2, 0)), "shape"),
    "pooling_padding_beyond_half_a_window": misfit(op(r.Pool, 1, 1, 0, 4, 4, 2 * 3)),
    "pooling_window_beyond_the_input": misfit(op(r.Pool, 1, 0, 0, 2 * 9, 2)),
    "affine_for_other_channels": misfit(op(r.Affine, 1, 1, 3), payload=numbers(1, 2, 3)),
    "slopes_for_other_channels": misfit(op(r.PReLU, 1, 3), payload=numbers(1, 2, 3)),
    "layer_norm_for_other_channels": misfit(op(r.LayerNorm, 1, 1, 0, 1e-5, 3), payload=numbers(1, 2, 3)),
    "layer_norm_beyond_the_rank": misfit(op(r.LayerNorm, 1, 0, 3, 1e-5)),
    "softmax_beyond_the_rank": misfit(op(r.Softmax, 1, 3)),
    "mean_beyond_the_rank": misfit(op(r.Mean, 1, 0, 1, 5)),
    "mean_over_nothing": misfit(op(r.Mean, 1, 0, 0)),
    "concat_beyond_the_rank": misfit(op(r.Concat, 1, 1, 3)),
    "concat_of_other_shapes": misfit(op(r.Slice, 1, 0, 1, 0, 2), op(r.Concat, 2, 1, 2, 0)),
    "broadcast_of_other_shapes": misfit(op(r.Slice, 1, 0, 1, 0, 3), op(r.Arithmetic, 1, 2, 0)),
    "slice_of_nothing": misfit(op(r.Slice, 1, 0, 0, 4, LARGEST)),
    "slice_backwards": misfit(op(r.Slice, 1, 0, 0, 3, 1)),
    "reshape_of_other_size": misfit(op(r.Reshape, 1, 1, 66)),
    "reshape_overflows_64_bits": misfit(op(r.Reshape, 1, 6, *[2**24 + 1] * 6)),
    "reshape_with_impossible_rest": misfit(op(r.Reshape, 1, 2, 0, 4)),
    "permute_of_another_rank": misfit(op(r.Permute, 1, 2, 0, 1)),
    "reflection_beyond_the_input": misfit(op(r.Pad, 1, 0, 1, 8, 0, 0, 0)),
    "circle_beyond_the_input": misfit(op(r.Pad, 1, 0, 3, 10, 0, 0, 0)),
    "cropped_to_nothing": misfit(op(r.Pad, 1, 0, 0, 7, 0, 0, 0)),
    "cropped_and_padded_elsewhere": misfit(op(r.Pad, 1, 0, 0, 11, 20, 0, 0)),
    "padded_to_a_huge_size": misfit(op(r.Pad, 1, 0, 0, LARGEST - 1, 0, 0, 0)),
    "upsampling_to_nothing": misfit(op(r.Upsample, 1, 0, 0, 0)),
    "upsampling_over_the_largest_value": misfit(op(r.Upsample, 1, 0, 0, 2 * 2**24), status="limit"),
    "broadcast_over_the_largest_value": misfit(
        op(r.Reshape, 1, 2, 2**15 + 1, 2), op(r.Reshape, 2, 2, 2, 2**15 + 1), op(r.Arithmetic, 1, 2, 0),
        shape=(2**15,), status="limit",
    ),
    "working_memory_over_limit": misfit(  # 17 values of 2^28 numbers, all needed in the end
        op(r.Upsample, 1, 0, 0, 2 * 2**14), *[RELU] * 16,
        op(r.Concat, 17, *range(1, 18), 0), op(r.Mean, 1, 0, 3, 0, 1, 2), shape=(1, FULL, FULL), status="limit",
    ),
}  # fmt: skip

NAMED = linear(BINARY, 1, 4)
LABELS = uint(1) + uint(1) + b"a"


def named(*texts: bytes) -> bytes:
    """A network of as many weighted operations, with this names section."""
    return network(NAMED, shape=(4,), payload=b"\0", names=b"".join(texts))


def described(metadata: bytes) -> bytes:
    return network(RELU, metadata=metadata)


TEXTS = {
    "name_is_not_utf8": Hostile(named(uint(0), uint(1), b"\xff"), "text"),
    "name_is_cut_utf8": Hostile(named(uint(0), uint(2), b"\xe9\xb3"), "text"),
    "name_is_overlong_utf8": Hostile(named(uint(0), uint(2), b"\xc0\xaf"), "text"),
    "name_is_a_surrogate": Hostile(named(uint(0), uint(3), b"\xed\xa0\x80"), "text"),
    "name_beyond_unicode": Hostile(named(uint(0), uint(4), b"\xf4\x90\x80\x80"), "text"),
    "name_with_nul": Hostile(named(uint(0), uint(3), b"a\0b"), "text"),
    "name_shares_more_than_there_was": Hostile(named(uint(1), uint(0)), "limit"),
    "name_too_long": Hostile(named(uint(0), uint(256), b"a" * 256), "limit"),
    "name_cut": Hostile(named(uint(0), uint(9), b"a"), "length"),
    "names_left_over": Hostile(named(uint(0), uint(1), b"a", b"b"), "length"),
    "names_without_weights": Hostile(network(RELU, names=b"\0\0"), "length"),
    "label_is_not_utf8": Hostile(described(uint(1) + uint(1) + b"\x80" + b"\0"), "text"),
    "label_too_long": Hostile(described(uint(1) + uint(1024) + b"a" * 1024 + b"\0"), "limit"),
    "labels_over_limit": Hostile(described(uint(65537)), "limit"),
    "labels_missing": Hostile(described(uint(65536)), "length"),
    "metadata_of_nothing": Hostile(described(b"\0\0"), "program"),
    "metadata_cut": Hostile(described(LABELS), "length"),
    "metadata_left_over": Hostile(described(LABELS + b"\0\0"), "length"),
    "deviation_0": Hostile(described(raw(0, 1, 0.5, 0.0, 8, 8)), "value"),
    "mean_is_nan": Hostile(described(raw(0, 1, NAN, 1.0, 8, 8)), "value"),
    "picture_of_size_0": Hostile(described(raw(0, 1, 0.5, 1.0, 0, 8)), "program"),
    "picture_over_limit": Hostile(described(raw(0, 1, 0.5, 1.0, limits.MAX_DIM + 1, 8)), "limit"),
    "preprocessing_cut": Hostile(described(raw(0, 127, 0.5)), "length"),
}

CASES: dict[str, Hostile] = HEADER | PROGRAM | WEIGHTS | NUMBERS | LEVELS | SHAPES | TEXTS
