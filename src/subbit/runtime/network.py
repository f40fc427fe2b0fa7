"""A packed network as a function of arrays."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from ctypes import byref, c_int32, c_void_p
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from subbit.errors import FormatError, InputError
from subbit.records import Float32, Preprocessing, Shape
from subbit.runtime.library import (
    MAX_RANK,
    CoreLimits,
    CorePreprocessing,
    Error,
    Observer,
    OpTime,
    check,
    library,
    open_model,
)


class Operation(NamedTuple):
    """One operation of a loaded network."""

    kind: str  # the name of its record: "Conv", "Pool", …
    name: str  # path of the module it came from, "" where the file has none
    kernel: str  # the kernel that the core chose, "" where there is no choice
    shape: Shape  # of its value, without batch


class Times(NamedTuple):
    """Seconds that one operation takes per image; the stages are those of the kernels that have them."""

    total: float
    build: float  # tables of partial sums
    look_up: float
    merge: float  # scales, activation, and the way to the output


class Limits(NamedTuple):
    """Multiply-adds per second that one core could reach with a network's instruction set; 0 where unknown."""

    multiply_adds: float  # as fused multiply-adds
    look_ups: float  # of ±1 weights, as look-ups that stand for four each
    popcounts: float  # of ±1 weights with signs, as counts of bits that differ


def load(
    file: str | os.PathLike[str] | bytes | bytearray | memoryview,
    *,
    input_shape: Shape | None = None,
    isa: str | None = None,
    max_memory: int | None = None,
    max_work: int | None = None,
) -> Network:
    """A network from a `.sbit` file or its bytes.

        net = subbit.load("net.sbit")
        net = subbit.load("net.sbit", input_shape=(3, 256, 256))     # another picture size, where the network allows it

    `isa` forces a row of the kernel table ("portable", "avx2", …); by default the best one of this machine runs,
    or the one that $SUBBIT_ISA names. A file of a stranger may describe a network of any size: `max_memory` (bytes) and
    `max_work` (multiply-adds, see `Network.work`) refuse it before it runs.
    """
    if isinstance(file, bytes | bytearray | memoryview):
        data, source = bytes(file), "network"
    else:
        data, source = _read(file), os.fspath(file)
    return Network(data, input_shape=input_shape, isa=isa, max_memory=max_memory, max_work=max_work, source=source)


def _read(file: str | os.PathLike[str]) -> bytes:
    if not isinstance(file, str | os.PathLike):
        raise InputError(f"load takes the path of a .sbit file or its bytes, got {type(file).__name__}")
    try:
        return Path(file).read_bytes()
    except (OSError, ValueError) as error:  # a ValueError: a path with a NUL
        raise FormatError(f"cannot read {os.fspath(file)!r}: {getattr(error, 'strerror', None) or error}") from error


