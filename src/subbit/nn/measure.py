"""The report of a PyTorch model: its layers and parameters, the operations of one run, the bytes of its packed form."""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import prod
from operator import index
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from subbit.accounting import FLOAT_BITS, STORAGE_BITS, Bits, Operations, operations, paper_bits, weight_bits
from subbit.errors import ConfigError, ModelError, PackError, SubbitError
from subbit.inspection import Cost, LayerReport, OtherReport, Report, cost_to_run, stored_by_name
from subbit.methods.base import CompressedLayer
from subbit.nn.compress import Decision, check_values, conversion_of, find_layers
from subbit.nn.order import TRANSPOSED, replica
from subbit.nn.rules import Layer
from subbit.records import Dense, Linear, Preprocessing, Program, Shape, Storage, Weight, fold_scales

_TRANSPOSED_FUNCTIONS = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
_WEIGHTED_FUNCTIONS = (F.conv1d, F.conv2d, F.conv3d, *_TRANSPOSED_FUNCTIONS, F.linear)
_BATCH_STATISTICS = ("running_mean", "running_var")


def measure(
    model: nn.Module,
    input_shape: Sequence[int],
    storage: Storage = "f16",
    labels: Sequence[str] = (),
    preprocessing: Preprocessing | None = None,
    output: str | int | None = None,
) -> Report:
    """The report of `model` for one input of `input_shape`, with or without a batch dimension in front."""
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("a ScriptModule cannot be inspected: pass the model it was scripted or traced from")
    layers = find_layers(model)
    check_values(model, layers)
    examples = [_example(model, shape) for shape in _without_batch(input_shape, layers)]
    decisions, notes = _decisions(model)
    # the model may draw random numbers when it runs; the user's stream of them stays where it is
    with torch.random.fork_rng(devices=[examples[0].device] if examples[0].is_cuda else []):
        try:
            example, positions = _first_that_runs(model, layers, examples)
        except ModelError as error:
            wrong_rank = _wrong_rank(input_shape, layers)
            if wrong_rank is None:
                raise
            raise wrong_rank from error
        rows = [_layer(layer, positions, decisions, storage) for layer in layers]
        others = _others(model, layers, positions, storage)
        try:
            program = _program(model, example, storage, labels, preprocessing, output)
            overhead, rows, others, cost = _packed(program, layers, rows, others)
            pack_error = ""
        except PackError as error:
            overhead = -sum(row.stored_bits for row in [*rows, *others]) % 8  # up to a whole byte
            pack_error, cost = str(error), Cost()
    return Report(
        name=type(model).__name__,
        input_shape=tuple(example.shape[1:]),
        layers=tuple(rows),
        others=tuple(others),
        overhead_bits=overhead,
        pack_error=pack_error,
        notes=notes,
        peak_memory=cost.memory,
        work=cost.work,
    )


# ------------------------------------------------------------------------------------------------- input


def _without_batch(input_shape: Sequence[int], layers: list[Layer]) -> list[Shape]:
    """What may be one input's shape, the likeliest first: as many dimensions as the first convolution takes.

    A model may have other ideas: it may add a dimension, or register a convolution of another kind before the first.
    """
    try:
        shape = tuple(index(extent) for extent in input_shape)
    except TypeError:
        shape = ()
    if not shape or min(shape) < 1:
        raise ConfigError(f"input shape {reprlib.repr(input_shape)}: give positive whole numbers such as (3, 32, 32)")
    convolutions = [w for w in (_weight_shape(layer.module) for layer in layers) if len(w) > 2]
    if not convolutions:
        return [shape[1:] if len(shape) > 1 and shape[0] == 1 else shape]
    rank = len(convolutions[0]) - 1
    if len(shape) > rank:
        return [shape[1:], shape]
    return [shape, shape[1:]] if shape[0] == 1 and len(shape) > 1 else [shape]


def _wrong_rank(input_shape: Sequence[int], layers: list[Layer]) -> ConfigError | None:
    """What to say of a shape that has other dimensions than the first convolution, where the model does not run."""
    rank = next((len(w) - 1 for w in (_weight_shape(layer.module) for layer in layers) if len(w) > 2), 0)
    if not rank or len(input_shape) in (rank, rank + 1):
        return None
    wanted = "(channels, length" if rank == 2 else "(channels, height, width"
    return ConfigError(f"input shape {tuple(input_shape)}: this model takes {wanted}{', …)' if rank > 3 else ')'}")


