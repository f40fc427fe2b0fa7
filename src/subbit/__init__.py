"""subbit: convolutional networks far below one bit per weight.

    model = subbit.compress(my_cnn, subbit.methods.SLBF(f1=1/2, f2=1/4))    # needs torch
    subbit.pack(model, "net.sbit", example=torch.zeros(1, 3, 32, 32))         # needs torch
    logits = subbit.load("net.sbit")(images)                                  # NumPy alone

Importing subbit imports NumPy and nothing heavier; names that need torch are resolved when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from subbit.errors import (
    ConfigError,
    DataError,
    FormatError,
    InputError,
    MissingDependency,
    ModelError,
    PackError,
    SubbitError,
    TrainingError,
)

if TYPE_CHECKING:
    from subbit import methods, models, zoo
    from subbit.inspection import Report, inspect
    from subbit.nn.compress import compress
    from subbit.nn.pack import pack
    from subbit.nn.unpack import unpack
    from subbit.runtime import Network, load

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "DataError",
    "FormatError",
    "InputError",
    "MissingDependency",
    "ModelError",
    "Network",
    "PackError",
    "Report",
    "SubbitError",
    "TrainingError",
    "compress",
    "inspect",
    "load",
    "methods",
    "models",
    "pack",
    "unpack",
    "zoo",
]

# name -> (module, attribute); an empty attribute is the module itself
_LAZY = {
    "Network": ("subbit.runtime", "Network"),
    "Report": ("subbit.inspection", "Report"),
    "compress": ("subbit.nn.compress", "compress"),
    "inspect": ("subbit.inspection", "inspect"),
    "load": ("subbit.runtime", "load"),
    "methods": ("subbit.methods", ""),
    "models": ("subbit.models", ""),
    "pack": ("subbit.nn.pack", "pack"),
    "unpack": ("subbit.nn.unpack", "unpack"),
    "zoo": ("subbit.zoo", ""),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'subbit' has no attribute {name!r}")
    module_name, attribute = _LAZY[name]
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "subbit":
            raise
        raise MissingDependency(
            f"subbit.{name} needs {error.name}, which is not installed: pip install 'subbit[train]'", name=error.name
        ) from error
    value = getattr(module, attribute) if attribute else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
