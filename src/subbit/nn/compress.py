"""`compress`: a copy of any model whose convolutions and linear layers are compressed ones.

Every layer of the model ends either converted or kept with a reason; the decisions travel with the new model and
`subbit.inspect` prints them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from subbit import accounting
from subbit.errors import ConfigError, ModelError, SubbitError
from subbit.methods.base import CompressedLayer, Init, Method, Plain
from subbit.nn import order
from subbit.nn.rules import Keep, Layer, Policy, Rules, Wish, check_method
from subbit.records import Binary, Dense, Stacked, Weight

_ATTRIBUTE = "_subbit_conversion"
_SUPPORTED: tuple[type[Plain], ...] = (nn.Conv1d, nn.Conv2d, nn.Linear)
_OWN_PARAMETERS = frozenset({"weight", "bias"})

FROZEN = "frozen, while other layers are trained (its name in policy= compresses it)"
FIRST = "first convolution"
LAST = "last linear layer"
BEHIND_RELU = "its input comes from a functional relu, so all its signs are +1: use a nn.ReLU module or F.hardtanh"


@dataclass(frozen=True)
class Decision:
    """What became of one layer: `method` if it was converted, else the reason why it was kept."""

    name: str
    kind: str  # class name of the layer in the original model
    method: Method | None = None
    kept_because: str = ""
    notes: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()  # further paths of the same module object


@dataclass(frozen=True)
class Conversion:
    """All decisions of one `compress`, in the order in which the model registers its layers."""

    decisions: tuple[Decision, ...]
    notes: tuple[str, ...] = ()


def conversion_of(model: nn.Module) -> Conversion | None:
    """The decisions that `compress` left on a model; None for a model that it did not make."""
    conversion: Conversion | None = getattr(model, _ATTRIBUTE, None)
    return conversion


def compress(
    model: nn.Module,
    method: Method,
    *,
    keep: Keep | Iterable[Keep] = (),
    policy: Policy | None = None,
    init: Init = "random",
) -> nn.Module:
    """A new model with the layers of `model` compressed by `method`; `model` itself is not touched.

        small = subbit.compress(net, SLBF(f1=1/2, f2=1/4), keep=[nn.Linear], policy={"layer4.*": SLBF(f1=1/2, f2=1/8)})

    The first convolution and the last linear layer that run stay as they are unless `policy` matches them. `keep`
    takes layer names, globs over dotted names and types; the name or type of a block stands for all layers in it.
    `policy` maps names or globs to a method, or to None to keep; the first pattern that matches counts. A layer
    that would cost more bits than its plain binary or dense form is kept, unless `policy` has its exact name.
    `init="dense"` starts from the weights of `model`.
    """
    _check_arguments(model, method, policy, init)
    layers = find_layers(model)
    if not layers:
        raise ModelError(f"{type(model).__name__} has no convolution and no linear layer: there is nothing to compress")
    check_values(model, layers)
    rules = Rules(model, method, keep, policy or {}, layers)
    reading = order.read(model)
    frozen = _frozen(layers)
    facts = _Facts(_ends(layers, reading, frozen), _tied(model), reading.functional(), frozen)

    decisions: list[Decision] = []
    replacements: dict[int, nn.Module] = {}  # id of a module of the original -> what stands in its place
    for layer in layers:
        wish = rules.wish(layer)
        reason = _reason_to_keep(layer, wish, facts)
        replacement = None
        if not reason:
            replacement, reason = _build(layer, wish, init)
        if replacement is None:
            decisions.append(_decision(layer, kept_because=reason))
        else:
            replacements[id(layer.module)] = replacement
            decisions.append(_decision(layer, method=wish.method, notes=_hand_over(layer.module, replacement)))
    conversion = Conversion(tuple(decisions))
    if any(d.method is not None and d.method.binary_input for d in decisions):
        conversion = _swap_rectifiers(model, reading, conversion, replacements)
    compressed = order.copied(model, replacements)
    setattr(compressed, _ATTRIBUTE, conversion)
    _warn(type(model).__name__, conversion)
    return compressed


def find_layers(model: nn.Module) -> list[Layer]:
    """All convolutions, linear and compressed layers of a model, each once, in order of registration."""
    names: dict[int, list[str]] = {}
    modules: dict[int, nn.Module] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, order.WEIGHTED):
            modules[id(module)] = module
            names.setdefault(id(module), []).append(name)
    return [Layer(module, tuple(names[key])) for key, module in modules.items()]


# ------------------------------------------------------------------------------------------------- checks


def _check_arguments(model: object, method: object, policy: object, init: object) -> None:
    if not isinstance(model, nn.Module):
        raise ModelError(f"compress takes a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("compress cannot change a ScriptModule: pass the model it was scripted or traced from")
    check_method(method, "method")
    if policy is not None and not isinstance(policy, Mapping):
        raise ConfigError(f"policy maps names or globs to methods, got {type(policy).__name__}")
    if init not in ("random", "dense"):
        raise ConfigError(f"init={init!r}: choose 'random' or 'dense'")


def check_values(model: nn.Module, layers: list[Layer]) -> None:
    """A ModelError unless every layer has weights, on a device, and all of them are numbers."""
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ModelError(f"{name} is not materialised yet: run one batch through the model first")
    for layer in layers:
        for name, parameter in layer.module.named_parameters(recurse=False):
            if parameter.is_meta:
                raise ModelError(f"{layer}: {name} is on the meta device, without values: materialise the model first")
            if not bool(torch.isfinite(parameter).all()):
                raise ModelError(
                    f"{layer}: {name} contains NaN or infinity: repair it or go back to an earlier checkpoint"
                )


# ------------------------------------------------------------------------------------------------- decisions


@dataclass(frozen=True)
class _Facts:
    """What is known of the whole model when a single layer is looked at."""

    ends: dict[int, str]  # id of a module -> FIRST or LAST
    tied: dict[int, str]  # id of a parameter -> its names
    functional: set[str]  # layers whose weight is handed to a functional
    frozen: set[int]  # ids of layers that are not trained, where others are


def _reason_to_keep(layer: Layer, wish: Wish, facts: _Facts) -> str:
    """Why a layer is kept before its cost is looked at; empty if nothing speaks against converting it."""
    if isinstance(layer.module, CompressedLayer):
        return f"already compressed: {layer.module.method!r}"
    if wish.method is None:
        return wish.reason
    unsupported = _unsupported(layer.module, facts.tied)
    if not wish.asked and id(layer.module) in facts.frozen:
        return FROZEN
    if wish.method.binary_input and facts.functional & set(layer.names):
        unsupported = unsupported or "called through a functional, which would not take the signs of its input"
    if unsupported and wish.exact:
        raise ModelError(
            f"{layer} cannot be compressed as policy asks: {unsupported}; supported are plain Conv1d, Conv2d and "
            f"Linear layers; pass keep=[{layer.name!r}] to leave it as it is"
        )
    return unsupported or ("" if wish.asked else facts.ends.get(id(layer.module), ""))


def _is_plain(module: nn.Module) -> TypeGuard[Plain]:
    """Whether a module computes exactly what Conv1d, Conv2d or Linear compute."""
    for base in _SUPPORTED:
        if isinstance(module, base):
            kind = type(module)
            own_convolution = getattr(kind, "_conv_forward", None) is not getattr(base, "_conv_forward", None)
            return kind.forward is base.forward and not own_convolution and "forward" not in vars(module)
    return False


def _unsupported(module: nn.Module, tied: dict[int, str]) -> str:
    if not isinstance(module, _SUPPORTED):
        return f"unsupported type {type(module).__name__}"
    if parametrize.is_parametrized(module):
        names = ", ".join(module.parametrizations)  # type: ignore[arg-type]
        return f"parametrised ({names}): torch.nn.utils.parametrize.remove_parametrizations first"
    if not _is_plain(module):
        return f"unsupported type {type(module).__name__}: it has a forward of its own"
    parameters = {name for name, _ in module.named_parameters(recurse=False)}
    if "weight" not in parameters:
        sources = ", ".join(sorted(parameters - _OWN_PARAMETERS))
        return f"parametrised: its weight is computed from {sources} (weight or spectral norm, pruning)"
    state = set(module.state_dict()) - _OWN_PARAMETERS
    if state:
        return f"unsupported type {type(module).__name__}: it has state of its own ({', '.join(sorted(state))})"
    if not module.weight.numel():
        return f"its weight is empty: {tuple(module.weight.shape)}"
    for parameter in module.parameters(recurse=False):
        if id(parameter) in tied:
            return f"weight tied: {tied[id(parameter)]} are one tensor"
    if module.weight.is_complex() or not module.weight.is_floating_point():
        return f"unsupported type {module.weight.dtype}"
    return ""


def _tied(model: nn.Module) -> dict[int, str]:
    """Parameters that several modules hold, by id."""
    names: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(prefix=path, recurse=False):
            names.setdefault(id(parameter), []).append(name)
    return {key: " and ".join(found) for key, found in names.items() if len(found) > 1}


def _frozen(layers: list[Layer]) -> set[int]:
    """Layers whose parameters are not trained, by id; none in a model that is frozen as a whole, as if to run it."""
    frozen = set()
    for layer in layers:
        trained = [parameter.requires_grad for parameter in layer.module.parameters()]
        if trained and not any(trained):
            frozen.add(id(layer.module))
    return frozen if len(frozen) < len(layers) else set()


def _ends(layers: list[Layer], reading: order.Reading, frozen: set[int]) -> dict[int, str]:
    """The first convolution and the last linear layer that run and learn, by id of the module."""
    by_name = {name: layer.module for layer in layers for name in layer.names}
    running = [by_name[name] for name in reading.layers()]
    running = [module for module in running if id(module) not in frozen]
    ends: dict[int, str] = {}
    convolutions = [module for module in running if _does(module, order.CONVOLUTIONS, "conv")]
    if convolutions:
        ends[id(convolutions[0])] = FIRST
    linear = [module for module in running if _does(module, (nn.Linear,), "linear")]
    if linear:
        ends[id(linear[-1])] = LAST
    return ends


def _does(module: nn.Module, types: tuple[type[nn.Module], ...], kind: str) -> bool:
    return isinstance(module, types) or (isinstance(module, CompressedLayer) and module.kind.startswith(kind))


# ------------------------------------------------------------------------------------------------- new layers


def _build(layer: Layer, wish: Wish, init: Init) -> tuple[CompressedLayer | None, str]:
    """The layer's replacement, or the reason why its cost forbids one."""
    module, method = layer.module, wish.method
    assert method is not None
    assert isinstance(module, _SUPPORTED)
    try:
        # Fitting to dense weights is slow and does not change the size, so the size is judged on a random start.
        replacement = method.layer(module, init="random")
        reason = "" if wish.exact else _too_costly(replacement.record())
        if reason:
            return None, reason
        if init != "random":
            replacement = method.layer(module, init=init)
    except SubbitError as error:
        raise type(error)(f"{layer}: {error}; keep=[{layer.name!r}] leaves this layer as it is") from error
    return replacement, ""


