"""Reading a model with torch.fx: a graph of functional calls in which every shape is already known.

Only compressed layers are leaves; modules of torch.nn are traced through, so that `nn.ReLU`, `F.relu`, `torch.relu` and
`Tensor.relu` all arrive as one kind of node. Each proxy carries a tensor on the meta device. Whatever a model asks
about it (shape, size, dim, len, dtype) gets a concrete answer, so control flow on shapes needs no symbolic
reasoning; parameters stay real tensors, so what a model computes from parameters alone is computed at once.
Control flow on values stays impossible and is an error.
"""

from __future__ import annotations

import builtins
import inspect
import operator
import re
import sys
import threading
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from subbit.errors import PackError, SubbitError
from subbit.methods.base import CompressedLayer

VALUE = "subbit_value"  # node.meta: the meta tensor(s) that the node gives
PATH = "subbit_path"  # node.meta: the innermost module, as (path, type name)

OutputKey = str | int | None

_CONTAINERS = (dict, OrderedDict, defaultdict, list, set, deque)
_ISINSTANCE = isinstance
ONE_AT_A_TIME = threading.RLock()  # while a model is traced, torch.fx changes how all modules are called

_MOVES = frozenset({"to", "cpu", "cuda", "float", "half", "double", "bfloat16", "type", "type_as", "contiguous"})
_SET_ITEM = ("__setitem__", operator.setitem)
_IN_PLACE_OPERATORS = ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__ipow__")
_NOT_IN_PLACE = "use torch.cat, F.pad or an operation that is not in place"
_DEPENDS_ON_VALUES = "depends on the values of its input (an if, float() or item() of a tensor)"


@dataclass(frozen=True)
class Trace:
    """A model as a graph, for one batch size."""

    graph: fx.Graph
    layers: dict[str, CompressedLayer]  # leaves, by the target of their call_module nodes
    constants: dict[str, Tensor]  # tensors that do not depend on the input, by the target of get_attr nodes
    batch: int
    autocast: bool = False


class ShapedProxy(fx.Proxy):
    """A proxy that knows the shape of its value."""

    @property
    def value(self) -> Tensor:
        value: Tensor = self.node.meta[VALUE]
        return value

    def __getattr__(self, k: str) -> Any:
        attribute = getattr(self.value, k)
        if callable(attribute):
            return super().__getattr__(k)
        if isinstance(attribute, Tensor):
            return self.tracer.create_proxy("call_function", getattr, (self, k), {})
        return torch.device("cpu") if k == "device" else attribute  # new tensors must not land on the meta device

    def __len__(self) -> int:
        return len(self.value)

    def __setitem__(self, index: Any, value: Any) -> None:
        """An operation in place: its node gives the very tensor that it changes."""
        tracer = self.tracer
        assert isinstance(tracer, ShapedTracer)
        self.value[map_aggregate(index, _on_meta)] = _on_meta(value)
        arguments = tuple(map(tracer.create_arg, (self, index, value)))
        tracer._with_meta(tracer.create_node("call_function", operator.setitem, arguments, {}), self.value)

    def __float__(self) -> float:
        raise TypeError(_DEPENDS_ON_VALUES)

    def __int__(self) -> int:
        raise TypeError(_DEPENDS_ON_VALUES)

    def __index__(self) -> int:
        raise TypeError(_DEPENDS_ON_VALUES)


