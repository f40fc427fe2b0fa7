"""Programs of one or a few operations, built straight from records, for the tests of the file and of the C core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from subbit import records as r
from subbit.selection import fixed_selection

RNG = np.random.default_rng(7)


def reals(*shape: int) -> r.Float32:
    return RNG.standard_normal(shape).astype(np.float32)


def signs(*shape: int) -> r.Int8:
    return np.where(RNG.standard_normal(shape) >= 0, 1, -1).astype(np.int8)


def stacked(
    out: int, blocks: int, filters: int, depth: int, *kernel: int, fixed: bool = False, scale: bool = True,
    values: bool = False,
) -> r.Stacked:  # fmt: skip
    bank = reals(filters, depth, *kernel) if values else signs(filters, depth, *kernel)
    if fixed:
        index = fixed_selection(out, blocks, filters)
    else:
        index = np.resize(RNG.permutation(out * blocks), (out, blocks)) % filters  # every filter is used
    return r.Stacked(bank, index, reals(out, blocks) if scale else None, fixed)


def program(shape: Sequence[int], *ops: r.Op, **options: Any) -> r.Program:
    return r.Program(tuple(shape), ops, **({"storage": "f32"} | options))


def scaled(op: r.Conv) -> r.Conv:
    """The same with a channel scale and shift, as a folded BatchNorm gives."""
    out = op.weight.shape[0]
    return replace(op, scale=reals(out), shift=reals(out), name="features.0")


def conv(weight: r.Weight, **options: Any) -> r.Conv:
    return r.Conv(inputs=(0,), weight=weight, **options)


SAME = (1, 1, 1, 1)
FINE, COARSE = r.Levels(2.0**-5), r.Levels(0.3)

# regime -> program
CASES: dict[str, Callable[[], r.Program]] = {
    "dense_3x3": lambda: program((3, 9, 7), scaled(conv(r.Dense(reals(5, 3, 3, 3)), padding=SAME))),
    "dense_asymmetric_everything": lambda: program(
        (4, 11, 13),
        scaled(conv(r.Dense(reals(6, 2, 2, 3)), stride=(2, 3), padding=(0, 3, 2, 1), dilation=(2, 1), groups=2)),
    ),
    "dense_1d": lambda: program((4, 17), conv(r.Dense(reals(6, 4, 5)), stride=(1, 2), padding=(0, 0, 2, 2))),
    "dense_no_scale": lambda: program((3, 5, 5), conv(r.Dense(reals(2, 3, 1, 1)))),
    "dense_binary_input": lambda: program(
        (3, 6, 6), conv(r.Dense(reals(4, 3, 3, 3)), padding=SAME, binary_input=True)
    ),
    "kernel_larger_than_input": lambda: program(
        (2, 3, 3), conv(r.Dense(reals(3, 2, 7, 7)), padding=(3, 3, 3, 3))
    ),
    "padding_beyond_kernel": lambda: program((2, 4, 4), conv(r.Dense(reals(3, 2, 3, 3)), padding=(5, 5, 5, 5))),
    "binary_3x3": lambda: program((7, 8, 8), scaled(conv(r.Binary(signs(6, 7, 3, 3), reals(6)), padding=SAME))),
    "binary_depthwise": lambda: program(
        (6, 8, 8), scaled(conv(r.Binary(signs(6, 1, 3, 3)), padding=SAME, groups=6, stride=(2, 2)))
    ),
    "stacked_learned": lambda: program((8, 9, 9), scaled(conv(stacked(12, 2, 5, 4, 3, 3), padding=SAME))),
    "stacked_fixed": lambda: program(
        (12, 6, 6), conv(stacked(9, 4, 3, 3, 3, 3, fixed=True), padding=SAME, stride=(2, 2))
    ),
    "stacked_no_scale": lambda: program((8, 6, 6), conv(stacked(8, 2, 4, 4, 3, 3, scale=False))),
    "stacked_one_block": lambda: program((8, 6, 6), conv(stacked(8, 1, 4, 8, 3, 3))),
    "stacked_one_filter": lambda: program((8, 6, 6), conv(stacked(8, 2, 1, 4, 3, 3))),
    "stacked_groups": lambda: program((8, 6, 6), scaled(conv(stacked(6, 2, 3, 2, 3, 3), groups=2, padding=SAME))),
    "stacked_depthwise": lambda: program((6, 7, 7), conv(stacked(6, 1, 2, 1, 3, 3), groups=6, padding=SAME)),
    "stacked_values": lambda: program(
        (8, 7, 7), scaled(conv(stacked(12, 2, 5, 4, 3, 3, values=True), padding=SAME))
    ),
    "stacked_1d": lambda: program((6, 12), conv(stacked(4, 2, 3, 3, 3), padding=(0, 0, 1, 1))),
    "stacked_1x1_stride2": lambda: program((8, 7, 7), scaled(conv(stacked(16, 2, 4, 4, 1, 1), stride=(2, 2)))),
    "shared_dense": lambda: shared(r.Dense(reals(6, 6, 3, 3))),
    "shared_binary": lambda: shared(r.Binary(signs(6, 6, 3, 3), reals(6))),
    "shared_stacked": lambda: shared(stacked(6, 2, 4, 3, 3, 3)),
    "shared_values": lambda: shared(stacked(6, 3, 4, 2, 3, 3, values=True)),
    "linear_shared": lambda: shared_linear(r.Dense(reals(8, 8))),
    "linear_dense": lambda: program(
        (20,), r.Linear(inputs=(0,), weight=r.Dense(reals(7, 20)), shift=reals(7), name="fc")
    ),
    "linear_rows": lambda: program(
        (3, 4, 10), r.Linear(inputs=(0,), weight=r.Dense(reals(5, 10)), scale=reals(5), shift=reals(5))
    ),
    "linear_binary": lambda: program((70,), r.Linear(inputs=(0,), weight=r.Binary(signs(9, 70), reals(9)))),
    "linear_stacked_rows": lambda: program((5, 12), r.Linear(inputs=(0,), weight=stacked(8, 3, 4, 4))),
    "affine": lambda: program((4, 3, 5), r.Affine(inputs=(0,), scale=reals(4), shift=reals(4))),
    "affine_scale_only": lambda: program((4,), r.Affine(inputs=(0,), scale=reals(4))),
    "prelu_per_channel": lambda: program((4, 3, 3), r.PReLU(inputs=(0,), slope=reals(4))),
    "prelu_shared": lambda: program((4, 3, 3), r.PReLU(inputs=(0,), slope=reals(1))),
    "global_max": lambda: program((4, 5, 6), r.AdaptivePool(inputs=(0,), kind="max", output=(1, 1))),
    "adaptive_uneven": lambda: program((4, 7, 10), r.AdaptivePool(inputs=(0,), kind="avg", output=(3, 4))),
    "adaptive_larger_than_input": lambda: program((2, 3, 3), r.AdaptivePool(inputs=(0,), kind="avg", output=(7, 7))),
    "adaptive_keeps_width": lambda: program((2, 6, 5), r.AdaptivePool(inputs=(0,), kind="avg", output=(2, 0))),
    "adaptive_1d": lambda: program((2, 11), r.AdaptivePool(inputs=(0,), kind="avg", output=(1, 4))),
    "mean_plane": lambda: program((4, 5, 6), r.Mean(inputs=(0,), dims=(1, 2))),
    "mean_kept": lambda: program((4, 5, 6), r.Mean(inputs=(0,), dims=(1, 2), keepdim=True)),
    "mean_outer": lambda: program((4, 5, 6), r.Mean(inputs=(0,), dims=(0,))),
    "mean_around": lambda: program((4, 5, 6), r.Mean(inputs=(0,), dims=(2, 0))),
    "mean_all": lambda: program((4, 5), r.Mean(inputs=(0,), dims=(0, 1))),
    "concat_channels": lambda: program(
        (3, 4, 5), r.Activation(inputs=(0,), function="relu"), r.Concat(inputs=(0, 1, 0), dim=0)
    ),
    "concat_middle": lambda: program(
        (3, 4, 5), r.Slice(inputs=(0,), dim=1, start=1, stop=3), r.Concat(inputs=(0, 1), dim=1)
    ),
    "slice_step": lambda: program((3, 10, 4), r.Slice(inputs=(0,), dim=1, start=1, stop=9, step=3)),
    "slice_to_the_end": lambda: program((6, 4), r.Slice(inputs=(0,), dim=0, start=2, stop=2**31 - 1)),
    "reshape": lambda: program((4, 3, 6), r.Reshape(inputs=(0,), shape=(2, -1, 6))),
    "flatten": lambda: program((4, 3, 6), r.Reshape(inputs=(0,), shape=(-1,))),
    "permute": lambda: program((4, 3, 6), r.Permute(inputs=(0,), dims=(2, 0, 1))),
    "channel_shuffle": lambda: program(
        (6, 3, 4), r.Reshape(inputs=(0,), shape=(2, 3, 3, 4)), r.Permute(inputs=(1,), dims=(1, 0, 2, 3)),
        r.Reshape(inputs=(2,), shape=(6, 3, 4)),
    ),
    "layer_norm_channels": lambda: program(
        (8, 3, 4), r.LayerNorm(inputs=(0,), dim=0, eps=1e-6, scale=reals(8), shift=reals(8))
    ),
    "layer_norm_last": lambda: program((3, 4, 8), r.LayerNorm(inputs=(0,), dim=2, eps=1e-5)),
    "layer_norm_of_many_lines": lambda: program(
        (9, 5, 29), r.LayerNorm(inputs=(0,), dim=0, eps=1e-6, scale=reals(9), shift=reals(9))
    ),
    "layer_norm_of_long_lines": lambda: program(
        (2, 3, 150), r.LayerNorm(inputs=(0,), dim=2, eps=1e-5, scale=reals(150), shift=reals(150))
    ),
    "layer_norm_between": lambda: program((3, 7, 70), r.LayerNorm(inputs=(0,), dim=1, eps=1e-5, shift=reals(7))),
    "softmax_of_many_lines": lambda: program((3, 6, 131), r.Softmax(inputs=(0,), dim=1)),
    "softmax_of_long_lines": lambda: program((2, 3, 77), r.Softmax(inputs=(0,), dim=2)),
    "mean_between": lambda: program((3, 6, 70), r.Mean(inputs=(0,), dims=(1,))),
    "mean_of_the_first_two": lambda: program((3, 6, 131), r.Mean(inputs=(0,), dims=(0, 1), keepdim=True)),
    "mean_of_lines_of_one": lambda: program((3, 1, 6, 5), r.Mean(inputs=(0,), dims=(0, 2))),
    "permute_runs": lambda: program((6, 4, 3, 5), r.Permute(inputs=(0,), dims=(1, 0, 2, 3))),
    "permute_ones": lambda: program((6, 1, 3, 1), r.Permute(inputs=(0,), dims=(3, 2, 1, 0))),
    "permute_everything_as_it_is": lambda: program((6, 3, 2), r.Permute(inputs=(0,), dims=(0, 1, 2))),
    "slice_step_of_the_last": lambda: program((2, 3, 20), r.Slice(inputs=(0,), dim=2, start=2, stop=19, step=3)),
    "global_max_of_long_rows": lambda: program((4, 5, 37), r.AdaptivePool(inputs=(0,), kind="max", output=(1, 1))),
    "prelu_of_long_rows": lambda: program((4, 3, 37), r.PReLU(inputs=(0,), slope=reals(4))),
    "upsample_many_columns": lambda: program((2, 3, 50), r.Upsample(inputs=(0,), mode="bilinear", output=(7, 131))),
    "upsample_nearest_many_columns": lambda: program(
        (2, 3, 50), r.Upsample(inputs=(0,), mode="nearest", output=(7, 131))
    ),
    "softmax": lambda: program((10,), r.Softmax(inputs=(0,), dim=0)),
    "softmax_channels": lambda: program((5, 3, 3), r.Softmax(inputs=(0,), dim=0)),
    "constant_scalar": lambda: program(
        (3, 4), r.Constant(inputs=(), value=np.array(2.5, np.float32)), r.Arithmetic(inputs=(0, 1), function="mul")
    ),
    "constant_result": lambda: program((3, 4), r.Constant(inputs=(), value=reals(2, 3))),
    "constant_reshaped": lambda: program(
        (4, 3, 3), r.Constant(inputs=(), value=reals(4)), r.Reshape(inputs=(1,), shape=(4, 1, 1)),
        r.Activation(inputs=(2,), function="sigmoid"), r.Arithmetic(inputs=(0, 3), function="mul"),
    ),
    "nothing": lambda: program((3, 4)),
    "output_in_the_middle": lambda: program(
        (4,), r.Activation(inputs=(0,), function="relu"), r.Activation(inputs=(1,), function="tanh"), output=1
    ),
    "fused_relu_with_gap": lambda: program(
        (4, 6, 6), scaled(conv(stacked(4, 2, 2, 2, 3, 3), padding=SAME)), r.Activation(inputs=(0,), function="sigmoid"),
        r.Activation(inputs=(1,), function="hardtanh", a=-0.5, b=0.75), r.Arithmetic(inputs=(2, 3), function="mul"),
    ),
    "residual": lambda: program(
        (4, 6, 6), scaled(conv(r.Dense(reals(4, 4, 3, 3)), padding=SAME)), r.Activation(inputs=(1,), function="relu"),
        r.Arithmetic(inputs=(0, 2), function="add"), r.Activation(inputs=(3,), function="relu"),
        r.Arithmetic(inputs=(4, 2), function="sub"), r.Arithmetic(inputs=(5, 5), function="mul"),
    ),
    "same_memory_two_shapes": lambda: program(  # the reshape is a view, so nothing may be overwritten
        (4, 4), r.Activation(inputs=(0,), function="tanh"), r.Permute(inputs=(1,), dims=(1, 0)),
        r.Reshape(inputs=(2,), shape=(1, 16)), r.Reshape(inputs=(2,), shape=(16, 1)),
        r.Arithmetic(inputs=(3, 4), function="add"),
    ),
    "view_of_an_overwritten_value": lambda: program(
        (2, 6), r.Activation(inputs=(0,), function="tanh"), r.Reshape(inputs=(1,), shape=(3, 4)),
        r.Activation(inputs=(1,), function="relu"), r.Activation(inputs=(2,), function="abs"),
        r.Reshape(inputs=(4,), shape=(2, 6)), r.Arithmetic(inputs=(3, 5), function="add"),
    ),
    "squeeze_excite": lambda: program(
        (8, 5, 5), r.Mean(inputs=(0,), dims=(1, 2), keepdim=True), conv_of(1, r.Dense(reals(2, 8, 1, 1))),
        r.Activation(inputs=(2,), function="silu"), conv_of(3, r.Dense(reals(8, 2, 1, 1))),
        r.Activation(inputs=(4,), function="hard_sigmoid"), r.Arithmetic(inputs=(5, 0), function="mul"),
    ),
    "levels_binary": lambda: program((7, 8, 8), scaled(conv(r.Binary(signs(6, 7, 3, 3)), padding=SAME, levels=FINE))),
    "levels_stacked": lambda: program(
        (8, 9, 9), scaled(conv(stacked(12, 2, 5, 4, 3, 3), padding=SAME, levels=r.Levels(0.05, signed=True)))
    ),
    "levels_no_scale": lambda: program((8, 6, 6), conv(stacked(8, 2, 4, 4, 3, 3, scale=False), levels=FINE)),
    "levels_groups": lambda: program(
        (8, 6, 6), scaled(conv(stacked(6, 2, 3, 2, 3, 3), groups=2, stride=(2, 1), padding=SAME, levels=FINE))
    ),
    "levels_1d": lambda: program((6, 12), conv(stacked(4, 2, 3, 3, 3), padding=(0, 0, 1, 1), levels=FINE)),
    "levels_linear": lambda: program(
        (70,), r.Linear(inputs=(0,), weight=r.Binary(signs(9, 70), reals(9)), levels=FINE)
    ),
    "levels_linear_rows": lambda: program(
        (5, 12), r.Linear(inputs=(0,), weight=stacked(8, 3, 4, 4), shift=reals(8), levels=FINE)
    ),
    "levels_chain": lambda: levels_chain(),
    "levels_residual": lambda: levels_residual(),
    "levels_of_two_kinds": lambda: program(
        (4, 6, 6), conv(r.Binary(signs(4, 4, 3, 3)), padding=SAME, levels=FINE),
        r.Activation(inputs=(1,), function="relu"),
        conv_of(2, r.Binary(signs(4, 4, 1, 1)), levels=FINE), conv_of(2, r.Binary(signs(4, 4, 1, 1)), levels=COARSE),
        conv_of(2, r.Binary(signs(4, 4, 1, 1)), levels=COARSE), r.Arithmetic(inputs=(3, 4), function="add"),
        r.Arithmetic(inputs=(6, 5), function="sub"),
    ),
    "levels_behind_a_curve": lambda: program(
        (4, 6, 6), conv(r.Binary(signs(4, 4, 3, 3)), levels=FINE), r.Activation(inputs=(1,), function="silu"),
        conv_of(2, r.Binary(signs(4, 4, 1, 1)), levels=r.Levels(0.1, signed=True)),
    ),
    "single_pixel_in_padding": lambda: program(
        (2, 1, 1), conv(r.Dense(reals(3, 2, 1, 1)), stride=(2, 1), padding=(1, 0, 0, 0))
    ),
}  # fmt: skip


def levels_chain() -> r.Program:
    """Layers with levels that follow each other, with limits, maxima and a reshape between them."""
    return program(
        (3, 16, 16), conv(r.Dense(reals(8, 3, 3, 3)), padding=SAME), r.Activation(inputs=(1,), function="relu"),
        conv_of(2, stacked(16, 2, 6, 4, 3, 3), padding=SAME, shift=reals(16), levels=FINE),
        r.Activation(inputs=(3,), function="relu6"),
        r.Pool(inputs=(4,), kind="max", kernel=(3, 3), stride=(2, 2), padding=(1, 1)),
        conv_of(5, stacked(12, 4, 6, 4, 3, 3), padding=SAME, levels=COARSE),
        r.Activation(inputs=(6,), function="hardtanh", a=-0.5, b=4.5),
        r.Pool(inputs=(7,), kind="max", kernel=(2, 2), stride=(2, 2)),
        r.Pool(inputs=(8,), kind="max", kernel=(2, 2), stride=(2, 2)), r.Reshape(inputs=(9,), shape=(-1,)),
        r.Linear(inputs=(10,), weight=stacked(20, 3, 7, 16), levels=r.Levels(0.07, signed=True)),
        r.Linear(inputs=(11,), weight=r.Dense(reals(4, 20))),
    )  # fmt: skip


def levels_residual() -> r.Program:
    """Values that are read as levels and as numbers: the sum of a residual block, and a maximum that is the result."""
    return program(
        (8, 9, 9), conv(r.Binary(signs(8, 8, 3, 3), reals(8)), padding=SAME, levels=r.Levels(0.03, signed=True)),
        r.Activation(inputs=(1,), function="relu"),
        conv_of(2, stacked(8, 2, 5, 4, 3, 3), padding=SAME, shift=reals(8), levels=COARSE),
        r.Activation(inputs=(3,), function="relu"),
        conv_of(4, stacked(8, 2, 5, 4, 3, 3), padding=SAME, shift=reals(8), levels=COARSE),
        r.Arithmetic(inputs=(5, 2), function="add"), r.Activation(inputs=(6,), function="relu"),
        conv_of(7, stacked(8, 2, 5, 4, 3, 3), padding=SAME, shift=reals(8), levels=COARSE),
        r.Pool(inputs=(8,), kind="max", kernel=(2, 2), stride=(2, 2)),
        conv_of(9, r.Binary(signs(8, 8, 1, 1)), levels=r.Levels(0.5, signed=True)),
        r.Arithmetic(inputs=(10, 9), function="add"),
    )  # fmt: skip


def conv_of(value: int, weight: r.Weight, **options: Any) -> r.Conv:
    return r.Conv(inputs=(value,), weight=weight, **options)


def shared(weight: r.Weight) -> r.Program:
    """One weight in three convolutions that differ in everything else."""
    return program(
        (6, 9, 9), r.Conv(inputs=(0,), weight=weight, padding=SAME, name="a"),
        r.Activation(inputs=(1,), function="relu"),
        r.Conv(inputs=(2,), weight=weight, scale=reals(6), shift=reals(6), stride=(2, 2), name="a"),
        r.Conv(inputs=(3,), weight=weight, shift=reals(6), padding=(2, 2, 2, 2), dilation=(2, 2), name="b"),
    )  # fmt: skip


def shared_linear(weight: r.Weight) -> r.Program:
    first = r.Linear(inputs=(0,), weight=weight, shift=reals(8))
    return program(
        (8,), first, r.Linear(inputs=(1,), weight=weight), r.Linear(inputs=(2,), weight=r.Dense(reals(8, 8)))
    )


FUNCTIONS: dict[r.ActivationKind, tuple[float, float]] = {
    "relu": (0, 0), "relu6": (0, 0), "leaky_relu": (0.01, 0), "hardtanh": (-1.5, 0.5), "sigmoid": (0, 0),
    "hard_sigmoid": (0, 0), "silu": (0, 0), "hard_swish": (0, 0), "gelu": (0, 0), "gelu_tanh": (0, 0), "tanh": (0, 0),
    "sign": (0, 0), "abs": (0, 0), "elu": (1.25, 0), "softplus": (2, 5), "mish": (0, 0),
    "exp": (0, 0), "log": (0, 0), "sqrt": (0, 0),
}  # fmt: skip


def everything() -> r.Program:
    """One network with an operation of every type, labels and preprocessing."""
    return r.Program(
        (3, 12, 12),
        (
            scaled(conv(r.Dense(reals(8, 3, 3, 3)), padding=SAME)),
            r.Activation(inputs=(1,), function="leaky_relu", a=0.1),
            r.Pool(inputs=(2,), kind="max", kernel=(3, 3), stride=(2, 2), padding=(1, 1), ceil_mode=True),
            r.Conv(inputs=(3,), weight=stacked(12, 2, 5, 4, 3, 3), padding=SAME, shift=reals(12), name="features.3.a"),
            r.PReLU(inputs=(4,), slope=reals(12)),
            r.Conv(inputs=(5,), weight=r.Binary(signs(12, 12, 3, 3)), padding=SAME, binary_input=True, name="f.4"),
            r.Affine(inputs=(6,), scale=reals(12), shift=reals(12)),
            r.Arithmetic(inputs=(7, 5), function="add"),
            r.LayerNorm(inputs=(8,), dim=0, eps=1e-6, scale=reals(12)),
            r.Upsample(inputs=(9,), mode="bilinear", output=(0, 0), factor=(1.5, 2.0)),
            r.Pad(inputs=(10,), mode="reflect", amounts=(1, 0, 2, -1)),
            r.Slice(inputs=(11,), dim=0, start=0, stop=6),
            r.Concat(inputs=(11, 12), dim=0),
            r.AdaptivePool(inputs=(13,), kind="avg", output=(2, 2)),
            r.Reshape(inputs=(14,), shape=(2, 9, 2, 2)),
            r.Permute(inputs=(15,), dims=(1, 0, 2, 3)),
            r.Mean(inputs=(16,), dims=(2, 3)),
            r.Reshape(inputs=(17,), shape=(-1,)),
            r.Constant(inputs=(), value=reals(18)),
            r.Arithmetic(inputs=(18, 19), function="mul"),
            r.Linear(inputs=(20,), weight=stacked(5, 3, 4, 6, values=True), name="classifier"),
            r.Softmax(inputs=(21,), dim=0),
        ),
        labels=("cat", "dog", "Käfer", "鳥", "frog"),
        preprocessing=r.Preprocessing((0.5, 0.25, 0.125), (0.5, 0.25, 0.75), (12, 12)),
    )  # fmt: skip


def large() -> r.Program:
    """Layers that several threads do together, with one between them that they do not."""
    return program(
        (32, 40, 36),
        r.Conv(inputs=(0,), weight=stacked(32, 2, 16, 16, 3, 3), padding=SAME),
        r.Activation(inputs=(1,), function="relu"),
        r.Conv(inputs=(2,), weight=stacked(32, 2, 16, 16, 3, 3), padding=SAME, shift=reals(32)),
        r.Arithmetic(inputs=(0, 3), function="add"),
        r.Activation(inputs=(4,), function="relu"),
        r.Pool(inputs=(5,), kind="max", kernel=(2, 2), stride=(2, 2)),
        r.Conv(inputs=(6,), weight=stacked(96, 2, 48, 16, 3, 3), padding=SAME),
        r.Conv(inputs=(7,), weight=r.Dense(reals(24, 96, 3, 3)), padding=SAME),
    )


def large_on_levels() -> r.Program:
    """The same of layers on levels, the first of which has to round its input; pools of floats, of levels, of both."""
    return program(
        (32, 72, 64),
        r.Conv(inputs=(0,), weight=stacked(32, 2, 16, 16, 3, 3), padding=SAME, levels=r.Levels(0.03, signed=True)),
        r.Activation(inputs=(1,), function="relu"),
        r.Pool(inputs=(2,), kind="max", kernel=(3, 3), stride=(1, 1), padding=(1, 1)),
        r.Conv(inputs=(3,), weight=stacked(32, 2, 16, 16, 3, 3), padding=SAME, levels=r.Levels(0.3)),
        r.Arithmetic(inputs=(3, 4), function="add"),
        r.Activation(inputs=(5,), function="relu"),
        r.Pool(inputs=(6,), kind="avg", kernel=(3, 3), stride=(2, 2)),
        r.Pool(inputs=(6,), kind="max", kernel=(2, 2), stride=(1, 1)),
        r.Conv(inputs=(8,), weight=stacked(64, 2, 32, 16, 3, 3), stride=(2, 2), padding=SAME, levels=r.Levels(3.0)),
        r.Conv(inputs=(9,), weight=stacked(64, 2, 32, 16, 3, 3), groups=2, levels=r.Levels(40.0, signed=True)),
        r.Reshape(inputs=(7,), shape=(-1,)),
        r.Reshape(inputs=(10,), shape=(-1,)),
        r.Concat(inputs=(11, 12), dim=0),
    )