class Network:
    """A loaded network. Calls are thread-safe and release the GIL; use `load` to make one."""

    def __init__(
        self,
        data: bytes,
        *,
        input_shape: Shape | None = None,
        isa: str | None = None,
        max_memory: int | None = None,
        max_work: int | None = None,
        source: str = "network",
    ) -> None:
        self._data = data  # used in place by the core
        self._arguments = (input_shape, isa, source)
        address = np.frombuffer(data, np.uint8).ctypes.data if data else ctypes.addressof(ctypes.c_char())
        self._model = open_model(address, len(data), input_shape, isa, source, max_memory, max_work)
        self._free: list[c_void_p] = []  # contexts that nobody uses at the moment
        self._lock = threading.Lock()
        self._teams: dict[tuple[int, int], list[c_void_p]] = {}  # (process, threads): teams that nobody uses
        # not at exit: a daemon thread may still be running the network then
        weakref.finalize(self, _close, self._model, self._free, self._teams, data).atexit = False
        core = library()
        self.input_shape: Shape = self._shape(core.sb_input_shape)
        self.output_shape: Shape = self._shape(core.sb_output_shape)
        self.isa: str = core.sb_isa(self._model).decode()
        self.labels: tuple[str, ...] = tuple(
            core.sb_label(self._model, i).decode() for i in range(core.sb_label_count(self._model))
        )
        self.preprocessing: Preprocessing | None = self._preprocessing()

    def __repr__(self) -> str:
        return f"Network({self._arguments[2]!r}, {self.input_shape} -> {self.output_shape}, {self.isa})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._data, *self._arguments)

    def __call__(self, x: Any, *, threads: int = 1) -> Float32:
        """Outputs of a batch (N, *input_shape) or of one input without batch.

        `x` is a float array, or anything that turns into one (`__array__`, DLPack). A batch is spread over
        `threads`; so is a single input of which the layers are large enough.
        """
        batch, single = self._batch(x)
        out = np.empty((len(batch), *self.output_shape), np.float32)
        count = _thread_count(threads)
        if count == 1 or not len(batch):
            self._run(batch, out)
        else:
            self._run_team(batch, out, count)
        return out[0] if single else out

    def predict(self, x: Any, *, threads: int = 1) -> NDArray[np.int64]:
        """The class of each input: where the output is largest along its first dimension."""
        out = self(x, threads=threads)
        if not self.output_shape:
            raise InputError("predict needs an output with a dimension of classes, this network gives single numbers")
        return np.asarray(out.argmax(axis=-len(self.output_shape)), dtype=np.int64)

    def values(self, x: Any) -> list[Float32]:
        """What every operation computes, in order, without the fusions of a normal run."""
        batch, single = self._batch(x)
        operations = self.operations
        stacks = [np.empty((len(batch), *operation.shape), np.float32) for operation in operations]
        image = 0

        def observe(_: Any, op: int, value: Any, rank: int, shape: Any) -> None:
            flat = np.ctypeslib.as_array(value, (stacks[op][image].size,))
            stacks[op][image] = flat.reshape(stacks[op].shape[1:])

        observer = Observer(observe)
        context = self._take()
        try:
            for image in range(len(batch)):
                library().sb_run_observed(context, batch[image].ctypes.data, None, observer, None)
        finally:
            self._give(context)
        return [stack[0] if single else stack for stack in stacks]

    def times(self, x: Any) -> list[Times]:
        """Where the time of a run goes: for every operation its share per image. Costs a little time itself."""
        batch, _ = self._batch(x)
        out = np.empty((len(batch), *self.output_shape), np.float32)
        spent = (OpTime * len(self.operations))()
        context = self._take()
        try:
            library().sb_run_timed(context, batch.ctypes.data, len(batch), out.ctypes.data, spent)
        finally:
            self._give(context)
        return [Times(*(getattr(op, stage) / 1e9 / max(1, len(batch)) for stage in Times._fields)) for op in spent]

    def measure_limits(self) -> Limits:
        """What one core could reach with this network's instruction set, measured in some milliseconds."""
        limits = CoreLimits()
        library().sb_measure_limits(self._model, byref(limits))
        return Limits(limits.multiply_adds, limits.look_ups, limits.popcounts)

    @property
    def operations(self) -> tuple[Operation, ...]:
        core = library()
        return tuple(
            Operation(
                core.sb_op_kind(self._model, i).decode(),
                core.sb_op_name(self._model, i).decode(),
                core.sb_op_kernel(self._model, i).decode(),
                self._shape(lambda model, dims, value=i + 1: core.sb_value_shape(model, value, dims)),
            )
            for i in range(core.sb_op_count(self._model))
        )

    @property
    def data(self) -> bytes:
        """The file that this network was loaded from."""
        return self._data

    @property
    def memory(self) -> int:
        """Bytes taken to load this network and run it in one thread: the file, the core's tables, one context."""
        return len(self._data) + int(library().sb_memory(self._model))

    @property
    def work(self) -> int:
        """Multiply-adds of one input at most; an element that is moved or goes through a function counts as one."""
        return int(library().sb_work(self._model))

    # -- inside ---------------------------------------------------------------------------------------

    def _shape(self, ask: Any) -> Shape:
        dims = (c_int32 * MAX_RANK)()
        rank = ask(self._model, dims)
        return tuple(dims[:rank])

    def _preprocessing(self) -> Preprocessing | None:
        stored = CorePreprocessing()
        library().sb_get_preprocessing(self._model, byref(stored))
        if stored.channels == 0:
            return None
        mean, std = (tuple(map(float, numbers[: stored.channels])) for numbers in (stored.mean, stored.std))
        return Preprocessing(mean, std, (stored.height, stored.width))

    def _batch(self, x: Any) -> tuple[Float32, bool]:
        """`x` as contiguous float32 (N, *input_shape), and whether it came without N."""
        array = _as_array(x)
        if array.dtype.kind in "iub":
            raise InputError(
                f"input of dtype {array.dtype}: the network takes floats; scale and normalise first, for pictures "
                "(x / 255 - mean) / std"
            )
        if array.dtype.kind != "f":
            raise InputError(f"input of dtype {array.dtype}: float32, float64 and float16 are possible")
        single = array.shape == self.input_shape
        if not single and array.shape[1:] != self.input_shape:
            raise InputError(
                f"input of shape {array.shape}: this network takes (N, {', '.join(map(str, self.input_shape))}); "
                "load(file, input_shape=...) opens it for another size"
            )
        if single:
            array = array[None]
        if array.dtype != np.float32:
            with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, as in PyTorch
                array = array.astype(np.float32)
        return np.ascontiguousarray(array), single

    def _run(self, batch: Float32, out: Float32) -> None:
        context = self._take()
        try:
            library().sb_run(context, _address(batch), len(batch), _address(out))
        finally:
            self._give(context)

    def _take(self) -> c_void_p:
        with self._lock:
            if self._free:
                return self._free.pop()
        context, error = c_void_p(), Error()
        check(library().sb_context_create(self._model, byref(context), byref(error)), error, self._arguments[2])
        return context

    def _give(self, context: c_void_p) -> None:
        with self._lock:
            self._free.append(context)

    def _run_team(self, batch: Float32, out: Float32, threads: int) -> None:
        key = os.getpid(), threads  # a team's threads do not follow into a forked process
        with self._lock:
            waiting = self._teams.setdefault(key, [])
            team = waiting.pop() if waiting else None
        if team is None:
            team, error = c_void_p(), Error()
            check(library().sb_team_create(self._model, threads, byref(team), byref(error)), error, self._arguments[2])
        try:
            library().sb_team_run(team, _address(batch), len(batch), _address(out))
        finally:
            with self._lock:
                waiting.append(team)


