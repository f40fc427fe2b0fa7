"""`subbit bench`: a packed network beside the same network in other runtimes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.console import Console

from subbit import zoo
from subbit.cli.options import JsonOption
from subbit.errors import ConfigError, InputError
from subbit.records import Float32
from subbit.runtime import Network, load

if TYPE_CHECKING:
    from subbit.benchmark.session import Examples
    from subbit.data import DataSet


def command(
    file: Annotated[Path, typer.Argument(help="A .sbit file, or a name of the zoo.")],
    against: Annotated[
        str, typer.Option("--against", help="Runtimes to compare with, or none.")
    ] = "torch,onnxruntime,openvino",
    batch: Annotated[str, typer.Option("--batch", help="Batch sizes.")] = "1,32",
    threads: Annotated[str, typer.Option("--threads", help="Numbers of threads, the same for every runtime.")] = "1",
    layers: Annotated[bool, typer.Option("--layers", help="Time every layer and its stages.")] = False,
    data: Annotated[
        str | None, typer.Option("--data", help="A data set, for accuracy and for int8 ranges from real images.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Where the data set is.")] = None,
    images: Annotated[int, typer.Option("--images", min=1, help="Test images for the accuracy.")] = 1000,
    seconds: Annotated[float, typer.Option("--seconds", help="Time for each batch size and thread count.")] = 3.0,
    as_json: JsonOption = False,
) -> None:
    """Compare speed, size and accuracy with other runtimes.

    They run the same network twice, dense (every weight written out) and stacked (shared filters kept), in fp32 and,
    where they can, in int8. All take turns in one process; "× packed" is how many times as long as the packed
    network one takes, the median over rounds. Outputs are compared before anything is timed.
    """
    from subbit.benchmark.session import bench
    from subbit.benchmark.show import print_result

    file = zoo.find(file)
    net = load(file)
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    result = bench(
        net,
        against=[] if against in ("", "none") else [name.strip() for name in against.split(",")],
        batches=_numbers("--batch", batch),
        threads=_numbers("--threads", threads),
        seconds=seconds,
        examples=None if data is None else _examples(net, data, data_dir, images),
        layers=layers,
        progress=lambda text: errors.print(text, style="dim"),
    )
    if as_json:
        typer.echo(json.dumps({"file": str(file), **result.to_dict()}, indent=1))
    else:
        print_result(result)


def _numbers(option: str, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise ConfigError(f"{option} {text!r}: give positive numbers with commas between them, such as 1,32")
    return numbers


def _examples(net: Network, name: str, folder: Path | None, count: int) -> Examples:
    from subbit.benchmark.session import CALIBRATION_IMAGES, Examples
    from subbit.data import load as load_data

    dataset = load_data(name, folder)
    if dataset.shape != net.input_shape or net.output_shape != (len(dataset.classes),):
        raise InputError(
            f"{name} has images of shape {dataset.shape} and {len(dataset.classes)} classes, but this network maps "
            f"{net.input_shape} to {net.output_shape}"
        )
    test = dataset.test
    return Examples(
        _prepared(net, dataset, test.images[:count]),
        test.labels[:count],
        _prepared(net, dataset, dataset.train.images[:CALIBRATION_IMAGES]),
    )


def _prepared(net: Network, dataset: DataSet, pictures: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Float32:
    """As the file says, or by the data set's own statistics where it says nothing."""
    stored = net.preprocessing
    mean, std = (dataset.mean, dataset.std) if stored is None else (stored.mean, stored.std)
    scaled = pictures.astype(np.float32) / 255
    centred = scaled - np.asarray(mean, np.float32)[:, None, None]
    return np.ascontiguousarray(centred / np.asarray(std, np.float32)[:, None, None], dtype=np.float32)
