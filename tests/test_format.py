"""The file: everything comes back as it was stored, every bit is accounted for, and nothing else is accepted."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import subbit
from subbit import records as r
from subbit.format import decode, encode, sizes
from subbit.format.limits import CHECKED_FROM, HEADER_SIZE
from subbit.format.ops import LAYOUTS
from subbit.records import fold_scales
from tests.core_cases import CASES, conv, everything, program, reals, signs, stacked

DOCS = Path(__file__).parents[1] / "docs" / "format.md"


def same(a: Any, b: Any, tolerance: float = 0) -> bool:
    """Deep equality of records, arrays within a tolerance relative to their largest number."""
    if isinstance(a, np.ndarray):
        return bool(a.shape == b.shape and np.abs(a - b).max(initial=0) <= tolerance * np.abs(a).max(initial=0))
    if isinstance(a, r.Op | r.Dense | r.Binary | r.Stacked | r.Program | r.Preprocessing):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name), tolerance) for f in fields(a))
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b, [tolerance] * len(a)))
    if isinstance(a, float):
        return bool(np.float32(a) == np.float32(b))
    return bool(a == b)


def stored_form(network: r.Program) -> r.Program:
    """What a file keeps of a program, before numbers are rounded."""
    ops = [fold_scales(op) if isinstance(op, r.Conv | r.Linear) else replace(op, name="") for op in network.ops]
    return replace(network, ops=tuple(ops), output=network.output_value)


@pytest.mark.parametrize("name", [*CASES, "everything"])
def test_comes_back_exactly_with_f32(name: str) -> None:
    network = replace({**CASES, "everything": everything}[name](), storage="f32")
    assert same(stored_form(network), decode(encode(network)))


@pytest.mark.parametrize("name", [*CASES, "everything"])
def test_comes_back_rounded_with_f16(name: str) -> None:
    network = replace({**CASES, "everything": everything}[name](), storage="f16")
    data = encode(network)
    assert same(stored_form(network), decode(data), tolerance=2**-11)
    assert encode(decode(data)) == data


@pytest.mark.parametrize("storage", ["f16", "f32"])
@pytest.mark.parametrize("name", [*CASES, "everything"])
def test_sizes_sum_to_the_file(name: str, storage: r.Storage) -> None:
    network = replace({**CASES, "everything": everything}[name](), storage=storage)
    counted = sizes(network)
    assert counted.total == 8 * len(encode(network))
    assert counted.payload + counted.overhead == counted.total
    assert len(counted.ops) == len(network.ops)
    assert 0 <= counted.padding < 8 * 3 * len(network.ops) + 1


def test_every_operation_has_a_layout() -> None:
    kinds = {
        kind for kind in vars(r).values() if isinstance(kind, type) and issubclass(kind, r.Op) and kind is not r.Op
    }
    assert {layout.type for layout in LAYOUTS} == kinds
    assert kinds == {type(op) for op in everything().ops}  # and the file with everything has everything


def test_every_attribute_is_stored() -> None:
    for layout in LAYOUTS:
        stored = {name for name, _ in (*layout.required, *layout.optional)} | {"inputs", "name"}
        stored = {"count_include_pad" if name == "exclude_pad" else name for name in stored}
        assert stored == {f.name for f in fields(layout.type)}


# ------------------------------------------------------------------------------------------------- sizes


def test_stacked_weight_takes_what_it_must() -> None:
    weight = stacked(64, 2, 16, 32, 3, 3)
    layer = conv(weight, scale=reals(64), shift=reals(64), padding=(1, 1, 1, 1), name="layer1.0.conv1")
    size = sizes(program((64, 8, 8), layer, storage="f16")).ops[0]
    assert size.filters == 16 * 32 * 9
    assert size.indices == 64 * 2 * 4
    assert size.scales == 8 + 64 * 16 + 8 + 64 * 16  # k − 1 ratios and a channel scale per filter, with their exponents
    assert size.rest == 8 + 64 * 16


@pytest.mark.parametrize(
    "weight", [stacked(64, 2, 16, 32, 3, 3, fixed=True), stacked(64, 2, 1, 32, 3, 3), stacked(64, 1, 1, 64, 3, 3)]
)
def test_known_indices_take_nothing(weight: r.Stacked) -> None:
    assert sizes(program((64, 8, 8), conv(weight))).ops[0].indices == 0


def test_scales_that_are_not_there_take_nothing() -> None:
    layers = (stacked(8, 2, 4, 4, 3, 3, scale=False), r.Binary(signs(8, 8, 3, 3)))
    assert all(sizes(program((8, 8, 8), conv(weight))).ops[0].scales == 0 for weight in layers)


def test_the_size_of_scales_does_not_depend_on_their_values() -> None:
    ones, others = np.ones((8, 2), np.float32), reals(8, 2)
    for make in (lambda s: replace(stacked(8, 2, 4, 4, 3, 3), scale=s), lambda s: r.Binary(signs(8, 8, 3, 3), s[:, 0])):
        first, second = (sizes(program((8, 8, 8), conv(make(scale)))).ops[0] for scale in (ones, others))
        assert first.scales == second.scales > 0


def test_unused_filters_take_nothing() -> None:
    bank = signs(16, 4, 3, 3)
    weight = r.Stacked(bank, np.array([[3, 7], [7, 7]]), None)
    assert sizes(program((8, 8, 8), conv(weight))).ops[0].filters == 2 * 4 * 9


@pytest.mark.parametrize("name", [name for name in CASES if "shared" in name and name != "prelu_shared"])
def test_a_shared_weight_is_stored_once(name: str) -> None:
    first, *others = (op for op in sizes(CASES[name]()).ops if op.filters)
    network = decode(encode(CASES[name]()))
    users = [op for op in network.weighted() if op.weight is next(network.weighted()).weight]
    assert first.filters > 0
    assert len(users) == (2 if "linear" in name else 3)
    assert len(others) == len(list(network.weighted())) - len(users)  # equal numbers in another object are stored again


def resnet18(f1: float, f2: float) -> r.Program:
    """Sizes of a ResNet-18 for CIFAR-10: 20 convolutions, all but the first stacked, BatchNorm folded, a classifier."""
    ops: list[r.Op] = []

    def add(name: str, source: int, inputs: int, out: int, kernel: int, stride: int) -> int:
        blocks = round(1 / f1)
        weight: r.Weight = stacked(out, blocks, max(1, round(f2 * out)), inputs // blocks, kernel, kernel)
        if not ops:
            weight = r.Dense(reals(out, inputs, kernel, kernel))
        pad = (kernel // 2,) * 4
        ops.append(
            r.Conv(
                inputs=(source,), weight=weight, scale=reals(out), shift=reals(out), padding=pad, name=name,
                stride=(stride, stride),
            )
        )  # fmt: skip
        return len(ops)

    def plain(op: r.Op) -> int:
        ops.append(op)
        return len(ops)

    value = plain(r.Activation(inputs=(add("conv1", 0, 4, 64, 3, 1),), function="relu"))
    ops[0] = replace(ops[0], weight=r.Dense(reals(64, 3, 3, 3)))  # type: ignore[call-arg]
    width = 64
    for stage, out in enumerate((64, 128, 256, 512), 1):
        for block in range(2):
            stride = 2 if stage > 1 and block == 0 else 1
            path = f"layer{stage}.{block}"
            first = plain(r.Activation(inputs=(add(f"{path}.conv1", value, width, out, 3, stride),), function="relu"))
            second = add(f"{path}.conv2", first, out, out, 3, 1)
            shortcut = add(f"{path}.shortcut.0", value, width, out, 1, stride) if stride == 2 else value
            total = plain(r.Arithmetic(inputs=(second, shortcut), function="add"))
            value = plain(r.Activation(inputs=(total,), function="relu"))
            width = out
    value = plain(r.Mean(inputs=(value,), dims=(1, 2)))
    plain(r.Linear(inputs=(value,), weight=r.Dense(reals(10, 512)), shift=reals(10), name="fc"))
    return r.Program((3, 32, 32), tuple(ops))


@pytest.mark.parametrize(("f2", "ratio"), [(1 / 2, 110), (1 / 4, 195), (1 / 8, 320)])
def test_resnet18_ratios(f2: float, ratio: float) -> None:
    network = resnet18(1 / 2, f2)
    counted = sizes(network)
    assert 44_734_248 / (counted.total / 8) >= ratio
    assert counted.overhead <= 0.01 * counted.payload + 8 * 512


def test_overhead_of_a_small_deep_network() -> None:
    ops: list[r.Op] = []
    for i in range(20):
        ops.append(
            conv(stacked(16, 2, 4, 8, 3, 3), shift=reals(16), padding=(1, 1, 1, 1), name=f"layer{i // 6}.{i}.conv")
        )
        ops.append(r.Activation(inputs=(2 * i + 1,), function="relu"))
    counted = sizes(program((16, 8, 8), *ops, storage="f16"))
    assert counted.overhead <= 0.01 * counted.payload + 8 * 512


# ----------------------------------------------------------------------------------------- real numbers


@given(st.floats(-44, 30).map(lambda exponent: 10.0**exponent if exponent > -37 else 1e-37))
def test_f16_keeps_its_digits_at_any_magnitude(magnitude: float) -> None:
    values = (reals(50) * np.float32(magnitude)).astype(np.float32)
    values[np.abs(values) < 1e-3 * np.abs(values).max()] = 0
    (op,) = decode(encode(program((50,), r.Affine(inputs=(0,), scale=values), storage="f16"))).ops
    assert isinstance(op, r.Affine)
    assert op.scale is not None
    assert np.all(np.abs(op.scale - values) <= 2.0**-11 * np.abs(values))


def test_f16_rounding_up_to_a_power_of_two_is_stable() -> None:
    values = np.array([2 - 1e-7, 2.0**-20], np.float32)
    data = encode(program((2,), r.Affine(inputs=(0,), scale=values), storage="f16"))
    (op,) = decode(data).ops
    assert isinstance(op, r.Affine)
    assert op.scale is not None
    assert op.scale.tolist() == [2.0, 2.0**-20]
    assert encode(decode(data)) == data


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("storage", ["f16", "f32"])
def test_nan_and_infinity_name_the_layer(bad: float, storage: r.Storage) -> None:
    shift = reals(4)
    shift[2] = bad
    layer = conv(r.Dense(reals(4, 3, 1, 1)), shift=shift, name="features.7")
    with pytest.raises(subbit.PackError, match=r"features\.7.*NaN or infinity"):
        encode(program((3, 2, 2), layer, storage=storage))


IMPOSSIBLE: dict[str, tuple[Callable[[], r.Program], str]] = {
    "later_value": (lambda: program((3,), r.Softmax(inputs=(1,), dim=0)), "reads value 1"),
    "negative_dim": (lambda: program((3,), r.Softmax(inputs=(0,), dim=-1)), "dimension -1"),
    "zero_in_shape": (lambda: program((3,), r.Reshape(inputs=(0,), shape=(0, -1))), "size 0"),
    "inputs": (lambda: program((3,), r.Arithmetic(inputs=(0,), function="add")), "1 inputs"),
    "scale_length": (lambda: program((3, 1, 1), conv(r.Dense(reals(4, 3, 1, 1)), scale=reals(3))), "4 output channels"),
    "infinite_slope": (lambda: program((3,), r.Activation(inputs=(0,), function="elu", a=np.inf)), "not a finite"),
    "factor": (
        lambda: program((1, 2, 2), r.Upsample(inputs=(0,), mode="nearest", output=(0, 0), factor=(-1.0, 2.0))),
        "factor",
    ),
    "name_length": (lambda: program((3, 1, 1), conv(r.Dense(reals(4, 3, 1, 1)), name="x" * 256)), "255 bytes"),
    "label": (lambda: program((3,), labels=("a\0b",)), "NUL"),
    "deviation": (lambda: program((3,), preprocessing=r.Preprocessing((0.5,), (0.0,), (1, 1))), "none of them 0"),
    "output": (lambda: program((3,), output=1), "output value 1"),
    "input_shape": (lambda: program((3, 0)), "input shape"),
    "three_dimensional": (lambda: program((3, 1, 1), conv(r.Dense(reals(2, 3, 1, 1, 1)))), "1-d and 2-d"),
    "operations": (lambda: program((3,), *[r.Softmax(inputs=(0,), dim=0)] * 16385), "16385 operations"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_program_is_refused(name: str) -> None:
    build, message = IMPOSSIBLE[name]
    with pytest.raises(subbit.PackError, match=message):
        encode(build())


# ------------------------------------------------------------------------------------------------ damage


def resealed(data: bytes) -> bytes:
    """The same bytes with a length and a checksum that fit."""
    head = bytearray(data[:HEADER_SIZE])
    struct.pack_into("<I", head, 8, len(data))
    data = bytes(head) + data[HEADER_SIZE:]
    return data[:12] + struct.pack("<I", zlib.crc32(data[CHECKED_FROM:])) + data[CHECKED_FROM:]


def changed(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


FOREIGN = {
    "empty": (b"", "not a .sbit file"),
    "other_file": (b"PK\x03\x04" + bytes(60), "not a .sbit file"),
    "header_only": (b"SBIT\xff\xfe\x01\x00", "truncated"),
    "big_endian": (changed(encode(everything()), 4, b"\xfe\xff"), "big-endian"),
    "newer_major": (changed(encode(everything()), 6, b"\x02"), "version 2.0"),
    "older_major": (changed(encode(everything()), 6, b"\x00"), "version 0.0"),
    "newer_minor": (changed(encode(everything()), 7, b"\x01"), "version 1.1"),
    "truncated": (encode(everything())[:-1], "truncated"),
    "trailing": (encode(everything()) + b"\0", "trailing bytes"),
    "flipped_bit": (changed(encode(everything()), 700, b"\xa5"), "checksum"),
    "section_too_long": (resealed(changed(encode(everything()), 16, b"\xff\xff")), "section"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_file_is_refused_by_both_readers(name: str) -> None:
    data, message = FOREIGN[name]
    with pytest.raises(subbit.FormatError, match=message):
        decode(data)
    with pytest.raises(subbit.FormatError, match=message):
        subbit.load(data)


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_both_readers_agree_on_damage_behind_the_checksum(position: int, flip: int) -> None:
    data = encode(replace(everything(), storage="f32" if flip & 1 else "f16"))
    at = CHECKED_FROM + position % (len(data) - CHECKED_FROM)
    damaged = resealed(changed(data, at, bytes([data[at] ^ flip])))
    try:
        network = decode(damaged)
    except subbit.FormatError:
        with pytest.raises(subbit.FormatError):
            subbit.load(damaged)
        return
    try:  # the core also checks shapes
        net = subbit.load(damaged)
    except subbit.FormatError as error:
        assert "shape" in str(error) or "limit" in str(error)  # noqa: PT017
        return
    assert len(net.operations) == len(network.ops)


# --------------------------------------------------------------------------------------- docs/format.md


def test_worked_example_of_the_description() -> None:
    block = DOCS.read_text(encoding="utf-8").split("```sbit\n")[1].split("```")[0]
    data = bytes.fromhex(" ".join(line[:20] for line in block.splitlines()))
    network = decode(data)
    assert encode(network) == data
    layer = network.ops[0]
    assert isinstance(layer, r.Conv)
    assert isinstance(layer.weight, r.Stacked)
    assert layer.name == "conv"
    assert layer.weight.bank.reshape(2, 4).tolist() == [[1, -1, 1, 1], [-1, -1, 1, -1]]
    assert layer.weight.index.tolist() == [[0, 1], [1, 1]]
    assert network.labels == ("cat", "dog")
    x = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    assert subbit.load(data).values(x)[0].ravel().tolist() == [19, -14.5]


def test_description_names_every_operation_and_choice() -> None:
    from typing import get_args

    text = DOCS.read_text(encoding="utf-8")
    for layout in LAYOUTS:
        assert f"| {layout.code} | {layout.type.__name__} |" in text
    assert ", ".join(get_args(r.ActivationKind)) in " ".join(text.split())