def _thread_count(threads: Any) -> int:
    """`threads` as a number. Asking whether it is a `SupportsIndex` would take longer than a small network."""
    try:
        count = index(threads)
    except TypeError:
        count = 0
    if count < 1:
        raise InputError(f"threads={threads!r}: give a whole number, at least 1")
    return count


def _as_array(x: Any) -> NDArray[Any]:
    try:
        if not hasattr(x, "__array__") and hasattr(x, "__dlpack__"):
            return np.from_dlpack(x)
        return np.asarray(x)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InputError(
            f"{type(x).__name__} does not turn into an array: {error}; for a tensor pass x.detach().cpu().float()"
        ) from error


def _address(array: Float32) -> int:
    """Where the numbers are. The buffer protocol says it in a third of the time of `array.ctypes.data`."""
    if array.size and array.flags.writeable:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    return array.ctypes.data


def _rebuild(data: bytes, input_shape: Shape | None, isa: str | None, source: str) -> Network:
    return Network(data, input_shape=input_shape, isa=isa, source=source)


def _close(
    model: c_void_p, contexts: list[c_void_p], teams: dict[tuple[int, int], list[c_void_p]], data: bytes
) -> None:
    """Free the core's side; `data` is an argument so that the bytes outlive the model."""
    for (process, _), waiting in teams.items():
        for team in waiting if process == os.getpid() else ():
            library().sb_team_destroy(team)
    for context in contexts:
        library().sb_context_destroy(context)
    library().sb_close(model)