def _first_that_runs(model: nn.Module, layers: list[Layer], examples: list[Tensor]) -> tuple[Tensor, dict[str, int]]:
    """The first example that the model takes, and the positions of its layers."""
    likeliest, *others = examples
    try:
        return likeliest, count_positions(model, layers, likeliest)
    except ModelError:
        for example in others:
            with suppress(ModelError):
                return example, count_positions(model, layers, example)
        raise


def _example(model: nn.Module, shape: Shape) -> Tensor:
    real = next((p for p in model.parameters() if p.is_floating_point() or p.is_complex()), torch.zeros(()))
    return torch.zeros(1, *shape, dtype=real.dtype, device=real.device)


# ------------------------------------------------------------------------------------------------- operations


class _Positions(TorchFunctionMode):
    """Counts, by name, how many output positions each layer computes: layers by hooks, functionals by their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.positions: Counter[str] = Counter()
        self.owners: dict[int, str] = {}  # id of a weight -> name of its layer or parameter
        self._alive: list[Tensor] = []  # weights computed on the fly, kept so that ids stay unique
        self._inside = 0  # layers being executed; what they call is theirs

    def watch(self, name: str, module: nn.Module) -> None:
        def enter(module: nn.Module, args: Any) -> None:
            self._inside += 1

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self._inside -= 1
            if not self._inside and isinstance(output, Tensor):
                transposed = isinstance(module, TRANSPOSED)
                self.positions[name] += _places(args[0] if transposed else output, _weight_shape(module))

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)
        if isinstance(module, CompressedLayer):
            self._watch_weight(name, module)

    def _watch_weight(self, name: str, layer: CompressedLayer) -> None:
        """A compressed layer makes its weight anew each time a functional asks for it."""
        compute: Callable[[], Tensor] = layer.effective_weight

        def effective_weight() -> Tensor:
            weight = compute()
            if not self._inside:
                self._alive.append(weight)
                self.owners[id(weight)] = name
            return weight

        vars(layer)["effective_weight"] = effective_weight

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if not self._inside and func in _WEIGHTED_FUNCTIONS:
            source, weight = (*args, *(kwargs[key] for key in ("input", "weight") if key in kwargs))[:2]
            name = self.owners.get(id(weight))
            if name is not None:
                value = source if func in _TRANSPOSED_FUNCTIONS else output
                self.positions[name] += _places(value, tuple(weight.shape))
        return output


def _places(value: Tensor, weight_shape: Shape) -> int:
    """Positions of a value with one channel per entry of the weight's first dimension."""
    return value.numel() // weight_shape[0]


def count_positions(model: nn.Module, layers: list[Layer], example: Tensor) -> dict[str, int]:
    """Positions that each layer, and each other parameter used as a weight, computes for `example`."""
    copy = replica(model).eval()
    counter = _Positions()
    counter.owners = {id(p): name for name, p in copy.named_parameters() if p.ndim > 1}
    for layer in layers:
        module = copy.get_submodule(layer.name)
        counter.watch(layer.name, module)
        counter.owners |= {id(p): layer.name for p in module.parameters() if p.ndim > 1}
    try:
        with torch.no_grad(), _plain_attention(), counter:
            copy(example)
    except SubbitError:
        raise
    except Exception as error:
        raise ModelError(
            f"{type(model).__name__} does not run on an input of shape {tuple(example.shape)}: {error}"
        ) from error
    return counter.positions


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Without PyTorch's fused transformer layers, which never call the layers they consist of."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


# ------------------------------------------------------------------------------------------------- rows


def _layer(layer: Layer, positions: dict[str, int], decisions: dict[str, Decision], storage: Storage) -> LayerReport:
    module = layer.module
    record = _record(module)
    compressed = isinstance(module, CompressedLayer)
    decision = decisions.get(layer.name)
    notes = decision.notes if decision is not None else getattr(module, "notes", ())
    if layer.name not in positions:
        notes = (*notes, "was not seen running for this input")
    bias = module.bias.numel() if isinstance(module.bias, Tensor) else 0
    weights = prod(record.shape)
    own = sum(map(_numbers, module.parameters()))
    is_convolution = len(record.shape) > 2 and not isinstance(module, nn.Bilinear)
    return LayerReport(
        name=layer.name or type(module).__name__,
        kind=_kind(module),
        method=repr(module.method) if isinstance(module, CompressedLayer) else "",
        kept_because=decision.kept_because if decision is not None and not compressed else "",
        weights=weights,
        dense_bits=FLOAT_BITS * (weights + bias if compressed else own),
        stored=_stored_alone(record, bias, storage),
        operations=operations(record, positions.get(layer.name, 0), getattr(module, "groups", 1)),
        paper_bits=paper_bits(record) if is_convolution else None,
        notes=notes,
    )


