"""The standard set: packed VGG-16 and ResNet-18 beside the same networks in ONNX Runtime, in one process.

    python -m bench                     writes bench/results/inference/MACHINE.json, plot, tables of the documents
    python -m bench vgg16-1/2-1/8       measures one network anew and keeps the others
    python -m bench --quick             a second per network, writes nothing

Weights are random; BatchNorm has the statistics that a batch of random images gives, so that activations are of the
size that they are in a trained network. Nothing that is timed here depends on the values of the weights.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import subbit
from subbit.benchmark import Contestant, interleave, ratio
from subbit.benchmark.rivals import RUNTIMES, Graphs
from subbit.benchmark.session import Result, bench, compare, describe_machine, packed
from subbit.format import decode, encode
from subbit.methods import BWN, SLBF
from subbit.methods.base import Method
from subbit.models import resnet18, vgg16
from subbit.models.blocks import convolution
from subbit.nn.pack import to_program
from subbit.records import Float32
from subbit.runtime import Network

RESULTS = Path(__file__).parent / "results" / "inference"  # a file for every kind of machine
SHARES = (("1/2", "1/2"), ("1/2", "1/4"), ("1/2", "1/8"))
SLIM_WIDTHS = ("1/2", "1/4")
LOADS = 20
LIMITS = 9


@dataclass(frozen=True)
class Case:
    """A network of the set. `method` None: dense."""

    name: str
    network: str
    make: Callable[[], nn.Module]
    method: Method | None
    input_shape: tuple[int, int, int] = (3, 32, 32)
    batches: tuple[int, ...] = (1, 32)
    convolutions_only: bool = False  # linear layers stay dense, as in the paper

    @property
    def label(self) -> str:
        if isinstance(self.method, SLBF):
            kept = ", linear layers dense" if self.convolutions_only else ""
            return f"({self.method.f1}, {self.method.f2}){kept}"
        return "dense" if self.method is None else type(self.method).__name__


def imagenet_resnet18() -> nn.Module:
    """ResNet-18 with the stem of its ImageNet form: 7×7 of stride 2, then 3×3 pooling of stride 2; 1,000 classes."""
    model = resnet18(num_classes=1000)
    model.conv1 = convolution(3, 64, 7, 2, 3)
    model.relu = nn.Sequential(nn.ReLU(), nn.MaxPool2d(3, 2, 1))  # type: ignore[assignment]
    return model


def standard_set() -> Iterator[Case]:
    """VGG-16 has 13 convolutions; the first of them and the last linear layer stay dense, as `compress` does it."""
    for f1, f2 in SHARES:
        yield Case(f"vgg16-{f1}-{f2}", "VGG-16", vgg16, SLBF(f1=f1, f2=f2))
    yield Case("vgg16-convolutions", "VGG-16", vgg16, SLBF(f1="1/2", f2="1/8"), convolutions_only=True)
    for f1, f2 in SHARES:
        yield Case(f"resnet18-{f1}-{f2}", "ResNet-18", resnet18, SLBF(f1=f1, f2=f2))
    yield Case("vgg16-bwn", "VGG-16", vgg16, BWN(), batches=(1,))
    yield Case(
        "resnet18-224", "ResNet-18, 224×224", imagenet_resnet18, SLBF(f1="1/2", f2="1/4"), (3, 224, 224), batches=(1,)
    )


def packed_bytes(case: Case) -> bytes:
    """The file of a case, from fixed random weights."""
    torch.manual_seed(0)
    model = case.make()
    if case.method is not None:
        model = subbit.compress(model, case.method, keep=[nn.Linear] if case.convolutions_only else [])
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # the plain mean over batches
    with torch.no_grad():
        model.train()(torch.randn(16 if case.input_shape[1] <= 32 else 2, *case.input_shape))
    return encode(to_program(model.eval(), case.input_shape))


def run_case(case: Case, seconds: float, others: list[Contestant]) -> dict[str, Any]:
    """Everything that is measured of one network."""
    data = packed_bytes(case)
    net = subbit.load(data)
    # the packed network on AVX2 as well, where the machine's own row is AVX-512
    second = subbit.load(data, isa="avx2") if net.isa == "avx512" else None
    rows = [Contestant("subbit avx2", "packed", "fp32", len(data), second)] if second else []
    result = bench(net, against=["onnxruntime"], batches=case.batches, others=[*rows, *others], seconds=seconds)
    for skipped in result.skipped:
        print(f"  skipped {skipped.name}: {skipped.reason}")
    measured = result.to_dict()
    return {
        "name": case.name,
        "network": case.network,
        "label": case.label,
        "bytes": len(data),
        **loading(data),
        **({"two_threads": two_threads(net, seconds)} if 32 in case.batches else {}),
        **({"limit_over_avx2": limits_apart(net, second)} if second else {}),
        **{key: measured[key] for key in ("limits", "contestants", "settings", "skipped")},
    }


def limits_apart(net: Network, other: Network) -> float:
    """How many times as many look-ups of ±1 sums a core can do with one row as with another, measured in turns."""
    pairs = [(net.measure_limits().look_ups, other.measure_limits().look_ups) for _ in range(LIMITS)]
    return statistics.median(first / second for first, second in pairs)


def dense_rivals() -> list[Contestant]:
    """Dense VGG-16 run by subbit; and of smaller widths in ONNX Runtime, each compared with its own packed form."""
    rivals = []
    for width in ("1", *SLIM_WIDTHS):
        data = packed_bytes(Case("slim", "VGG-16", partial(vgg16, width=float(Fraction(width))), None))
        net = subbit.load(data)
        x = images(net, 16)
        result = Result(describe_machine(net), net.measure_limits())
        runtime = RUNTIMES["onnxruntime"].contestants(Graphs(decode(data), x), 1) if width != "1" else ()
        suffix = f" width {width}" if width != "1" else ""
        own, *agreeing = [one for one, _ in compare([packed(net, 1), *runtime], x, result)]
        rivals.append(Contestant(f"subbit{suffix}", "dense", own.precision, own.bytes, own.run))
        rivals += [Contestant(f"onnxruntime{suffix}", one.form, one.precision, one.bytes, one.run) for one in agreeing]
    return rivals


def images(net: Network, count: int) -> Float32:
    return np.random.default_rng(0).standard_normal((count, *net.input_shape), dtype=np.float32)


def two_threads(net: Network, seconds: float) -> float:
    """How many times as fast a batch of 32 is with two threads: median over rounds."""
    x = images(net, 32)
    calls = {str(threads): lambda threads=threads: net(x, threads=threads) for threads in (1, 2)}
    taken = interleave(calls, seconds=seconds, threads=2)
    return ratio(taken["1"], taken["2"]).median


MEMORY = """
import sys
import numpy as np
import subbit

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

