"""What all methods share: the configuration's interface, and a layer with the geometry of the one it replaces.

A method is a configuration (a frozen dataclass) that builds layers. A layer answers three questions: what it
computes (`forward`), with which weight a plain layer would compute the same (`effective_weight`), and what is
stored of it (`record`). Everything about strides, padding, dilation and groups is here and nowhere else.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from subbit.errors import ConfigError, ModelError
from subbit.methods import quick
from subbit.nn.estimators import clipped, estimator
from subbit.records import Weight

Init = Literal["random", "dense"]
Kind = Literal["conv1d", "conv2d", "linear"]
Plain = nn.Conv1d | nn.Conv2d | nn.Linear

_GEOMETRY = (
    "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode",
)  # fmt: skip
SETTLED = 0.5  # size of the latents of a trained network: far above where they start, below where clipped gradients end
_CONVOLUTIONS = {"conv1d": F.conv1d, "conv2d": F.conv2d}


# ------------------------------------------------------------------------------------------ configuration


class Method:
    """A configuration: a frozen dataclass that validates itself, prints, compares, and builds layers."""

    name: ClassVar[str]  # as on the command line
    binary_input: ClassVar[bool] = False  # layers take the signs of their input

    def layer_classes(self) -> tuple[type[LikePlain], ...]:
        """The layers of this method, one for each kind."""
        raise NotImplementedError

    def layer(self, module: Plain, *, init: Init = "random") -> CompressedLayer:
        """A layer of this method with the geometry, bias, dtype and device of `module`.

        >>> BWN().layer(nn.Conv2d(16, 32, 3, padding=1))
        BWNConv2d(16, 32, kernel_size=(3, 3), padding=(1, 1), method=BWN())

        `init="dense"` starts as close to the weights of `module` as the method allows; "random" starts anew.
        """
        classes = self.layer_classes()
        for layer_class in classes:
            if isinstance(module, layer_class.stands_for):
                return layer_class(module, method=self, init=init)
        who, supported = type(self).__name__, ", ".join(c.stands_for.__name__ for c in classes)
        raise ModelError(f"{type(module).__name__} cannot be compressed by {who}: supported are {supported}")

    def from_dense(self, module: Plain) -> CompressedLayer:
        """`layer(module, init="dense")`: a layer that starts from trained weights."""
        return self.layer(module, init="dense")

    def config(self) -> dict[str, Any]:
        """Name and options as plain values for a JSON or TOML file; `subbit.methods.from_config` reads them back."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {"name": self.name} | {k: str(v) if isinstance(v, Fraction) else v for k, v in values.items()}

    def __repr__(self) -> str:
        changed = (
            f"{f.name}={getattr(self, f.name)}" if isinstance(getattr(self, f.name), Fraction)
            else f"{f.name}={getattr(self, f.name)!r}"
            for f in dataclasses.fields(self)  # type: ignore[arg-type]
            if getattr(self, f.name) != f.default
        )  # fmt: skip
        return f"{type(self).__name__}({', '.join(changed)})"


def check_choice(method: Method, field: str, allowed: tuple[str, ...] | dict[str, Any]) -> None:
    """A ConfigError unless the option `field` of `method` is one of `allowed`."""
    value = getattr(method, field)
    if value not in tuple(allowed):
        choices = ", ".join(map(repr, allowed))
        raise ConfigError(f"{type(method).__name__}({field}={value!r}): choose one of {choices}")


def check_flags(method: Method, *flags: str) -> None:
    """A ConfigError unless every option in `flags` is True or False."""
    for field in flags:
        value = getattr(method, field)
        if not isinstance(value, bool):
            raise ConfigError(f"{type(method).__name__}({field}={value!r}): must be True or False")


# ------------------------------------------------------------------------------------------------- layers


