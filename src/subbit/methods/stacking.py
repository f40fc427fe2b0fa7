"""What SLBF and LegoNet share: filters stacked from a bank, and the two equal ways to compute with them.

    d, c_in, c_out, g    kernel size, input and output channels, groups of the plain layer
    s                    depth of a shared filter, a divisor of c_in/g
    k = c_in/(g·s)       blocks per filter
    m                    shared filters, one bank for all groups
    P (c_out, k, m)      one non-zero per (filter, block): the chosen shared filter and its scale

Proposition 1: block i of filter t is P[t, i] · bank, so that a convolution with the stacked weight ("weight"
form) equals a convolution of every input block with the whole bank, followed by a 1×1 convolution with P
("feature" form: split, transform, merge).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subbit.errors import ConfigError, ModelError
from subbit.methods import small_maps, winograd
from subbit.methods.base import CompressedLayer, Method, check_choice
from subbit.records import Stacked, Weight
from subbit.selection import fixed_selection, spread

Form = Literal["auto", "feature", "weight"]
Share = Fraction | float | str

# Positions of an image up to which a grouped convolution on CPUs is slower in channels-last memory than the
# conversion to plain memory costs; measured on AVX-512 (up to 1.4× at 4×4, none at 8×8).
_SMALL_IMAGE = 16

_UNCHOSEN = 1 - 2**-10  # of a selector: enough to decide between equal filters

_LARGEST_DENOMINATOR = 4096  # a float such as 1/3 means the simplest fraction near it


@dataclass(frozen=True, repr=False)
class StackingMethod(Method):
    """Size of the bank: as shares f1 = s/c_in and f2 = m/c_out, or as numbers, `depth` = s and `filters` = m.

    A share that does not divide the channels takes the nearest depth that does, the deeper of two equally near
    ones. m is the nearest whole number to f2·c_out, a half rounded up, and at least 1.
    """

    f1: Share | None = None
    f2: Share | None = None
    depth: int | None = None
    filters: int | None = None
    form: Form = "auto"

    def __post_init__(self) -> None:
        self._check_size("f1", "depth")
        self._check_size("f2", "filters")
        check_choice(self, "form", ("auto", "feature", "weight"))

    def _check_size(self, share: str, number: str) -> None:
        given_share, given_number = getattr(self, share), getattr(self, number)
        who = type(self).__name__
        if (given_share is None) == (given_number is None):
            problem = "needs one of" if given_share is None else "takes only one of"
            raise ConfigError(f"{who} {problem} {share}= (a share such as 1/2) and {number}= (a whole number)")
        if given_share is not None:
            object.__setattr__(self, share, _fraction(who, share, given_share))
        elif isinstance(given_number, bool) or not isinstance(given_number, int) or given_number < 1:
            raise ConfigError(f"{who}({number}={given_number!r}): must be a whole number of at least 1")

    def depth_for(self, channels: int) -> int:
        """s for a layer whose filters have `channels` channels (c_in / groups)."""
        divisors = [n for n in range(1, channels + 1) if channels % n == 0]
        if self.depth is None:
            wanted = Fraction(self.f1 or 0) * channels
            return min(reversed(divisors), key=lambda s: abs(s - wanted))
        if self.depth not in divisors:
            allowed = ", ".join(map(str, divisors))
            raise ConfigError(
                f"depth={self.depth} does not divide {channels} channels per group: allowed are {allowed}"
            )
        return self.depth

    def filters_for(self, out_channels: int, blocks: int) -> int:
        """m for a layer of `out_channels` filters of `blocks` blocks."""
        if self.filters is None:
            return max(1, math.floor(Fraction(self.f2 or 0) * out_channels + Fraction(1, 2)))
        if self.filters > out_channels * blocks:
            raise ConfigError(
                f"filters={self.filters} is more than the {out_channels * blocks} blocks of the layer: use fewer"
            )
        return self.filters


def _fraction(who: str, field: str, value: Any) -> Fraction:
    problem = ConfigError(f"{who}({field}={value!r}): must be a share in (0, 1] such as 1/2, Fraction(1, 2) or '1/2'")
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Fraction)):
        raise problem
    try:
        fraction = Fraction(value)
    except (ValueError, OverflowError, ZeroDivisionError):
        raise problem from None
    if isinstance(value, float):
        fraction = fraction.limit_denominator(_LARGEST_DENOMINATOR)
    if not 0 < fraction <= 1:
        raise problem
    return fraction


class StackedLayer(CompressedLayer):
    """A layer whose filters are stacked from a shared bank.

    A method's layer gives `bank()` and `stacking()`, and `choice()`, the selection it would learn; everything
    that follows from them is here.
    """

    method: StackingMethod
    depth: int  # s
    blocks: int  # k
    filters: int  # m
    fixed: bool  # the selection follows a rule
    frozen: Tensor  # bool: the selection is `frozen_index` for good
    frozen_index: Tensor  # (c_out, k)

    def settle_size(self, device: torch.device, fixed: bool = False) -> None:
        """Settle s, k and m, say so where they are not what was asked for, and make room for the selection.

        A `fixed` selection is frozen from the start, and as it follows a rule it is no part of the state dict.
        """
        out_channels, channels = self.weight_shape[:2]
        self.depth = self.method.depth_for(channels)
        self.blocks = channels // self.depth
        self.filters = self.method.filters_for(out_channels, self.blocks)
        if self.method.f1 is not None and self.depth != self.method.f1 * channels:
            self.notes += (f"f1 = {self.method.f1} does not divide {channels} channels: depth {self.depth} instead",)
        index = torch.zeros(self.index_shape, dtype=torch.int64)
        self.fixed = fixed
        if fixed:
            index = torch.from_numpy(fixed_selection(*self.stacking_shape))
            if self.filters**self.blocks < out_channels:
                self.notes += (
                    f"{self.filters} filters in {self.blocks} blocks make {self.filters**self.blocks} combinations: "
                    f"some of the {out_channels} filters of the layer select the same",
                )
        self.register_buffer("frozen", torch.tensor(fixed, device=device), persistent=not fixed)
        self.register_buffer("frozen_index", index.to(device), persistent=not fixed)

    @property
    def index_shape(self) -> tuple[int, int]:
        return (self.weight_shape[0], self.blocks)

    @property
    def stacking_shape(self) -> tuple[int, int, int]:
        """Of P, Q and their like: (c_out, k, m)."""
        return (*self.index_shape, self.filters)

    @property
    def bank_shape(self) -> tuple[int, ...]:
        return (self.filters, self.depth, *self.weight_shape[2:])

    # -- what a method's layer implements

    def bank(self) -> Tensor:
        """The shared filters as the forward uses them, (m, s, *kernel)."""
        raise NotImplementedError

    def choice(self) -> Tensor:
        """The filter that each block would choose now, (c_out, k)."""
        raise NotImplementedError

    def stacking(self, index: Tensor) -> Tensor:
        """P (c_out, k, m) with its non-zeros at `index`, differentiable."""
        raise NotImplementedError

    def start_from(self, blocks: Tensor, filters: Tensor) -> None:
        """Fill the parameters from real `filters` (m, n), with scales as they fit `blocks` (c_out·k, n) best."""
        raise NotImplementedError

    @property
    def selector(self) -> nn.Parameter | None:
        """What chooses, (c_out, k, m), by the largest magnitude as `start_from` leaves it; None where a rule does."""
        raise NotImplementedError

    def split(self, weight: Tensor) -> Tensor:
        """The blocks of a plain weight, (c_out·k, s·d²), ready to be fitted."""
        return weight.detach().to("cpu", torch.float64).reshape(math.prod(self.index_shape), -1)

    def start_record(self, record: Weight, gain: Tensor) -> None:
        """As `record`. Where selections learn, a bank that is larger than the file's has its filters several times.

        Blocks that shared a filter are divided among its copies then: the same weights, with more to learn.
        """
        assert isinstance(record, Stacked)
        if record.depth != self.depth or record.filters > self.filters:
            raise ModelError(
                f"{record.filters} shared filters of depth {record.depth} do not fit a layer of {self.filters} of "
                f"depth {self.depth}: f1 must be that of the file, and f2 no less"
            )
        index, copied = spread(record.index, record.filters, record.filters if self.fixed else self.filters)
        if self.fixed and not np.array_equal(index, self.frozen_index.cpu().numpy()):
            raise ModelError(
                f"the fixed rule for {self.filters} shared filters is not how the file selects from {record.filters}: "
                "use selection='learned'"
            )
        if not self.fixed:
            self.frozen.fill_(False)
        blocks = self.split(torch.from_numpy(record.weight()) * gain.reshape(-1, *[1] * (len(record.shape) - 1)))
        bank = self.bank().detach().flatten(1).to("cpu", torch.float64)
        bank[: len(copied)] = torch.from_numpy(record.bank[copied]).flatten(1).double()  # the rest is used by no block
        self.start_from(blocks, bank)
        if self.selector is not None:  # between equal filters
            chosen = self.one_hot(torch.from_numpy(index).to(self.selector.device))
            self.selector.mul_(torch.where(chosen, 1.0, _UNCHOSEN))

    # -- selection

    def selected_index(self) -> Tensor:
        """The shared filter of every block, (c_out, k)."""
        return torch.where(self.frozen, self.frozen_index, self.choice())

    @torch.no_grad()
    def freeze_selection(self) -> None:
        """Keep the present selection for good; scales and filters go on learning. Part of the state dict."""
        self.frozen_index.copy_(self.selected_index())
        self.frozen.fill_(True)

    def one_hot(self, index: Tensor) -> Tensor:
        """Mask (c_out, k, m) of the selection."""
        return index.unsqueeze(2) == torch.arange(self.filters, device=index.device)

    def passing(self, proxy: Tensor) -> Tensor:
        """Zeros whose gradient reaches every entry of `proxy`, until the selection is frozen."""
        return (proxy - proxy.detach()).masked_fill(self.frozen, 0)

    # -- the two forms

    def forward(self, x: Tensor) -> Tensor:
        form = self.method.form
        if form == "auto":
            form = self.cheaper_form(x)
        return self._feature_form(x) if form == "feature" else super().forward(x)

    def effective_weight(self) -> Tensor:
        index = self.selected_index()
        stacked: Tensor = _Stack.apply(self.stacking(index), self.bank(), index)  # type: ignore[no-untyped-call]
        return stacked.reshape(self.weight_shape)

    def _feature_form(self, x: Tensor) -> Tensor:
        bank, stacking = self.bank(), self.stacking(self.selected_index())
        merge = stacking.flatten(1)  # (c_out, k·m)
        if self.kind == "linear":
            # (…, k·s) -> (…, k, s) -> (…, k, m) -> (…, k·m) -> (…, c_out)
            features = F.linear(x.reshape(*x.shape[:-1], self.blocks, self.depth), bank)
            return F.linear(features.flatten(-2), merge, self.bias)
        # every block of every group meets the same bank: (N, g·k·s, …) -> (N, g·k·m, …) -> (N, c_out, …)
        copies = self.groups * self.blocks
        if x.shape[1] == copies * self.depth and small_maps.pays(x, bank.shape):
            features = self.plain(x.reshape(-1, self.depth, *x.shape[2:]), bank, groups=1)
            return self._merged(features.reshape(-1, copies * self.filters, *features.shape[2:]), merge)
        if self._filters_minimally(x, bank):
            # (N, k·s, H, W) -> (H, W, N·k, s) -> (H', W', N·k, m) -> (H', W', N, c_out)
            blocks = x.permute(2, 3, 0, 1).reshape(*x.shape[2:], -1, self.depth)
            features = winograd.pixels_first(blocks, bank, self.pads())
            merged = F.linear(features.reshape(*features.shape[:2], len(x), -1), merge, self.bias)
            return winograd.images_first(merged, x, bank)
        repeated = bank.repeat(copies, *[1] * (bank.ndim - 1))
        by_product = winograd.is_channels_last(x) and self.groups == 1
        if by_product and x.device.type == "cpu" and x.shape[2] * x.shape[3] <= _SMALL_IMAGE:
            x = x.contiguous()
        elif by_product:
            repeated = repeated.contiguous(memory_format=torch.channels_last)
        features = self.plain(x, repeated, groups=copies)
        if by_product:  # the channels lie together: the merge is a matrix product, and stays channels-last
            return F.linear(features.permute(0, 2, 3, 1), merge, self.bias).permute(0, 3, 1, 2)
        return self._merged(features, merge)

    def _filters_minimally(self, x: Tensor, bank: Tensor) -> bool:
        fits = self.training and self.groups == 1 and self.kind == "conv2d" and self.padding_mode == "zeros"
        fits = fits and x.ndim == 4 and x.shape[1] == self.blocks * self.depth
        return fits and winograd.pays(x, bank, self.stride, self.pads(), self.dilation)

    def _merged(self, features: Tensor, merge: Tensor) -> Tensor:
        """Features (N, g·k·m, …) merged by a 1×1 convolution with P."""
        merge = merge.reshape(*merge.shape, *[1] * len(self.kernel_size))
        convolution = F.conv1d if self.kind == "conv1d" else F.conv2d
        return convolution(features, merge, self.bias, groups=self.groups)

    def cheaper_form(self, x: Tensor) -> Form:
        """The form with fewer multiplications per output position, the building of the weight included."""
        out_channels, channels = self.weight_shape[:2]
        kernel = math.prod(self.weight_shape[2:])
        positions = max(1, x.numel() // (channels * self.groups) // math.prod(getattr(self, "stride", ())))
        dense = self.fan_in * out_channels
        transform = self.filters * channels * self.groups * kernel
        merge = self.blocks * self.filters * out_channels
        building = dense * self.filters
        return "feature" if (transform + merge) * positions < dense * positions + building else "weight"

    def chosen_scale(self, index: Tensor) -> Tensor:
        """The non-zeros of P, (c_out, k)."""
        return self.stacking(index).gather(2, index.unsqueeze(2)).squeeze(2)


class _Stack(torch.autograd.Function):
    """Stacked weights (c_out, k, s·d²) from P (c_out, k, m), bank (m, s, *kernel) and index (c_out, k).

    Forward picks and scales the chosen filters, which is exact in every precision; backward is that of the matrix
    product P · bank, so that every entry of P gets its gradient (eq. 13).
    """

    @staticmethod
    def forward(ctx: Any, stacking: Tensor, bank: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(stacking, bank)
        scale = stacking.gather(2, index.unsqueeze(2))
        blocks: Tensor = bank.flatten(1)[index] * scale  # (c_out, k, s·d²)
        return blocks

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        stacking, bank = ctx.saved_tensors
        blocks = grads[0].reshape(-1, bank[0].numel())  # (c_out·k, s·d²)
        to_stacking = blocks @ bank.flatten(1).T
        to_bank = stacking.flatten(0, 1).T @ blocks
        return to_stacking.reshape(stacking.shape), to_bank.reshape(bank.shape), None
