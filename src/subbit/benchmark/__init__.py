"""How fast a packed network is, beside the same network in other runtimes.

    result = bench(subbit.load("net.sbit"), against=["onnxruntime"], batches=[1, 32])
    print(result.settings[0].ratio("onnxruntime dense fp32").median)     # times as long as the packed network

NumPy alone; a runtime that is not installed is named in `result.skipped`.
"""

from __future__ import annotations

from subbit.benchmark.layers import LayerTime, layer_times
from subbit.benchmark.measure import Spread, interleave, ratio
from subbit.benchmark.rivals import RUNTIMES, Contestant
from subbit.benchmark.session import Result, Setting, bench

__all__ = [
    "RUNTIMES",
    "Contestant",
    "LayerTime",
    "Result",
    "Setting",
    "Spread",
    "bench",
    "interleave",
    "layer_times",
    "ratio",
]
