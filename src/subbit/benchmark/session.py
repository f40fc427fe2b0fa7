"""A whole benchmark of one packed network: who takes part, whether they agree, how long they take."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

import subbit
from subbit import host
from subbit.benchmark.layers import LayerTime, layer_times
from subbit.benchmark.measure import Spread, interleave, ratio
from subbit.benchmark.rivals import RUNTIMES, Contestant, Graphs, Precision
from subbit.calibration import calibrated, takes_levels, without_levels
from subbit.errors import ConfigError, PackError
from subbit.format import decode, encode
from subbit.records import Float32, Int64
from subbit.runtime import Limits, Network, load
from subbit.runtime.library import features

PACKAGES = ("numpy", "torch", "onnx", "onnxruntime", "openvino")
CALIBRATION_IMAGES = 16
CHECKED_IMAGES = 4
PACKED_INT8 = "subbit packed int8"

# Largest difference beside the largest output. fp32 differs by the order of sums; int8 by its 8 bits, so that a bound
# there only catches graphs that compute something else.
TOLERANCE = {"fp32": 1e-3, "int8": 0.5}


class Skipped(NamedTuple):
    """A contestant that does not take part, and why."""

    name: str
    reason: str


class Examples(NamedTuple):
    """Images as the network takes them, with their classes."""

    images: Float32
    labels: Int64
    calibration: Float32


@dataclass(frozen=True)
class Entrant:
    """A contestant as it is reported: without the function that runs it."""

    name: str
    runtime: str
    form: str
    precision: str
    bytes: int
    difference: float | None  # largest, beside the largest output of the packed network; None: not compared
    accuracy: float | None


@dataclass(frozen=True)
class Setting:
    """Seconds per call of every contestant, round by round, for one batch size and number of threads."""

    batch: int
    threads: int
    seconds: dict[str, list[float]]

    def latency(self, name: str) -> Spread:
        return Spread.of(self.seconds[name])

    def ratio(self, name: str, to: str | None = None) -> Spread:
        """How many times as long `name` takes as `to`, by default the packed network."""
        return ratio(self.seconds[name], self.seconds[to or next(iter(self.seconds))])

    def to_dict(self) -> dict[str, Any]:
        rows = {
            name: {"seconds": asdict(self.latency(name)), "times_packed": asdict(self.ratio(name))}
            for name in self.seconds
        }
        for name in self.seconds if PACKED_INT8 in self.seconds else ():
            rows[name]["times_packed_int8"] = asdict(self.ratio(name, PACKED_INT8))
        rounds = len(next(iter(self.seconds.values()), []))
        return {"batch": self.batch, "threads": self.threads, "rounds": rounds, "contestants": rows}


@dataclass
class Result:
    """Everything that was measured of one network."""

    machine: dict[str, Any]
    limits: Limits
    entrants: list[Entrant] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    layers: list[LayerTime] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "limits": self.limits._asdict(),
            "contestants": [asdict(entrant) for entrant in self.entrants],
            "settings": [setting.to_dict() for setting in self.settings],
            "skipped": [skipped._asdict() for skipped in self.skipped],
            "layers": [layer.to_dict() for layer in self.layers],
        }


def bench(
    net: Network,
    *,
    against: Sequence[str] = tuple(RUNTIMES),
    batches: Sequence[int] = (1,),
    threads: Sequence[int] = (1,),
    others: Sequence[Contestant] = (),
    seconds: float = 3.0,
    examples: Examples | None = None,
    layers: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Result:
    """Time `net` beside the runtimes `against`, about `seconds` for each batch size and number of threads.

    Outputs are compared first; a contestant whose answers differ is skipped, with the difference as its reason. With
    `examples` int8 is calibrated on real images and every contestant's accuracy is measured. `others` take
    part besides; they may be other networks, so their answers are not compared.
    """
    _check(against, batches, threads, seconds)
    result = Result(describe_machine(net), net.measure_limits())
    random = np.random.default_rng(0)

    def images(count: int) -> Float32:
        return like_pictures(random.standard_normal((count, *net.input_shape), dtype=np.float32))

    calibration = images(CALIBRATION_IMAGES) if examples is None else examples.calibration
    graphs = Graphs(without_levels(decode(net.data)), calibration)
    checked = images(CHECKED_IMAGES) if examples is None else examples.images[:CHECKED_IMAGES]
    for count in threads:
        progress(f"preparing contestants with {count} thread{'s' if count > 1 else ''}")
        contestants = [
            packed(net, count),
            *_other_form(net, graphs, count, result),
            *_rivals(graphs, against, count, result),
        ]
        agreeing = [*compare(contestants, checked, result), *((other, None) for other in others)]
        if not result.entrants:
            result.entrants = [_entrant(one, difference, examples) for one, difference in agreeing]
        for batch in batches:
            progress(f"batch {batch}, {count} thread{'s' if count > 1 else ''}: {len(agreeing)} contestants")
            result.settings.append(_measure([one for one, _ in agreeing], images(batch), count, seconds))
    if layers:
        progress("layers")
        result.layers = layer_times(net, images(4), result.limits, seconds)
    return result


def like_pictures(noise: Float32) -> Float32:
    """Noise with the spectrum of photographs, 1/f over height and width, and variance 1 in every channel.

    Ranges of activations that were calibrated on pictures do not hold for white noise.
    """
    if noise.ndim < 4:
        return noise
    height, width = noise.shape[-2:]
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = 1 / max(height, width)
    smooth = np.fft.irfft2(np.fft.rfft2(noise) / frequency, s=(height, width))
    spread = smooth.std(axis=(-2, -1), keepdims=True)
    return (smooth / np.where(spread > 0, spread, 1)).astype(np.float32)


def packed(net: Network, threads: int) -> Contestant:
    """The packed network itself."""
    integers = any(op.levels for op in decode(net.data).weighted())
    precision: Precision = "int8" if integers else "fp32"
    return Contestant("subbit", "packed", precision, len(net.data), lambda x: net(x, threads=threads))


def _other_form(net: Network, graphs: Graphs, threads: int, result: Result) -> Iterable[Contestant]:
    """The same network in integers, or in fp32 where it is in integers itself."""
    program = decode(net.data)
    if any(op.levels for op in program.weighted()):
        yield packed(load(encode(graphs.program), isa=net.isa), threads)
    elif any(map(takes_levels, program.ops)):
        try:
            levels = calibrated(program, graphs.calibration)
        except PackError as error:  # not on these images
            _skip(result, "subbit packed int8", str(error))
            return
        yield packed(load(encode(levels), isa=net.isa), threads)


def describe_machine(net: Network) -> dict[str, Any]:
    """Processor, instruction set and versions."""
    return {
        "cpu": host.processor(),
        "cpu_model": host.processor_model(),
        "cores": os.cpu_count(),
        "features": features(),
        "isa": net.isa,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "subbit": subbit.__version__,
        "commit": host.commit(),
        "versions": host.versions(PACKAGES),
    }


def compare(contestants: Iterable[Contestant], x: Float32, result: Result) -> list[tuple[Contestant, float]]:
    """The contestants whose answers agree with the first one in fp32, with their differences; others are `skipped`.

    The very first, the network that is asked about, takes part whatever it answers.
    """
    agreeing: list[tuple[Contestant, float]] = []
    everyone = list(contestants)
    expected = next(one for one in everyone if one.precision == "fp32").run(x)
    for one in everyone:
        difference = relative_difference(one.run(x), expected)
        if one is everyone[0] or difference <= TOLERANCE[one.precision]:
            agreeing.append((one, difference))
        else:
            _skip(result, one.name, f"its outputs differ by {difference:.1e} from the packed network's")
    return agreeing


def relative_difference(answer: Float32, expected: Float32) -> float:
    """Largest difference beside the largest expected value; infinite for other shapes and for NaN."""
    if answer.shape != expected.shape:
        return float("inf")
    largest = float(np.abs(expected).max(initial=0)) or 1.0
    difference = float(np.abs(answer - expected).max(initial=0)) / largest
    return difference if np.isfinite(difference) else float("inf")


def _rivals(graphs: Graphs, against: Sequence[str], threads: int, result: Result) -> Iterable[Contestant]:
    for name in against:
        runtime = RUNTIMES[name]
        if runtime.missing:
            needs = ", ".join(runtime.missing)
            _skip(result, name, f"{needs} not installed: pip install 'subbit[{runtime.extra}]'")
            continue
        try:
            yield from runtime.contestants(graphs, threads)
        except Exception as error:  # another runtime's failure must not end the benchmark of the others
            _skip(result, name, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")


def _skip(result: Result, name: str, reason: str) -> None:
    if not any(skipped.name == name for skipped in result.skipped):
        result.skipped.append(Skipped(name, reason))


def _measure(contestants: Sequence[Contestant], x: Float32, threads: int, seconds: float) -> Setting:
    calls = {one.name: lambda run=one.run: run(x) for one in contestants}
    return Setting(len(x), threads, interleave(calls, seconds=seconds, threads=threads))


def _entrant(one: Contestant, difference: float | None, examples: Examples | None) -> Entrant:
    accuracy = None if examples is None else _accuracy(one, examples)
    return Entrant(one.name, one.runtime, one.form, one.precision, one.bytes, difference, accuracy)


def _accuracy(one: Contestant, examples: Examples, batch: int = 32) -> float:
    hits = 0
    for start in range(0, len(examples.images), batch):
        part = slice(start, start + batch)
        hits += int((one.run(examples.images[part]).argmax(1) == examples.labels[part]).sum())
    return hits / len(examples.images)


def _check(against: Sequence[str], batches: Sequence[int], threads: Sequence[int], seconds: float) -> None:
    unknown = [name for name in against if name not in RUNTIMES]
    if unknown:
        raise ConfigError(f"unknown runtime {unknown[0]!r}: choose from {', '.join(RUNTIMES)}")
    if not batches or min(batches) < 1 or not threads or min(threads) < 1:
        raise ConfigError(f"batches {list(batches)} and threads {list(threads)}: positive numbers are needed")
    if not 0 < seconds < math.inf:
        raise ConfigError(f"seconds={seconds}: a positive time is needed")