class ShapedTracer(fx.Tracer):
    """Tracer whose proxies are evaluated on the meta device as the graph grows."""

    def __init__(self, example: Tensor) -> None:
        super().__init__()
        self.example = example
        self.constants: dict[str, Tensor] = {}
        self.autocast = False  # does the forward choose types by itself?
        self.overwritten: dict[int, tuple[Tensor, str]] = {}  # real tensors that a computed value went into, by memory
        self.current: list[tuple[str, str]] = []  # (path, type name) of the modules being executed

    def proxy(self, node: fx.Node) -> ShapedProxy:
        return ShapedProxy(node, self)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val  # parameters stay real tensors

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, CompressedLayer)

    def path_of_module(self, mod: nn.Module) -> str:
        try:
            return super().path_of_module(mod)
        except NameError:  # made inside forward, or kept in a plain list
            return f"{self.current[-1][0]}.<{type(mod).__name__}>" if self.current else f"<{type(mod).__name__}>"

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        path = self.path_of_module(m)
        self.current.append((path, type(m).__name__))
        if isinstance(m, CompressedLayer) and (m._forward_hooks or m._forward_pre_hooks):
            result = self._call_hooked(m, path, forward, args, kwargs)
        else:
            result = super().call_module(m, forward, args, kwargs)
        self.current.pop()  # not in a finally: after an error this says where it happened
        return result

    def _call_hooked(self, layer: nn.Module, path: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A leaf with hooks, which are traced: only what lies between them is the leaf."""
        depth = len(self.current)
        vars(layer)["forward"] = lambda *args, **kwargs: self.create_proxy("call_module", path, args, kwargs)
        try:
            return forward(*args, **kwargs)
        except Exception:  # a hook that looks at values: without it, if it only looks (whoever packs compares both)
            del self.current[depth:]
            return self.create_proxy("call_module", path, args, kwargs)
        finally:
            del vars(layer)["forward"]

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, fx.Proxy):
            return a.node
        if isinstance(a, np.generic):
            return a.item()
        if not isinstance(a, Tensor):
            return super().create_arg(a)
        if a.untyped_storage().data_ptr() in self.overwritten:
            method = self.overwritten[a.untyped_storage().data_ptr()][1]
            raise TypeError(f"uses a tensor of its own after {method} put a computed value into it; {_NOT_IN_PLACE}")
        name = f"constant_{len(self.constants)}"
        self.constants[name] = a
        return self._with_meta(self.create_node("get_attr", name, (), {}), a)

    def create_proxy(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any | None = None,
        proxy_factory_fn: Callable[[fx.Node], fx.Proxy] | None = None,
    ) -> Any:
        if kind == "call_function" and _is_wrapped(target):
            return target(*args, **kwargs)
        if target == "type" and len(args) + len(kwargs) == 1:
            return torch.empty(0, dtype=args[0].dtype).type()
        if target == "type" and len(args) > 1 and _is_floating(args[1]):
            args = (args[0], torch.float32)
        outs = (out for out in _several(kwargs.get("out")) if not isinstance(out, fx.Proxy))
        if any(isinstance(out, Tensor) for out in outs):
            raise TypeError(f"puts a computed value into a tensor that it made (out=); {_NOT_IN_PLACE}")
        if target in _SET_ITEM:
            raise TypeError(f"assigns a computed value to a part of a tensor that it made; {_NOT_IN_PLACE}")
        self.autocast = self.autocast or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
        value = self.example if kind == "placeholder" else self._evaluate(kind, target, args, kwargs)
        several = isinstance(value, list | tuple) and any(isinstance(part, Tensor) for part in value)
        if not several and not isinstance(value, Tensor):
            return value  # a size, a number of dimensions, a flag
        proxy = super().create_proxy(kind, target, args, kwargs, name, type_expr, proxy_factory_fn)
        self._with_meta(proxy.node, value)
        if kind == "call_method" and _is_in_place(target) and not isinstance(args[0], fx.Proxy):
            self.overwritten[args[0].untyped_storage().data_ptr()] = (args[0], target)
        if not several:
            return proxy
        parts = tuple(self._part(proxy.node, i, part) for i, part in enumerate(value))
        return type(value)(parts)  # a list, a tuple, or a named one such as torch.return_types.max

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        raise TypeError("iterates over the batch")

    def to_bool(self, obj: fx.Proxy) -> bool:
        raise TypeError(_DEPENDS_ON_VALUES)

    def _part(self, node: fx.Node, i: int, value: Tensor) -> ShapedProxy:
        part = self.create_node("call_function", operator.getitem, (node, i), {})
        return self.proxy(self._with_meta(part, value))

    def _with_meta(self, node: fx.Node, value: Any) -> fx.Node:
        node.meta[VALUE] = value
        node.meta[PATH] = self.current[-1] if self.current else ("", "")
        return node

    def _evaluate(self, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = map_aggregate(args, _on_meta), map_aggregate(kwargs, _on_meta)
        if kind == "call_module":
            layer = self.root.get_submodule(target)
            assert isinstance(layer, CompressedLayer)
            return layer.plain(args[0], torch.empty(layer.weight_shape, device="meta"))
        if kind == "call_method":
            # Moves between devices and floating types stay on the meta device. Whether they copy depends on the
            # model's type and memory, so they give a view: writing to one of the two makes the other stale.
            given = (*args[1:], *kwargs.values())
            if target == "contiguous" and not args[0].is_contiguous():
                return args[0].contiguous()
            if target in _MOVES and args[0].is_floating_point() and all(map(_keeps_real, given)):
                return args[0].view_as(args[0])
            return getattr(args[0], target)(*args[1:], **kwargs)
        return target(*args, **kwargs)


class _Root(nn.Module):
    """The model as the only child, called with one tensor and giving one tensor."""

    def __init__(self, model: nn.Module, output: OutputKey) -> None:
        super().__init__()
        self.model = model
        self.output = output

    def forward(self, input: Tensor) -> Any:
        return single_output(self.model(input), self.output)


def trace(model: nn.Module, shape: tuple[int, ...], batch: int, output: OutputKey = None) -> Trace:
    """The graph of `model` in eval mode for inputs (batch, *shape)."""
    _check_modules(model)
    _check_inputs(model)
    root = _Root(model, output)
    tracer = ShapedTracer(torch.empty((batch, *shape), device="meta"))
    with ONE_AT_A_TIME, evaluating(model), unchanged(model), torch.no_grad(), _proxies_are_tensors():
        try:
            graph = tracer.trace(root)
        except SubbitError:
            raise
        except Exception as error:
            raise PackError(_trace_message(tracer, error)) from error
    layers = {
        str(node.target): root.get_submodule(str(node.target)) for node in graph.nodes if node.op == "call_module"
    }
    # only compressed layers are leaves
    return Trace(graph, layers, tracer.constants, batch, tracer.autocast)  # type: ignore[arg-type]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """`model` in eval mode for a while; every submodule gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(False)
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Whatever a forward leaves in the attributes of modules is gone afterwards: nobody else can use a proxy."""
    modules = [(module, dict(vars(module))) for module in model.modules()]
    containers = [
        (value, value.copy())
        for _, attributes in modules
        for value in attributes.values()
        if type(value) in _CONTAINERS
    ]
    plain = (buffer for buffer in model.buffers() if buffer.layout is torch.strided and not buffer.is_nested)
    buffers = [(buffer, buffer.detach().clone()) for buffer in plain]  # the others can be neither compared nor written
    try:
        yield
    finally:
        for module, attributes in modules:
            vars(module).clear()
            vars(module).update(attributes)
        for container, content in containers:
            container.clear()
            (container.extend if isinstance(container, list | deque) else container.update)(content)
        with torch.no_grad():
            for buffer, content in buffers:
                if not torch.equal(buffer, content):
                    buffer.copy_(content)


@contextmanager
def _proxies_are_tensors() -> Iterator[None]:
    """isinstance(proxy, Tensor) holds, as models ask it; of anything but a proxy it says what it always says.

    A `__class__` of its own would convince the C++ side of PyTorch too, which would then read a proxy as a tensor. So
    would the code around `autograd.Function`, which hands over what it takes for a tensor: it is told the truth.
    """

    def is_instance(value: Any, kind: Any, /) -> bool:
        if _ISINSTANCE(value, kind):
            return True
        return type(value) is ShapedProxy and _ISINSTANCE(value.value, kind) and not _hands_over(sys._getframe(1))

    builtins.isinstance = is_instance
    try:
        yield
    finally:
        builtins.isinstance = _ISINSTANCE


def _hands_over(caller: types.FrameType) -> bool:
    return str(caller.f_globals.get("__name__")).startswith(("torch.autograd.", "torch._functorch."))


def place(node: fx.Node) -> str:
    """Where a node comes from, for messages: "layer1.0.conv (MyConv)"."""
    path, kind = node.meta[PATH]
    return describe(path, kind)


def module_path(node: fx.Node) -> str:
    """Path of the innermost module of a node, as the user's model names it."""
    return _user_path(node.meta[PATH][0])


def describe(path: str, kind: str) -> str:
    path = _user_path(path)
    return f"{path} ({kind})" if path else f"the model ({kind})" if kind else "the model"


def _user_path(path: str) -> str:
    return path.removeprefix("model").removeprefix(".")


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's own module inside torch.compile, DataParallel and DistributedDataParallel."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _check_modules(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise PackError(f"{describe(name, type(module).__name__)} is TorchScript: pack the model it was made from")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter | nn.UninitializedBuffer):
            raise PackError(f"{name} is not materialised yet: run one batch through the model, then pack it")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise PackError(f"{name} is on the meta device and has no values: load a checkpoint, then pack the model")


def _check_inputs(model: nn.Module) -> None:
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # a forward without a signature: the call will tell
        return
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p.name for p in parameters if p.kind in kinds and p.default is p.empty]
    if len(required) > 1:
        raise PackError(
            f"{type(model).__name__} takes {len(required)} inputs ({', '.join(required)}): supported are models with "
            "one input tensor; wrap it in a module that fixes the others"
        )


