"""`subbit run`: what a packed network sees in pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from subbit import zoo
from subbit.cli.options import JsonOption
from subbit.errors import ConfigError, InputError
from subbit.records import Float32, Preprocessing
from subbit.runtime import Network, load


def command(
    file: Annotated[Path, typer.Argument(help="A .sbit file, or a name of the zoo.")],
    pictures: Annotated[list[Path], typer.Argument(help="Pictures in any format that Pillow reads.")],
    top: Annotated[int, typer.Option(help="How many classes to print for each picture.", min=1)] = 5,
    as_json: JsonOption = False,
) -> None:
    """Classify pictures with a packed network, without PyTorch."""
    from subbit.runtime.pictures import read_picture

    file = zoo.find(file)
    net = load(file)
    preprocessing = _preprocessing(net, file)
    results: list[dict[str, Any]] = []
    for picture in pictures:  # one at a time: there may be more of them than memory
        chances = _probabilities(net, net(read_picture(picture, preprocessing)))
        best = np.argsort(-chances, kind="stable")[:top]
        results.append({"file": str(picture), "classes": [_describe(net, int(i), float(chances[i])) for i in best]})
    typer.echo(json.dumps(results, indent=2, ensure_ascii=False) if as_json else "\n".join(map(_as_text, results)))


def _preprocessing(net: Network, file: Path) -> Preprocessing:
    if len(net.output_shape) != 1:
        raise ConfigError(f"{file} gives values of shape {net.output_shape}, not one number per class")
    if net.preprocessing is None:
        raise ConfigError(
            f"{file} does not say how a picture becomes an input: pack it with preprocessing=Preprocessing(mean, std, "
            "size), or use subbit.load(file) on arrays"
        )
    expected = (len(net.preprocessing.mean), *net.preprocessing.size)
    if net.input_shape != expected:
        raise InputError(f"{file} prepares pictures as {expected}, but its network takes {net.input_shape}")
    return net.preprocessing


def _probabilities(net: Network, outputs: Float32) -> Float32:
    """Softmax of the outputs, unless the network ends with one."""
    operations = net.operations
    if operations and operations[-1].kind == "Softmax":
        return outputs
    exponentials = np.exp(outputs - outputs.max())
    return np.asarray(exponentials / exponentials.sum(), dtype=np.float32)


def _describe(net: Network, number: int, probability: float) -> dict[str, Any]:
    label = net.labels[number] if number < len(net.labels) else f"class {number}"
    return {"class": number, "label": label, "probability": round(probability, 6)}


def _as_text(result: dict[str, Any]) -> str:
    lines = [f"{100 * entry['probability']:6.2f} %  {entry['label']}" for entry in result["classes"]]
    return "\n".join([result["file"], *lines])
