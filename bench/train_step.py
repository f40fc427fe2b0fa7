"""Images per second of a full training step: VGG-16 dense against SLBF, all in one process, step by step in turn.

    python -m bench.train_step            writes bench/results/train_step/PROCESSOR.json
    python -m bench.train_step --ways     other ways to take the step of one network, into the same file
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
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn

import subbit
from bench.inference import plain_name
from subbit import host
from subbit.methods import SLBF
from subbit.models import vgg16
from subbit.train import Settings, convolutions, optim

RESULTS = Path(__file__).parent / "results" / "train_step"
SHARES = (("1/2", "1/2"), ("1/2", "1/4"), ("1/2", "1/8"))
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Key = TypeVar("Key")


PLAIN = "dense, plain convolutions"

WAYS_OF = ("1/2", "1/4")
AS_FIT = "channels last, as the recipe has it"


def networks() -> dict[str, nn.Module]:
    """The dense network and its compressed forms; linear layers stay as they are, as in the paper."""
    dense = vgg16()
    compressed = {f"slbf {a}, {b}": subbit.compress(dense, SLBF(f1=a, f2=b), keep=[nn.Linear]) for a, b in SHARES}
    return {"dense": dense, PLAIN: vgg16(), **compressed}


def training_step(
    model: nn.Module,
    batch: int,
    dtype: torch.dtype,
    memory: torch.memory_format = torch.channels_last,
    optimiser: torch.optim.Optimizer | None = None,
) -> Callable[[], float]:
    """A function that takes one step and returns its seconds."""
    model = model.to(memory_format=memory).train()  # type: ignore[call-overload]
    images = torch.randn(batch, 3, 32, 32).contiguous(memory_format=memory)
    labels = torch.randint(10, (batch,))
    optimiser = optimiser or torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
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
    rates: dict[str, dict[str, float]] = {}
    for (name, form), taken in in_turns(steps, rounds).items():
        rates.setdefault(name, {})[form] = round(batch / taken, 1)
    return rates


def in_turns(steps: Mapping[Key, Callable[[], float]], rounds: int) -> dict[Key, float]:
    """The median seconds of each step; the first turn warms up."""
    seconds: dict[Key, list[float]] = {key: [] for key in steps}
    gc.disable()
    for turn in range(rounds + 1):
        for key, step in steps.items():
            taken = step()
            if turn:
                seconds[key].append(taken)
    gc.enable()
    return {key: statistics.median(taken_all) for key, taken_all in seconds.items()}


def measure_ways(dtype: torch.dtype, batch: int, rounds: int) -> dict[str, float]:
    """Images per second of one network, with a step taken in other ways than `fit` takes it."""

    def network(quick: bool = True) -> nn.Module:
        model = subbit.compress(vgg16(), SLBF(f1=WAYS_OF[0], f2=WAYS_OF[1]), keep=[nn.Linear])
        if quick:
            convolutions.quicken(model)
        return model

    with_muon = network()
    muon = optim.optimizer(with_muon, Settings.resolve(data="cifar10", f1=WAYS_OF[0], f2=WAYS_OF[1]))
    compiled = cast(nn.Module, torch.compile(network(quick=False)))
    ways = {
        AS_FIT: (batch, training_step(network(), batch, dtype)),
        "the same with the recipe's optimiser, Muon for latents": (
            batch,
            training_step(with_muon, batch, dtype, optimiser=muon),
        ),
        "contiguous": (batch, training_step(network(), batch, dtype, torch.contiguous_format)),
        "PyTorch's convolutions alone": (batch, training_step(network(quick=False), batch, dtype)),
        "the same with torch.compile": (batch, training_step(compiled, batch, dtype)),
        "half as many images": (batch // 2, training_step(network(), batch // 2, dtype)),
        "twice as many images": (batch * 2, training_step(network(), batch * 2, dtype)),
    }
    taken = in_turns({name: step for name, (_, step) in ways.items()}, rounds)
    return {name: round(images / taken[name], 1) for name, (images, _) in ways.items()}


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
    parser.add_argument("--ways", action="store_true", help="other ways to take the step of one network")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    arguments = parser.parse_args()
    batch, rounds = (16, 2) if arguments.quick else (arguments.batch, arguments.rounds)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    about: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": host.commit(),
        "threads": arguments.threads,
        "batch": batch,
        "rounds": rounds,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    machine = processor()
    file = RESULTS / f"{plain_name(str(machine['cpu']), str(machine['cpu_model']))}.json"
    if arguments.ways:
        rates = {name: measure_ways(DTYPES[name], batch, rounds) for name in arguments.dtypes}
        print(json.dumps(rates, indent=1, ensure_ascii=False))
        if not arguments.quick:
            kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {**about, **machine}
            save(file, {**kept, "ways": {**about, "network": f"slbf {', '.join(WAYS_OF)}", **rates}})
        return
    result: dict[str, Any] = {
        "what": "images/s of a training step (forward, loss, backward, SGD with momentum), VGG-16, 32x32",
        **about,
        **machine,
    }
    for name in arguments.dtypes:
        result[name] = with_speedups(measure(DTYPES[name], batch, rounds))
        print(name)
        for network, row in result[name].items():
            formats = "  ".join(f"{form} {rate:7.1f}" for form, rate in row["images_per_second"].items())
            print(f"  {network:28}{formats}   {row['of_dense']:.2f}x of dense")
    if not arguments.quick:
        before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        save(file, {**result, **({"ways": before["ways"]} if "ways" in before else {})})


def save(file: Path, result: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