def _too_costly(record: Weight) -> str:
    """Compares a record with the dense one and, where it consists of bits, with plain binary weights.

    Of a stacked record only what cannot fold into the channel's scale is counted; plain binary weights are counted
    with a scale per filter.
    """
    shape = record.shape
    others: dict[str, Weight] = {"dense": Dense(np.broadcast_to(np.float32(0), shape))}
    if isinstance(record, Stacked) and record.binary:
        ones = np.broadcast_to(np.float32(1), shape[:1])
        others["plain binary"] = Binary(np.broadcast_to(np.int8(1), shape), ones)
    bits = accounting.weight_bits(record).total
    what = "stacking" if isinstance(record, Stacked) else "binary weights"
    for name, other in others.items():
        limit = accounting.weight_bits(other).total
        if bits > limit:
            return f"{what} would cost {bits:,} bits, {name} {limit:,}"
    return ""


def _hand_over(old: nn.Module, new: CompressedLayer) -> tuple[str, ...]:
    """Carry forward hooks over; the notes say what changed besides the weight."""
    notes = list(new.notes)
    for key, hook in old._forward_pre_hooks.items():
        new.register_forward_pre_hook(hook, with_kwargs=key in old._forward_pre_hooks_with_kwargs)
    for key, hook in old._forward_hooks.items():
        new.register_forward_hook(hook, with_kwargs=key in old._forward_hooks_with_kwargs)
    if old._backward_hooks or old._backward_pre_hooks:
        notes.append("backward hooks were not carried over: register them on the new layer")
    if not all(parameter.requires_grad for parameter in old.parameters()):
        notes.append("was frozen; the parameters of the compressed layer are trainable")
    return tuple(notes)