def _is_floating(kind: Any) -> bool:
    """Of what `Tensor.type` takes besides a dtype: torch.FloatTensor, or its name."""
    return not isinstance(kind, torch.dtype) and any(name in str(kind) for name in ("Float", "Double", "Half"))


def _keeps_real(argument: Any) -> bool:
    """Whether what a move is given besides, a type or a tensor of the type that is wanted, is of real numbers."""
    if isinstance(argument, torch.dtype):
        return argument.is_floating_point
    if isinstance(argument, Tensor):
        return argument.is_floating_point()
    return argument is float or not isinstance(argument, str | type) or _is_device(argument)


def _is_device(argument: Any) -> bool:
    try:
        torch.device(argument)
    except (RuntimeError, TypeError):
        return False
    return True


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _is_in_place(method: str) -> bool:
    return method in _IN_PLACE_OPERATORS or (method.endswith("_") and not method.endswith("__"))


def _is_wrapped(target: Any) -> bool:
    """A function that its author gave to torch.fx.wrap: with known shapes it need not be a leaf."""
    return isinstance(target, types.FunctionType) and target.__module__.split(".")[0] != "torch"


def _on_meta(leaf: Any) -> Any:
    if isinstance(leaf, fx.Proxy):
        return leaf.node.meta[VALUE]
    if isinstance(leaf, Tensor):
        return torch.empty_like(leaf, dtype=torch.float32 if leaf.is_floating_point() else leaf.dtype, device="meta")
    if isinstance(leaf, torch.dtype) and leaf.is_floating_point:
        return torch.float32  # the packed network computes in fp32, whatever the model's dtype
    return leaf


