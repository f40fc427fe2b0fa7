"""Images per second of a full training step: VGG-16 dense against SLBF, all in one process, step by step in turn.

    python -m bench.train_step            writes bench/results/train_step/PROCESSOR.json
    python -m bench.train_step --quick    small batch, few rounds, writes nothing

A step is forward, loss, backward and SGD with momentum on a random batch, with convolutions as `fit` has them; the
dense network is there with PyTorch's own as well. The networks take turns (one step of each, again and again), so that
whatever else the machine does hits all of them alike; the median step counts. Memory formats are measured for both
sides and each network is credited with its faster one.

What bounds it: with plain convolutions the operations alone would allow 1.5×, 3× and 6×, and minimal filtering saves
the dense network more than the others, which have fewer filters to spread its cost over. BatchNorm, ReLU, pooling,
the first convolution and the classifier are the same in all networks.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import nn

import subbit
from bench.inference import plain_name
from subbit import host
from subbit.methods import SLBF
from subbit.models import vgg16
from subbit.train import convolutions

RESULTS = Path(__file__).parent / "results" / "train_step"
SHARES = (("1/2", "1/2"), ("1/2", "1/4"), ("1/2", "1/8"))
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


PLAIN = "dense, plain convolutions"


def networks() -> dict[str, nn.Module]:
    """The dense network and its compressed forms; linear layers stay as they are, as in the paper."""
    dense = vgg16()
    compressed = {f"slbf {a}, {b}": subbit.compress(dense, SLBF(f1=a, f2=b), keep=[nn.Linear]) for a, b in SHARES}
    return {"dense": dense, PLAIN: vgg16(), **compressed}


def training_step(model: nn.Module, batch: int, dtype: torch.dtype, memory: torch.memory_format) -> Callable[[], float]:
    """A function that takes one step and returns its seconds."""
    model = model.to(memory_format=memory).train()  # type: ignore[call-overload]
    images = torch.randn(batch, 3, 32, 32).contiguous(memory_format=memory)
    labels = torch.randint(10, (batch,))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_function = nn.CrossEntropyLoss()

    def step() -> float:
        start = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        with nullcontext() if dtype == torch.float32 else torch.autocast("cpu", dtype=dtype):
            loss = loss_function(model(images), labels)
        loss.backward()
        optimiser.step()
        return time.perf_counter() - start

    return step


def measure(dtype: torch.dtype, batch: int, rounds: int) -> dict[str, dict[str, float]]:
    """Images per second of every network in every memory format."""
    steps: dict[tuple[str, str], Callable[[], float]] = {}
    for form, memory in FORMATS.items():
        for name, model in networks().items():
            if name != PLAIN:
                convolutions.quicken(model)
            steps[name, form] = training_step(model, batch, dtype, memory)
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in steps}
    gc.disable()
    for turn in range(rounds + 1):
        for key, step in steps.items():
            taken = step()
            if turn:  # the first turn warms up
                seconds[key].append(taken)
    gc.enable()
    rates: dict[str, dict[str, float]] = {}
    for (name, form), taken_all in seconds.items():
        rates.setdefault(name, {})[form] = round(batch / statistics.median(taken_all), 1)
    return rates


def with_speedups(rates: dict[str, dict[str, float]]) -> dict[str, dict[str, Any]]:
    """Each network with its faster memory format and how it compares with the dense one at its own best."""
    best = {name: max(by_form.values()) for name, by_form in rates.items()}
    return {
        name: {"images_per_second": by_form, "of_dense": round(best[name] / best["dense"], 2)}
        for name, by_form in rates.items()
    }


def processor() -> dict[str, str | bool]:
    """Name and model, and whether it multiplies bfloat16 by itself: elsewhere that is emulated and slow."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    return {
        "cpu": host.processor(),
        "cpu_model": host.processor_model(),
        "bfloat16_hardware": "avx512_bf16" in flags or "amx_bf16" in flags,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="images per second of a training step, VGG-16 dense against SLBF")
    parser.add_argument("--quick", action="store_true", help="batch 16 and two rounds; writes no result")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    arguments = parser.parse_args()
    batch, rounds = (16, 2) if arguments.quick else (arguments.batch, arguments.rounds)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    result: dict[str, Any] = {
        "what": "images/s of a training step (forward, loss, backward, SGD with momentum), VGG-16, 32x32",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": host.commit(),
        **processor(),
        "threads": arguments.threads,
        "batch": batch,
        "rounds": rounds,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    for name in arguments.dtypes:
        result[name] = with_speedups(measure(DTYPES[name], batch, rounds))
        print(name)
        for network, row in result[name].items():
            formats = "  ".join(f"{form} {rate:7.1f}" for form, rate in row["images_per_second"].items())
            print(f"  {network:28}{formats}   {row['of_dense']:.2f}x of dense")
    if not arguments.quick:
        RESULTS.mkdir(parents=True, exist_ok=True)
        file = RESULTS / f"{plain_name(result['cpu'], result['cpu_model'])}.json"
        file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
