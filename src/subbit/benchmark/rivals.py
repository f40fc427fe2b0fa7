"""The contestants: the packed network, and the same network in other runtimes.

Every runtime gets the network twice: `dense` has all weights written out, as if it had never been compressed;
`stacked` keeps the shared filters and the merge. Runtimes that have 8-bit integers get both in int8 as well: ONNX
Runtime's static quantisation, calibrated on a few images, per channel. OpenVINO reads the same quantised graph.
"""

from __future__ import annotations

import importlib.util
import logging
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from subbit.records import Float32, Program, Stacked

if TYPE_CHECKING:
    import onnx

Form = Literal["packed", "dense", "stacked"]
Precision = Literal["fp32", "int8"]
Run = Callable[[Float32], Float32]


@dataclass(frozen=True)
class Contestant:
    """A network in a runtime, ready to run."""

    runtime: str
    form: Form
    precision: Precision
    bytes: int  # of its file; of its weights where a runtime has none
    run: Run

    @property
    def name(self) -> str:
        return f"{self.runtime} {self.form} {self.precision}"


class Graphs:
    """A network as ONNX models, each made when first asked for and then kept."""

    def __init__(self, program: Program, calibration: Float32) -> None:
        self.program = program
        self.calibration = calibration
        self._files: dict[tuple[str, str], bytes] = {}
        stacked = any(isinstance(op.weight, Stacked) for op in program.weighted())
        self.forms: tuple[Literal["dense", "stacked"], ...] = ("dense", "stacked") if stacked else ("dense",)

    def model(self, form: Literal["dense", "stacked"], precision: Precision) -> bytes:
        """The file of this form, as bytes."""
        if (form, precision) not in self._files:
            from subbit.export import to_onnx

            model = to_onnx(self.program, form)
            self._files[form, precision] = (
                model.SerializeToString() if precision == "fp32" else quantised(model, self.calibration)
            )
        return self._files[form, precision]


def quantised(model: onnx.ModelProto, images: Float32) -> bytes:
    """The model with 8-bit weights (per channel) and activations, ranges taken from `images`."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # has no types
        def __init__(self) -> None:
            self._left = iter(images)

        def get_next(self) -> dict[str, Float32] | None:
            image = next(self._left, None)
            return None if image is None else {"input": image[None]}

    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # advice about shape inference, which the exported graphs do not need
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, "fp32.onnx"), Path(folder, "int8.onnx")
            onnx.save(model, source)
            quantize_static(
                source,
                target,
                Reader(),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
            return target.read_bytes()
    finally:
        logging.disable(disabled)


def in_torch(graphs: Graphs, threads: int) -> Iterator[Contestant]:
    """Eager PyTorch in fp32; its int8 kernels want models converted by hand."""
    import torch

    from subbit.benchmark.eager import EagerNetwork

    torch.set_num_threads(threads)
    for form in graphs.forms:
        network = EagerNetwork(graphs.program, form)
        yield Contestant("torch", form, "fp32", network.bytes, network)


def in_onnxruntime(graphs: Graphs, threads: int) -> Iterator[Contestant]:
    for form in graphs.forms:
        for precision in _PRECISIONS:
            data = graphs.model(form, precision)
            yield Contestant("onnxruntime", form, precision, len(data), _onnxruntime_session(data, threads))


def _onnxruntime_session(data: bytes, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def run(x: Float32) -> Float32:
        return np.asarray(session.run(None, {"input": x})[0])

    return run


def in_openvino(graphs: Graphs, threads: int) -> Iterator[Contestant]:
    precisions = _PRECISIONS if importlib.util.find_spec("onnxruntime") else ("fp32",)
    for form in graphs.forms:
        for precision in precisions:
            data = graphs.model(form, precision)
            yield Contestant("openvino", form, precision, len(data), _openvino_request(data, threads))


def _openvino_request(data: bytes, threads: int) -> Run:
    import openvino

    settings: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",  # or it computes in bf16 where the processor has it
    }
    core = openvino.Core()
    request = core.compile_model(core.read_model(data), "CPU", settings).create_infer_request()

    def run(x: Float32) -> Float32:
        return np.array(next(iter(request.infer({0: x}).values())))

    return run


_PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")


@dataclass(frozen=True)
class Runtime:
    """How to get contestants of a runtime, the packages it needs, and the extra of subbit that has them."""

    packages: tuple[str, ...]
    contestants: Callable[[Graphs, int], Iterator[Contestant]]
    extra: str = "bench"

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name in self.packages if importlib.util.find_spec(name) is None)


RUNTIMES = {
    "torch": Runtime(("torch",), in_torch, extra="train"),
    "onnxruntime": Runtime(("onnx", "onnxruntime"), in_onnxruntime),
    "openvino": Runtime(("onnx", "openvino"), in_openvino),
}