class CompressedLayer(nn.Module):
    """A layer that stands where a Conv1d, Conv2d or Linear stood.

    It carries the attributes of the layer it replaces (in_channels, kernel_size, stride, …, or in_features), so
    code that reads those goes on working, and `weight` gives the effective weight, so code that passes
    `layer.weight` to a functional works too. `notes` says, for people, where the layer could not be exactly what
    the configuration asked for.

    A method's layer implements `make_parameters`, `start_random`, `start_dense`, `effective_weight` and `record`.
    """

    method: Method
    kind: Kind
    weight_shape: tuple[int, ...]  # of the plain layer: (c_out, c_in / groups, *kernel)
    bias: nn.Parameter | None
    notes: tuple[str, ...] = ()
    progress: float = 1.0  # of the training, 0 to 1, for estimators that change in its course; set by whoever trains

    # of a linear layer
    in_features: int
    out_features: int
    # of a convolution
    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    padding_mode: str
    groups: int = 1

    def __init__(self, module: Plain, method: Method, init: Init = "random") -> None:
        super().__init__()
        if init not in ("random", "dense"):
            raise ConfigError(f"init={init!r}: choose 'random' or 'dense'")
        if isinstance(module.weight, nn.UninitializedParameter):
            raise ModelError(f"{type(module).__name__} is not materialised: run one batch through the model first")
        self.method = method
        weight = module.weight.detach()
        self.weight_shape = tuple(weight.shape)
        self._copy_geometry(module)
        bias = None if module.bias is None else nn.Parameter(module.bias.detach().clone())
        self.register_parameter("bias", bias)
        self.make_parameters(weight.dtype, weight.device)
        with torch.no_grad():
            if init == "random":
                self.start_random()
            elif not bool(torch.isfinite(weight).all()):
                raise ModelError("the weights to start from contain NaN or infinity: repair them or use init='random'")
            else:
                self.start_dense(weight)
        self.train(module.training)

    def _copy_geometry(self, module: Plain) -> None:
        names: tuple[str, ...] = _GEOMETRY
        if isinstance(module, nn.Linear):
            self.kind = "linear"
            names = ("in_features", "out_features")
        else:
            self.kind = "conv1d" if isinstance(module, nn.Conv1d) else "conv2d"
        for name in names:
            setattr(self, name, getattr(module, name))

    # -- what a method's layer implements

    def make_parameters(self, dtype: torch.dtype, device: torch.device) -> None:
        """Register what is trained, uninitialised."""
        raise NotImplementedError

    def start_random(self) -> None:
        """Fill the parameters for training from scratch."""
        raise NotImplementedError

    def start_dense(self, weight: Tensor) -> None:
        """Fill the parameters so that the effective weight is close to `weight`."""
        raise NotImplementedError

    def start_record(self, record: Weight, gain: Tensor) -> None:
        """Fill the parameters so that the effective weight is `record`, times a gain per filter (c_out,)."""
        weight = torch.from_numpy(record.weight()).reshape(self.weight_shape)
        self.start_dense(weight * gain.reshape(-1, *[1] * (weight.ndim - 1)))

    def effective_weight(self) -> Tensor:
        """The weight with which a plain convolution gives the same output, differentiable."""
        raise NotImplementedError

    def record(self) -> Weight:
        """What is stored of this layer: exactly the effective weight, in record form."""
        raise NotImplementedError

    # -- what all of them share

    @property
    def has_scales(self) -> bool:
        """Whether filters can be larger and smaller than each other."""
        return True

    @property
    def unpacked_size(self) -> float:
        """The root mean square that `unpack` gives filters before a BatchNorm, which takes any: that of new ones."""
        return math.sqrt(2 / self.fan_in)

    @property
    def input_scale(self) -> bool:
        """Whether the output is multiplied by K, the mean size of the input around each place (XNOR-Net)."""
        return False

    @property
    def weight(self) -> Tensor:
        return self.effective_weight()

    @property
    def fan_in(self) -> int:
        """Inputs of one output: c_in/groups · kernel positions."""
        return math.prod(self.weight_shape[1:])

    def to_plain(self) -> Plain:
        """A plain layer with the effective weight: the same function, but for the signs of a binary input."""
        bias = self.bias is not None
        module: Plain
        if self.kind == "linear":
            module = nn.Linear(self.in_features, self.out_features, bias, device="meta")
        else:
            plain_type: Any = nn.Conv1d if self.kind == "conv1d" else nn.Conv2d
            module = plain_type(**{name: getattr(self, name) for name in _GEOMETRY}, bias=bias, device="meta")
        module.weight = nn.Parameter(self.effective_weight().detach().clone())
        module.bias = None if self.bias is None else nn.Parameter(self.bias.detach().clone())
        return module.train(self.training)

    def forward(self, x: Tensor) -> Tensor:
        return self.plain(self.receive(x), self.effective_weight(), self.bias)

    def binarise(self, latent: Tensor, by: str) -> Tensor:
        """Signs of a latent by the named estimator; one that hardens is hard wherever the layer is not training."""
        return estimator(by)(latent, self.progress if self.training else 1.0)

    def receive(self, x: Tensor) -> Tensor:
        """The input as the method sees it: its signs, with the gradient gated at |x| ≤ 1, or itself."""
        return clipped(x) if self.method.binary_input else x

    def plain(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, groups: int | None = None) -> Tensor:
        """The plain layer of this geometry, with a given weight and maybe another number of groups."""
        if self.kind == "linear":
            return F.linear(x, weight, bias)
        groups = self.groups if groups is None else groups
        padding = self.padding
        if self.padding_mode != "zeros":
            amounts = [amount for pads in reversed(self.pads()) for amount in pads]  # the last dimension first
            x = F.pad(x, amounts, mode=self.padding_mode)
            padding = (0,) * len(self.kernel_size)
        elif groups == 1:
            quickly = quick.convolution(x, weight, bias, self.stride, self.pads(), self.dilation, self.training)
            if quickly is not None:
                return quickly
        return _CONVOLUTIONS[self.kind](x, weight, bias, self.stride, padding, self.dilation, groups)

    def pads(self) -> list[tuple[int, int]]:
        """Padding before and behind, of each dimension."""
        return quick.pads(self.padding, self.kernel_size, self.dilation)

    def extra_repr(self) -> str:
        if self.kind == "linear":
            parts = [str(self.in_features), str(self.out_features)]
        else:
            parts = [str(self.in_channels), str(self.out_channels), f"kernel_size={self.kernel_size}"]
            ones, zeros = (1,) * len(self.kernel_size), (0,) * len(self.kernel_size)
            usual = {"stride": ones, "padding": zeros, "dilation": ones, "groups": 1, "padding_mode": "zeros"}
            parts += [f"{n}={getattr(self, n)!r}" for n, value in usual.items() if getattr(self, n) != value]
        if self.bias is None:
            parts.append("bias=False")
        return ", ".join([*parts, f"method={self.method}"])


