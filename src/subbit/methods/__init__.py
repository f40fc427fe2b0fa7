"""The six methods: one file each, all of one shape. Adding one is that file and a line here.

method = SLBF(f1=1/2, f2=1/4)
layer = method.layer(nn.Conv2d(16, 32, 3))      # what `subbit.compress` does to every layer of a model
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from subbit.errors import ConfigError
from subbit.methods.base import CompressedLayer, Method
from subbit.methods.binaryconnect import BinaryConnect, BinaryConnectConv1d, BinaryConnectConv2d, BinaryConnectLinear
from subbit.methods.bnn import BNN, BNNConv1d, BNNConv2d, BNNLinear
from subbit.methods.bwn import BWN, BWNConv1d, BWNConv2d, BWNLinear
from subbit.methods.legonet import LegoNet, LegoNetConv1d, LegoNetConv2d, LegoNetLinear
from subbit.methods.slbf import SLBF, SLBFConv1d, SLBFConv2d, SLBFLinear
from subbit.methods.xnornet import XNORNet, XNORNetConv1d, XNORNetConv2d, XNORNetLinear

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (SLBF, LegoNet, BinaryConnect, BWN, BNN, XNORNet)
}  # fmt: skip


def from_config(config: Mapping[str, Any]) -> Method:
    """The method that `method.config()` describes.

    >>> from_config({"name": "slbf", "f1": "1/2", "f2": "1/4"})
    SLBF(f1=1/2, f2=1/4)
    """
    options = dict(config)
    name = options.pop("name", None)
    if not isinstance(name, str) or name not in METHODS:
        raise ConfigError(f"unknown method {name!r}: choose one of {', '.join(METHODS)}")
    known = [field.name for field in fields(METHODS[name])]  # type: ignore[arg-type]  # every method is a dataclass
    unknown = [str(key) for key in options if key not in known]
    if unknown:
        raise ConfigError(f"method {name!r} has no {', '.join(unknown)}; its options: {', '.join(known) or 'none'}")
    return METHODS[name](**options)


__all__ = [
    "BNN",
    "BWN",
    "METHODS",
    "SLBF",
    "BNNConv1d",
    "BNNConv2d",
    "BNNLinear",
    "BWNConv1d",
    "BWNConv2d",
    "BWNLinear",
    "BinaryConnect",
    "BinaryConnectConv1d",
    "BinaryConnectConv2d",
    "BinaryConnectLinear",
    "CompressedLayer",
    "LegoNet",
    "LegoNetConv1d",
    "LegoNetConv2d",
    "LegoNetLinear",
    "Method",
    "SLBFConv1d",
    "SLBFConv2d",
    "SLBFLinear",
    "XNORNet",
    "XNORNetConv1d",
    "XNORNetConv2d",
    "XNORNetLinear",
    "from_config",
]
