"""In which order a model uses its layers, read with torch.fx where it can be traced.

Registration order is not execution order: a head may be registered before the stem. `read` traces a copy of the
model with every convolution, linear layer and activation as a leaf; a model with control flow on values cannot be
traced and is taken in registration order.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from subbit.errors import ModelError
from subbit.methods.base import CompressedLayer

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
WEIGHTED = (*CONVOLUTIONS, *TRANSPOSED, nn.Linear, nn.Bilinear, CompressedLayer)
RECTIFIERS = (nn.ReLU, nn.ReLU6)

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
_NORM_FUNCTIONS = (F.batch_norm, F.group_norm, F.layer_norm, F.instance_norm)
_WEIGHTED_FUNCTIONS = (
    F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, F.linear, F.bilinear,
)  # fmt: skip
_RECTIFIER_FUNCTIONS = (F.relu, F.relu_, F.relu6, torch.relu, torch.relu_)
_RECTIFIER_METHODS = ("relu", "relu_")


@dataclass(frozen=True)
class Reading:
    """What was read: layer names in order of execution, and the rectifiers in front of given layers."""

    model: nn.Module  # the copy that was traced; names are those of the original
    graph: fx.Graph | None

    @property
    def traced(self) -> bool:
        return self.graph is not None

    def layers(self) -> list[str]:
        """Names of the layers that run, in that order; all of them in registration order if not traced."""
        if self.graph is None:
            return [name for name, module in self.model.named_modules() if isinstance(module, WEIGHTED)]
        names: dict[str, None] = {}
        for node in self.graph.nodes:
            if node.op in ("call_module", "get_attr"):
                names.update(dict.fromkeys(self._layers_at(str(node.target))))
        return list(names)

    def functional(self) -> set[str]:
        """Names of the layers whose weight is handed to a functional; unknown, so empty, if not traced."""
        if self.graph is None:
            return set()
        targets = [str(node.target) for node in self.graph.nodes if node.op == "get_attr"]
        return {name for target in targets for name in self._layers_at(target)}

    def rectified(self, takes_signs: Container[str]) -> Rectified:
        """The ReLUs whose output reaches a layer in `takes_signs` with no other layer or norm between."""
        if self.graph is None:
            every = [name for name, module in self.model.named_modules() if type(module) in RECTIFIERS]
            return Rectified(tuple(every), ())
        modules: dict[str, None] = {}
        functional: dict[str, None] = {}
        for node in self.graph.nodes:
            if node.op == "call_module" and str(node.target) in takes_signs:
                for source in self._feeding(node):
                    if source.op == "call_module":
                        modules[str(source.target)] = None
                    else:
                        functional[str(node.target)] = None
        return Rectified(tuple(modules), tuple(functional))

    def _layers_at(self, target: str) -> Iterator[str]:
        """The layers inside a leaf module, or the layer that owns a parameter passed to a functional."""
        owner = target
        while owner and not _has_module(self.model, owner):
            owner = owner.rpartition(".")[0]
        module = self.model.get_submodule(owner)
        if owner != target and not isinstance(module, WEIGHTED):
            return  # a plain parameter of a block
        for name, inner in module.named_modules(prefix=owner):
            if isinstance(inner, WEIGHTED):
                yield name

    def _feeding(self, node: fx.Node) -> Iterator[fx.Node]:
        """Rectifier nodes from which `node` is reached without crossing a layer or a norm."""
        pending, seen = list(node.all_input_nodes), set()
        while pending:
            source = pending.pop()
            if source in seen:
                continue
            seen.add(source)
            if self._is_rectifier(source):
                yield source
            if not self._is_barrier(source):
                pending.extend(source.all_input_nodes)

    def _is_rectifier(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return type(self.model.get_submodule(str(node.target))) in RECTIFIERS
        if node.op == "call_method":
            return node.target in _RECTIFIER_METHODS
        return node.op == "call_function" and node.target in _RECTIFIER_FUNCTIONS

    def _is_barrier(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return isinstance(self.model.get_submodule(str(node.target)), (*WEIGHTED, *_NORMS))
        return node.op == "call_function" and node.target in (*_WEIGHTED_FUNCTIONS, *_NORM_FUNCTIONS)


@dataclass(frozen=True)
class Rectified:
    """ReLUs in front of layers that take signs."""

    modules: tuple[str, ...]  # names of ReLU modules
    functional: tuple[str, ...]  # names of layers fed by a functional ReLU


def replica(model: nn.Module) -> nn.Module:
    """A copy that shares the parameters of `model` but nothing that a forward might change."""
    return copied(model, {id(parameter): parameter for parameter in model.parameters()})


def copied(model: nn.Module, instead: Mapping[int, Any]) -> nn.Module:
    """A deep copy in which every reference to an object whose id is in `instead` leads to that object.

    deepcopy takes what its memo holds instead of copying, wherever the reference is: in a list, in a dict, under two
    names at once. Tensors that autograd computed, which it refuses to copy, are copied without their history.
    """
    computed = {
        id(value): value.detach().clone()
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }
    try:
        return copy.deepcopy(model, {**computed, **instead})
    except Exception as error:
        raise ModelError(
            f"{type(model).__name__} cannot be copied ({error}): use the model before it is wrapped for training"
        ) from error


def read(model: nn.Module) -> Reading:
    """Trace a copy of `model`."""
    traced = replica(model).eval()
    optional = {
        name: parameter.default
        for name, parameter in inspect.signature(traced.forward).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    try:
        return Reading(traced, _LayerTracer().trace(traced, concrete_args=optional))
    except Exception:  # user code under tracing may raise anything; the order of registration has to do then
        return Reading(traced, None)


class _LayerTracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, WEIGHTED) or super().is_leaf_module(m, module_qualified_name)


def _has_module(model: nn.Module, name: str) -> bool:
    try:
        model.get_submodule(name)
    except AttributeError:
        return False
    return True
