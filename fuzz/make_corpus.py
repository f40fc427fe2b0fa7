"""Writes the seeds of the fuzzer: one small file per operation and regime, from the programs of the tests.

python -m fuzz.make_corpus fuzz/corpus
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from tests.core_cases import CASES, FUNCTIONS, everything, program

from subbit import records as r
from subbit.format import encode


def seeds() -> dict[str, bytes]:
    """Name to file; fp16 where it is smaller, so that mutations of the payload stay likely to be numbers."""
    files = {name: encode(replace(make(), storage="f16")) for name, make in CASES.items()}
    files |= {f"everything_{storage}": encode(replace(everything(), storage=storage)) for storage in ("f16", "f32")}
    for function, (a, b) in FUNCTIONS.items():
        files[f"function_{function}"] = encode(program((3,), r.Activation(inputs=(0,), function=function, a=a, b=b)))
    return files


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in seeds().items():
        (folder / name).write_bytes(data)