def _kind(module: nn.Module) -> str:
    if not isinstance(module, CompressedLayer):
        return type(module).__name__
    return {"conv1d": "Conv1d", "conv2d": "Conv2d", "linear": "Linear"}[module.kind]


def _record(module: nn.Module) -> Weight:
    if isinstance(module, CompressedLayer):
        return module.record()
    weight: Any = module.weight
    weight = torch.view_as_real(weight) if weight.is_complex() else weight
    return Dense(weight.detach().to("cpu", torch.float32).numpy())


def _weight_shape(module: nn.Module) -> Shape:
    if isinstance(module, CompressedLayer):
        return module.weight_shape
    weight: Any = module.weight
    return tuple(weight.shape)


def _stored_alone(record: Weight, bias: int, storage: Storage) -> Bits:
    """What a layer would store by itself: its record, a scale per channel if it has one to fold, its bias."""
    op = fold_scales(Linear(inputs=(0,), weight=record))
    real = STORAGE_BITS[storage]
    channel_scales = 0 if op.scale is None else op.scale.size
    return weight_bits(op.weight, storage) + Bits(scales=real * channel_scales, rest=real * bias)


def _others(model: nn.Module, layers: list[Layer], positions: dict[str, int], storage: Storage) -> list[OtherReport]:
    """Every parameter outside of the layers, and BatchNorm statistics, by the module that holds them."""
    of_layers = [layer.module for layer in layers]
    inside = {id(module) for layer in of_layers for module in layer.modules()}
    seen = {id(p) for layer in of_layers for p in layer.parameters()}
    rows = []
    for name, module in model.named_modules():
        if id(module) in inside:
            continue
        own = [(n, p) for n, p in module.named_parameters(recurse=False) if id(p) not in seen]
        seen.update(id(p) for _, p in own)
        statistics = [b for key, b in module.named_buffers(recurse=False) if key in _BATCH_STATISTICS]
        if not own and not statistics:
            continue
        prefix = f"{name}." if name else ""
        runs = sum((_run_parameter(p, positions.get(prefix + n, 0)) for n, p in own), Operations())
        numbers = sum(_numbers(tensor) for tensor in (*(p for _, p in own), *statistics))
        # BatchNorm's four numbers per channel become a scale and a shift
        stored = 2 * statistics[0].numel() if statistics else numbers
        bits = Bits(rest=STORAGE_BITS[storage] * stored)
        dense = FLOAT_BITS * numbers
        rows.append(OtherReport(name=name, kind=type(module).__name__, dense_bits=dense, stored=bits, operations=runs))
    return rows


def _run_parameter(parameter: Tensor, positions: int) -> Operations:
    count = _numbers(parameter) * positions
    return Operations(dense=count, transform=count)


def _numbers(tensor: Tensor) -> int:
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def _decisions(model: nn.Module) -> tuple[dict[str, Decision], tuple[str, ...]]:
    """What `compress` decided, by layer name; it may have been applied to a part of the model."""
    decisions: dict[str, Decision] = {}
    notes: list[str] = []
    for path, module in model.named_modules():
        conversion = conversion_of(module)
        if conversion is not None:
            prefix = f"{path}." if path else ""
            decisions |= {prefix + decision.name: decision for decision in conversion.decisions}
            notes += conversion.notes
    return decisions, tuple(notes)


# ------------------------------------------------------------------------------------------------- packed form


def _program(model: nn.Module, example: Tensor, *arguments: Any) -> Program:
    from subbit.nn.pack import to_program

    return to_program(replica(model), example, *arguments)


def _packed(
    program: Program, layers: list[Layer], rows: list[LayerReport], others: list[OtherReport]
) -> tuple[int, list[LayerReport], list[OtherReport], Cost]:
    """Overhead, rows with the bits that the encoded file has for them, and what it takes to run it."""
    from subbit.format import encode, sizes

    size = sizes(program)
    stored = stored_by_name(program, size)
    rows = [
        replace(row, stored=sum((stored.pop(name, Bits()) for name in layer.names), Bits()))
        for row, layer in zip(rows, layers, strict=True)
    ]
    others = [replace(row, stored=stored.pop(row.name, Bits())) for row in others]
    others += [
        OtherReport(name=name, kind="constant", dense_bits=0, stored=bits, operations=Operations())
        for name, bits in stored.items()
        if bits.total
    ]
    return size.overhead, rows, others, cost_to_run(encode(program))
