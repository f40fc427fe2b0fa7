"""Load and run packed networks: NumPy and the C core, no torch.

net = subbit.load("net.sbit")
logits = net(images)                            # float32 (N, 3, 32, 32) -> (N, classes)
classes = net.predict(images, threads=4)
"""

from __future__ import annotations

from subbit.runtime.network import Limits, Network, Operation, Times, load

__all__ = ["Limits", "Network", "Operation", "Times", "load"]
