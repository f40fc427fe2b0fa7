"""Levels for the inputs of layers of ±1 filters, chosen from a few hundred images: the way to the integer kernels.

    program = calibrated(to_program(model, (3, 32, 32)), images)        # a NumPy array, or batches of them

Every value that such a layer reads gets 128 levels: 0…127 times a step where it cannot be negative (behind a ReLU and
the like), −64…63 times a step otherwise. The step minimises what rounding takes from an image, clipping included, on
average over the images and measured by what each of them has: activations have long tails, and levels spent on them,
or on a few images with large numbers, are missing where the others are. A layer whose input 128 levels cannot hold
stays in fp32. NumPy alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from subbit.errors import PackError
from subbit.format import encode
from subbit.format.limits import MAX_STEP, MIN_STEP
from subbit.records import (
    Activation,
    AdaptivePool,
    Arithmetic,
    Binary,
    Concat,
    Conv,
    Float32,
    Levels,
    Linear,
    Mean,
    Op,
    Pad,
    Permute,
    Pool,
    Program,
    Reshape,
    Slice,
    Softmax,
    Stacked,
    Upsample,
)

MIN_CHANNELS = 8  # of a group: below, the input is a picture or the layer depthwise, and fp32 is as fast
MAX_TAPS = 64  # sums of four channels over more taps may not fit 16 bits
SAMPLES = 2**16  # of every value, over all images
PER_IMAGE = 1024  # samples of one image at most
FINENESS = 0.04  # of the steps that are tried, as a logarithm
FAINT = 0.05  # images with less than this of the usual mean square count as if they had it
MOST_LOST = 0.08**2  # of an image's mean square, on average: beyond, a layer stays in fp32
BATCH = 8

Float64 = NDArray[np.float64]

_POSITIVE = ("relu", "relu6", "sigmoid", "hard_sigmoid", "abs", "softplus", "exp", "sqrt")
_MOVES = (Pool, AdaptivePool, Mean, Concat, Slice, Reshape, Permute, Upsample)  # no result is below all inputs


def calibrated(program: Program, images: Any) -> Program:
    """`program` with levels for every layer that gains from them; the others stay as they are.

    `images` are inputs as the network takes them: an array (N, *input_shape), or an iterable of such arrays (or
    tensors), alone or with labels behind them. Ranges are those of the fp32 network.
    """
    plain = without_levels(program)
    layers = [op for op in plain.weighted() if takes_levels(op)]
    if not layers:
        raise PackError(
            "no layer of this network can compute in integers: those of ±1 filters (slbf, bwn, binaryconnect) and at "
            f"least {MIN_CHANNELS} input channels can"
        )
    samples = measure(plain, {op.inputs[0] for op in layers}, images)
    positive = non_negative(plain)
    levels = {value: best_levels(sample, signed=not positive[value]) for value, sample in samples.items()}
    if too_wide := {value for value, sample in samples.items() if lost_share(sample, levels[value]) > MOST_LOST}:
        _tell_of(too_wide, layers)
    ops = [
        replace(op, levels=levels[op.inputs[0]]) if op in layers and op.inputs[0] not in too_wide else op
        for op in plain.ops
    ]
    return replace(plain, ops=tuple(ops))


def _tell_of(too_wide: set[int], layers: list[Conv | Linear]) -> None:
    """Says which layers stay in fp32 because of their input; a PackError where these are all."""
    left = [op.name or type(op).__name__ for op in layers if op.inputs[0] in too_wide]
    reason = "what reaches them differs too much in size, or from image to image, for 128 levels"
    if len(left) == len(layers):
        raise PackError(f"no layer of this network can compute in integers: {reason}")
    warnings.warn(f"{', '.join(left)}: computed in fp32; {reason}", stacklevel=4)


def without_levels(program: Program) -> Program:
    """The same network in fp32."""
    ops = [replace(op, levels=None) if isinstance(op, Conv | Linear) else op for op in program.ops]
    return replace(program, ops=tuple(ops))


def takes_levels(op: Op) -> bool:
    """Whether an operation is a layer that computes faster on levels."""
    if not isinstance(op, Conv | Linear) or op.binary_input:
        return False
    signs = isinstance(op.weight, Binary) or (isinstance(op.weight, Stacked) and op.weight.binary)
    shape = op.weight.shape
    return signs and shape[1] >= MIN_CHANNELS and int(np.prod(shape[2:])) <= MAX_TAPS


# --------------------------------------------------------------------------------------------------- ranges


@dataclass(frozen=True)
class Sample:
    """Numbers that a value takes."""

    numbers: Float32  # (images, drawn from each)
    squares: Float64  # (images): mean square of all that an image has
    lowest: Float64  # (images): of all that it has, at most 0
    highest: Float64  # and at least 0


def measure(program: Program, values: set[int], images: Any) -> dict[int, Sample]:
    """Numbers that each of these values takes, drawn evenly from every image."""
    from subbit.runtime import load

    net = load(encode(program))
    random = np.random.default_rng(0)
    drawn: dict[int, list[Float32]] = {value: [] for value in values}
    known: dict[int, list[Float64]] = {value: [] for value in values}
    for batch in _batches(images, program.input_shape):
        computed = [batch, *net.values(batch)]
        for value in sorted(values):
            flat = computed[value].reshape(len(batch), -1)
            if not np.isfinite(flat).all():
                raise PackError(f"calibration: value {value} of the network is infinite or NaN for one of the images")
            some = random.integers(0, flat.shape[1], (len(batch), min(PER_IMAGE, flat.shape[1])))
            drawn[value].append(np.take_along_axis(flat, some, axis=1))
            squares = np.square(flat, dtype=np.float64).mean(1)
            known[value].append(np.stack([squares, np.minimum(flat.min(1), 0), np.maximum(flat.max(1), 0)]))
    if not all(drawn.values()):
        raise PackError("calibration: there are no images to take the ranges of the activations from")
    return {
        value: Sample(_thinned(np.concatenate(drawn.pop(value))), *np.concatenate(known[value], axis=1))
        for value in sorted(values)
    }


def _thinned(numbers: Float32) -> Float32:
    """At most about `SAMPLES` of them, and at least one of each image."""
    images, each = numbers.shape
    return numbers[:, : max(1, min(each, SAMPLES // images))].copy()


def _batches(images: Any, shape: tuple[int, ...]) -> Iterator[Float32]:
    whole = hasattr(images, "shape")
    if not whole and not isinstance(images, Iterable):
        raise PackError(f"calibration images are a {type(images).__name__}: give an array, or batches of them")
    for part in [images] if whole else images:
        if isinstance(part, tuple | list) and part and getattr(part[0], "shape", ())[1:] == shape:
            part = part[0]  # a batch with its labels, as data loaders give them
        array = _as_float(part)
        if array.shape[1:] != shape:
            raise PackError(
                f"calibration images of shape {array.shape}: the network takes (N, {', '.join(map(str, shape))})"
            )
        for start in range(0, len(array), BATCH):
            yield array[start : start + BATCH]


def _as_float(part: Any) -> Float32:
    if isinstance(part, tuple | list | dict):
        raise PackError(f"calibration images come as a {type(part).__name__}: give arrays (N, …), or batches of them")
    array: NDArray[Any] = np.asarray(part.detach().cpu() if hasattr(part, "detach") else part)
    if array.dtype.kind != "f":
        raise PackError(f"calibration images of dtype {array.dtype}: floats are needed, normalised as for the network")
    return np.ascontiguousarray(array, dtype=np.float32)


# --------------------------------------------------------------------------------------------------- levels


def best_levels(sample: Sample, *, signed: bool) -> Levels:
    """The levels that take the smallest share of every image on average.

    The widest that are tried clip nothing, the closest clip what is above a tenth of what a usual image reaches.
    """
    unit = Levels(1.0, signed)
    reached = np.maximum(sample.highest / unit.highest, sample.lowest / unit.lowest if signed else 0.0)
    if not (some := reached > 0).any():
        return unit  # nothing but zeros
    widest, closest = float(reached.max()), float(np.median(reached[some])) / 10
    tried = np.geomspace(widest, closest, 2 + int(np.log(widest / closest) / FINENESS))
    steps = [Levels(float(step), signed) for step in np.clip(tried, MIN_STEP, MAX_STEP)]
    return min(steps, key=lambda levels: lost_share(sample, levels))


def lost_share(sample: Sample, levels: Levels) -> float:
    """Of an image's mean square, that of what rounding to the nearest levels changes; the mean of all images.

    Images that have next to nothing count little: a layer adds a shift to what it gets.
    """
    numbers, step, there = sample.numbers, np.float32(levels.step), sample.squares
    if not (some := there > 0).any():
        return 0.0
    error = np.clip(np.rint(numbers / step), levels.lowest, levels.highest) * step - numbers
    lost = np.mean(np.square(error, dtype=np.float64), axis=1)
    return float(np.mean(lost[some] / np.maximum(there[some], FAINT * np.median(there[some]))))


def non_negative(program: Program) -> list[bool]:
    """For every value whether its operation rules out negative numbers; the input counts as signed."""
    known = [False]
    for op in program.ops:
        inputs = all(known[i] for i in op.inputs)
        if isinstance(op, Activation):
            kept = op.function in _POSITIVE or (op.function == "hardtanh" and op.a >= 0)
            known.append(kept or (inputs and op.function in ("leaky_relu", "silu", "tanh", "hardtanh")))
        elif isinstance(op, Arithmetic):
            some = any(known[i] for i in op.inputs)
            known.append((inputs and op.function in ("add", "mul", "min")) or (some and op.function == "max"))
        elif isinstance(op, Pad):
            known.append(inputs and op.value >= 0)
        else:
            known.append(isinstance(op, Softmax) or (inputs and isinstance(op, _MOVES)))
    return known