def _decision(
    layer: Layer, *, method: Method | None = None, kept_because: str = "", notes: tuple[str, ...] = ()
) -> Decision:
    return Decision(layer.name, type(layer.module).__name__, method, kept_because, notes, layer.names[1:])


# ------------------------------------------------------------------------------------------------- binary inputs


def _swap_rectifiers(
    model: nn.Module, reading: order.Reading, conversion: Conversion, replacements: dict[int, nn.Module]
) -> Conversion:
    """Hardtanh for each ReLU module whose output a layer takes the signs of: behind a ReLU all signs are +1."""
    binary = {
        name
        for decision in conversion.decisions
        if decision.method is not None and decision.method.binary_input
        for name in (decision.name, *decision.aliases)
    }
    found = reading.rectified(binary)
    for name in found.modules:
        relu = model.get_submodule(name)
        replacements[id(relu)] = nn.Hardtanh(inplace=bool(getattr(relu, "inplace", False))).train(relu.training)
    notes = []
    if found.modules:
        notes.append(f"Hardtanh in place of ReLU, whose signs are all +1: {', '.join(found.modules)}")
    if not reading.traced:
        notes.append(
            "the model cannot be traced: all ReLU modules were swapped, functional ones could not be looked for"
        )
    decisions = tuple(
        replace(d, notes=(*d.notes, BEHIND_RELU)) if {d.name, *d.aliases} & set(found.functional) else d
        for d in conversion.decisions
    )
    return Conversion(decisions, tuple(notes))


def _warn(name: str, conversion: Conversion) -> None:
    """What a user should not have to open a report to learn."""
    if all(decision.method is None for decision in conversion.decisions):
        reasons = "; ".join(sorted({decision.kept_because for decision in conversion.decisions}))
        warnings.warn(f"no layer of {name} was compressed: {reasons}", stacklevel=3)
    behind_relu = [d.name for d in conversion.decisions if BEHIND_RELU in d.notes]
    if behind_relu:
        warnings.warn(
            f"layers that take signs get a functional relu's output, all +1: {', '.join(behind_relu)}; "
            "use nn.ReLU modules, which compress swaps for nn.Hardtanh",
            stacklevel=3,
        )
