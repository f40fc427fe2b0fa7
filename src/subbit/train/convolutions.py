"""Plain convolutions of a network in training, computed as those of compressed layers are."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from subbit.methods import quick


def quicken(model: nn.Module) -> None:
    """Let every plain convolution take the quicker way where there is one; its parameters and state stay."""
    for module in _plain(model):
        module.forward = partial(_forward, module)  # type: ignore[method-assign]


def restore(model: nn.Module) -> None:
    """Undo `quicken`."""
    for module in _plain(model):
        vars(module).pop("forward", None)


def _plain(model: nn.Module) -> list[nn.Conv2d]:
    return [module for module in model.modules() if type(module) is nn.Conv2d]  # a subclass may compute something else


def _forward(module: nn.Conv2d, x: Tensor) -> Tensor:
    result = None
    if module.groups == 1 and module.padding_mode == "zeros":
        padding = quick.pads(module.padding, module.kernel_size, module.dilation)
        result = quick.convolution(
            x, module.weight, module.bias, module.stride, padding, module.dilation, module.training
        )
    return nn.Conv2d.forward(module, x) if result is None else result