small = subbit.load(sys.argv[2])  # the core itself, and what the first call of anything takes
small(np.zeros(small.input_shape, np.float32))
before = resident()
net = subbit.load(sys.argv[1])
x = np.zeros(net.input_shape, np.float32)
net(x)
print(resident() - before)
"""


def loading(data: bytes) -> dict[str, Any]:
    """Seconds to load the file, median; bytes resident after loading it and running one image, in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        path, small = Path(folder, "net.sbit"), Path(folder, "small.sbit")
        path.write_bytes(data)
        torch.manual_seed(0)
        small.write_bytes(encode(to_program(nn.Sequential(nn.Conv2d(1, 1, 1)).eval(), (1, 4, 4))))
        taken = []
        for _ in range(LOADS):
            start = time.process_time()
            net = subbit.load(path)
            taken.append(time.process_time() - start)
        resident = None
        if sys.platform.startswith("linux"):
            command = [sys.executable, "-c", MEMORY, str(path), str(small)]
            resident = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return {"load_seconds": statistics.median(taken), "resident_bytes": resident, "memory_bytes": net.memory}


def run_set(seconds: float, names: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """The networks of the standard set, or those in `names`, one after the other."""
    dense = dense_rivals()
    for case in standard_set():
        if names and case.name not in names:
            continue
        print(f"{case.network} {case.label}", flush=True)
        yield run_case(case, seconds, dense if case.network == "VGG-16" and isinstance(case.method, SLBF) else [])


def merged(
    kept: dict[str, Any] | None, case: dict[str, Any], machine: dict[str, Any], *, quieter: bool = False
) -> dict[str, Any]:
    """The kept results of a machine with one network measured anew. Those with other versions are dropped.

    `quieter`: what was measured before at the same commit stays, if all contestants together took less time then.
    """
    same = kept is not None and all(kept["machine"][key] == machine[key] for key in ("cpu", "isa", "versions"))
    cases = {one["name"]: one for one in kept["cases"]} if kept is not None and same else {}
    before = cases.get(case["name"])
    if not (quieter and before and before["commit"] == machine["commit"] and busy(before) <= busy(case)):
        cases[case["name"]] = {"commit": machine["commit"], **case}
    return {
        "what": "seconds per call and times the packed network, one thread; median and quartiles over rounds",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {key: value for key, value in machine.items() if key != "commit"},
        "cases": [cases[one.name] for one in standard_set() if one.name in cases],
    }


def busy(case: dict[str, Any]) -> float:
    """Seconds that one call of every contestant takes at batch 1: grows with whatever else the machine does."""
    return sum(float(one["seconds"]["median"]) for one in case["settings"][0]["contestants"].values())


def this_machine() -> dict[str, Any]:
    smallest = Case("smallest", "", lambda: nn.Sequential(nn.Conv2d(1, 1, 1)), None, (1, 4, 4))
    return describe_machine(subbit.load(packed_bytes(smallest)))


def result_file(machine: dict[str, Any]) -> Path:
    """Of this processor and its kernels: measurements of different machines do not replace each other."""
    return RESULTS / f"{plain_name(machine['cpu'], machine.get('cpu_model', ''), machine['isa'])}.json"


def plain_name(*words: str) -> str:
    """The name of a file: of "Intel(R) Xeon(R) Processor" intel-xeon."""
    plain = re.sub(r"\(r\)|processor", "", " ".join(words).lower())
    return re.sub("[^a-z0-9]+", "-", plain).strip("-")


def kept_result(machine: dict[str, Any]) -> dict[str, Any] | None:
    file = result_file(machine)
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def save(result: dict[str, Any]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    result_file(result["machine"]).write_text(text, encoding="utf-8")
