"""The C core through ctypes: declarations of csrc/subbit.h, and its errors as exceptions."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from ctypes import POINTER, byref, c_char, c_char_p, c_double, c_float, c_int32, c_size_t, c_uint64, c_void_p
from operator import index
from pathlib import Path
from typing import Final, SupportsIndex

from subbit.errors import ConfigError, FormatError, InputError, MissingDependency, SubbitError

MAX_RANK: Final = 6
FORMAT_VERSION: Final = "1.1"  # of the core that these declarations describe

_FILES: Final = {"win32": "subbit_core.dll", "darwin": "libsubbit_core.dylib"}


class Error(ctypes.Structure):
    """sb_error"""

    _fields_ = (("status", ctypes.c_int), ("op", c_int32), ("message", c_char * 240))


class Options(ctypes.Structure):
    """sb_options"""

    _fields_ = (
        ("input_rank", c_int32),
        ("input_shape", c_int32 * MAX_RANK),
        ("max_memory", c_uint64),
        ("max_work", c_uint64),
        ("isa", c_char_p),
    )


class CorePreprocessing(ctypes.Structure):
    """sb_preprocessing"""

    _fields_ = (
        ("channels", c_int32),
        ("height", c_int32),
        ("width", c_int32),
        ("mean", POINTER(c_float)),
        ("std", POINTER(c_float)),
    )


class OpTime(ctypes.Structure):
    """sb_op_time"""

    _fields_ = (("total", c_uint64), ("build", c_uint64), ("look_up", c_uint64), ("merge", c_uint64))


class CoreLimits(ctypes.Structure):
    """sb_limits"""

    _fields_ = (("multiply_adds", c_double), ("look_ups", c_double), ("popcounts", c_double))


Observer = ctypes.CFUNCTYPE(None, c_void_p, c_size_t, POINTER(c_float), c_int32, POINTER(c_int32))

_SHAPE = POINTER(c_int32)
_SIGNATURES: Final = {
    "sb_open": (ctypes.c_int, (c_void_p, c_size_t, POINTER(Options), POINTER(c_void_p), POINTER(Error))),
    "sb_close": (None, (c_void_p,)),
    "sb_input_shape": (c_int32, (c_void_p, _SHAPE)),
    "sb_output_shape": (c_int32, (c_void_p, _SHAPE)),
    "sb_value_shape": (c_int32, (c_void_p, c_size_t, _SHAPE)),
    "sb_op_count": (c_size_t, (c_void_p,)),
    "sb_op_kind": (c_char_p, (c_void_p, c_size_t)),
    "sb_op_name": (c_char_p, (c_void_p, c_size_t)),
    "sb_op_kernel": (c_char_p, (c_void_p, c_size_t)),
    "sb_label_count": (c_size_t, (c_void_p,)),
    "sb_label": (c_char_p, (c_void_p, c_size_t)),
    "sb_get_preprocessing": (None, (c_void_p, POINTER(CorePreprocessing))),
    "sb_arena_size": (c_size_t, (c_void_p,)),
    "sb_memory": (c_size_t, (c_void_p,)),
    "sb_work": (c_uint64, (c_void_p,)),
    "sb_context_create": (ctypes.c_int, (c_void_p, POINTER(c_void_p), POINTER(Error))),
    "sb_context_destroy": (None, (c_void_p,)),
    "sb_run": (ctypes.c_int, (c_void_p, c_void_p, c_size_t, c_void_p)),
    "sb_run_observed": (ctypes.c_int, (c_void_p, c_void_p, c_void_p, Observer, c_void_p)),
    "sb_run_timed": (ctypes.c_int, (c_void_p, c_void_p, c_size_t, c_void_p, POINTER(OpTime))),
    "sb_measure_limits": (ctypes.c_int, (c_void_p, POINTER(CoreLimits))),
    "sb_team_create": (ctypes.c_int, (c_void_p, c_int32, POINTER(c_void_p), POINTER(Error))),
    "sb_team_run": (ctypes.c_int, (c_void_p, c_void_p, c_size_t, c_void_p)),
    "sb_team_destroy": (None, (c_void_p,)),
    "sb_isa": (c_char_p, (c_void_p,)),
    "sb_features": (c_char_p, ()),
    "sb_version": (c_char_p, ()),
    "sb_status_name": (c_char_p, (ctypes.c_int,)),
}


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded core; $SUBBIT_LIBRARY names another build of it."""
    beside = Path(__file__).with_name(_FILES.get(sys.platform, "libsubbit_core.so"))
    path = Path(os.environ.get("SUBBIT_LIBRARY") or beside)
    if not path.exists():
        raise MissingDependency(f"the C core {path} is missing: run `make build`, or install subbit with pip")
    core = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(core, name)
        function.restype = result
        function.argtypes = arguments
    version = core.sb_version().decode()
    if version != FORMAT_VERSION:
        raise MissingDependency(f"the C core {path} is of version {version}, this is {FORMAT_VERSION}: build it again")
    return core


def check(status: int, error: Error, source: str) -> None:
    """Raise what a failed call of the core means to the caller; `source` names the file."""
    if status == 0:
        return
    kind = library().sb_status_name(status).decode()
    message = f"{source}: {error.message.decode(errors='replace')} ({kind})"
    if kind == "isa":
        raise ConfigError(message)
    if kind == "argument":
        raise InputError(message)
    if kind == "memory":
        raise SubbitError(message)
    raise FormatError(message)


def features() -> str:
    """Instruction sets that this machine offers, as the core sees them."""
    return str(library().sb_features().decode())


def open_model(
    address: int,
    size: int,
    input_shape: tuple[int, ...] | None,
    isa: str | None,
    source: str,
    max_memory: int | None = None,
    max_work: int | None = None,
) -> c_void_p:
    """sb_open on bytes that the caller keeps alive."""
    if isa is not None and not isinstance(isa, str):
        raise ConfigError(f"isa={isa!r}: a name is needed, such as 'portable' or 'avx2'")
    options = Options(isa=isa.encode() if isa is not None else None)
    for name, limit in (("max_memory", max_memory), ("max_work", max_work)):
        if limit is not None and not (isinstance(limit, SupportsIndex) and 1 <= index(limit) < 2**64):
            raise InputError(f"{name}={limit!r}: give a whole number, at least 1")
        setattr(options, name, 0 if limit is None else index(limit))
    if input_shape is not None:
        if not 1 <= len(input_shape) <= MAX_RANK:
            raise InputError(f"input shape {input_shape}: 1..{MAX_RANK} dimensions are possible, without the batch")
        if not all(isinstance(size, SupportsIndex) and 1 <= index(size) < 2**31 for size in input_shape):
            raise InputError(f"input shape {input_shape}: sizes are whole numbers from 1 to 2**31 - 1")
        options.input_rank = len(input_shape)
        options.input_shape[: len(input_shape)] = input_shape
    model, error = c_void_p(), Error()
    try:
        check(library().sb_open(address, size, byref(options), byref(model), byref(error)), error, source)
    except FormatError as failure:
        if input_shape is not None and library().sb_status_name(error.status) in (b"shape", b"limit"):
            raise InputError(f"{failure}; the network does not take an input of shape {input_shape}") from failure
        raise
    return model