def run_graph(trace: Trace, model: nn.Module, x: Tensor, wanted: Iterable[fx.Node]) -> dict[fx.Node, Tensor]:
    """Values of nodes as the model computes them, in its own precision and on its own device."""
    keep = set(wanted)
    last_users = {source: node for node in trace.graph.nodes for source in node.all_input_nodes}
    values: dict[fx.Node, Any] = {}
    kept: dict[fx.Node, Tensor] = {}

    def look_up(argument: Any) -> Any:
        return values[argument] if isinstance(argument, fx.Node) else argument

    for node in trace.graph.nodes:
        args: Any = map_aggregate(node.args, look_up)
        kwargs: Any = map_aggregate(node.kwargs, look_up)
        if node.op == "placeholder":
            values[node] = as_input(model, x).clone()  # models may write to it
        elif node.op == "get_attr":
            constant = trace.constants[str(node.target)]
            written = any(user.op == "call_method" and _is_in_place(str(user.target)) for user in node.users)
            values[node] = constant.clone() if written else constant
        elif node.op == "call_module":  # its hooks are nodes of their own
            values[node] = trace.layers[str(node.target)].forward(*args, **kwargs)
        elif node.op == "call_method":
            values[node] = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        elif node.op == "call_function":
            assert callable(node.target)
            result = node.target(*args, **kwargs)
            values[node] = args[0] if node.target is operator.setitem else result
        elif node.op == "output":
            values[node] = args[0]
        if node in keep:  # a copy: an operation in place may come behind it
            kept[node] = values[node].detach().to("cpu", torch.float32, copy=True)
        for source in node.all_input_nodes:
            if last_users[source] is node:
                del values[source]
    return kept


def as_input(model: nn.Module, x: Tensor) -> Tensor:
    """`x` on the device and in the type of a model."""
    some = next((parameter for parameter in model.parameters() if parameter.is_floating_point()), x)
    return x.to(some.device, some.dtype)


def single_output(result: Any, key: OutputKey) -> Any:
    """The one tensor that a model gives, or the one named by `key`."""
    named = _named_outputs(result)
    if key is not None:
        if str(key) not in named:
            raise PackError(f"the model has no output {key!r}: choose from {', '.join(named) or 'none'}")
        return named[str(key)]
    if len(named) == 1:
        return next(iter(named.values()))
    if not named:
        raise PackError(f"the model gives {type(result).__name__}: supported is an output of one tensor")
    raise PackError(
        f"the model gives {len(named)} tensors ({', '.join(named)}): a packed network has one output; choose it with "
        "output=..., or wrap the model in a module that returns it"
    )


def _named_outputs(result: Any) -> dict[str, Any]:
    if isinstance(result, fx.Proxy | Tensor):
        return {"0": result}
    if hasattr(result, "_asdict"):  # a named tuple
        result = result._asdict()
    elif isinstance(result, list | tuple):
        result = dict(enumerate(result))
    items = result.items() if isinstance(result, dict) else ()
    return {str(k): v for k, v in items if isinstance(v, fx.Proxy | Tensor)}


_SCRIPT_REFUSES = re.compile(r"(\w+)\(\) Expected a value of type .* found type '(Shaped)?Proxy'", re.DOTALL)


def _trace_message(tracer: ShapedTracer, error: Exception) -> str:
    shape = ", ".join(map(str, tracer.example.shape[1:]))
    where = describe(*(tracer.current[-1] if tracer.current else ("", "")))
    script = _SCRIPT_REFUSES.match(str(error))
    if script:
        return (
            f"{where} cannot be packed: it calls {script[1]}, a TorchScript function, which cannot be traced through; "
            "call the plain Python function (without torch.jit.script or torch.jit.trace) instead"
        )
    what = str(error) if isinstance(error, TypeError) else f"fails with {type(error).__name__}: {error}"
    return (
        f"{where} cannot be packed: its forward {what}. Packing runs the model on one shape, here (N, {shape}), with "
        "unknown values, in eval mode; give another shape, change the forward, or wrap the model in a module without "
        "this part"
    )