class LatentLayer(CompressedLayer):
    """Trains a latent weight of the plain layer's shape."""

    latent: nn.Parameter

    def make_parameters(self, dtype: torch.dtype, device: torch.device) -> None:
        self.latent = new_parameter(self.weight_shape, dtype, device)

    def clipped_latent(self) -> Tensor:
        """The latent weight within [−1, 1], with a gradient that reaches it unchanged.

        In training mode the parameter itself is clipped: so latent weights are brought back into their bounds
        by whoever uses them, and no call can be forgotten. Nothing in the graph refers to the parameter's memory,
        so a module may be used twice, recomputed by checkpointing, or compiled (`.data` is the form of this
        update that torch.compile keeps).
        """
        values = self.latent.detach().clamp(-1, 1)
        result = values + (self.latent - self.latent.detach())
        if self.training:
            self.latent.data.copy_(values)
        return result


def new_parameter(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device))


def as_float32(values: Tensor) -> NDArray[np.float32]:
    """A contiguous copy of a tensor for a record; what is not finite cannot be stored."""
    if not bool(torch.isfinite(values).all()):
        raise ModelError("weights contain NaN or infinity: the training diverged, go back to an earlier checkpoint")
    return values.detach().to("cpu", torch.float32).contiguous().numpy().copy()


def as_signs(values: Tensor) -> NDArray[np.int8]:
    """±1 values as a record keeps them; NaN has no sign."""
    if bool(torch.isnan(values).any()):
        raise ModelError("weights contain NaN: the training diverged, go back to an earlier checkpoint")
    return (values >= 0).to("cpu", torch.int8).mul(2).sub(1).contiguous().numpy()


class LikePlain(CompressedLayer):
    """Constructor that takes what the plain layer takes, or the plain layer itself.

    `class SLBFConv2d(LikeConv2d, SLBFLayer)` is all that a method writes for a layer class of its own.
    """

    stands_for: ClassVar[type[Plain]]

    def __init__(self, *args: Any, method: Method, init: Init = "random", **kwargs: Any) -> None:
        given = len(args) == 1 and not kwargs and isinstance(args[0], self.stands_for)
        super().__init__(args[0] if given else self.stands_for(*args, **kwargs), method, init)


class LikeConv1d(LikePlain):
    stands_for = nn.Conv1d


class LikeConv2d(LikePlain):
    stands_for = nn.Conv2d


class LikeLinear(LikePlain):
    stands_for = nn.Linear
