"""`subbit pack`: a finished training run as a `.sbit` file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from subbit.cli.options import JsonOption
from subbit.errors import ConfigError

STORAGES = ("f16", "f32")


def command(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run (runs/…), or its model.pt.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("net.sbit"),
    storage: Annotated[str, typer.Option("--storage", help="Real numbers of the file: f16 or f32.")] = "f16",
    int8: Annotated[bool, typer.Option("--int8", help="Layers of ±1 filters compute in integers: faster.")] = False,
    calibrate: Annotated[
        str | None,
        typer.Option("--calibrate", help="With --int8: data set or folder whose training images give the ranges."),
    ] = None,
    images: Annotated[int, typer.Option("--images", min=1, help="Images for --calibrate.")] = 256,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Where the data set is.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a trained network as one small file that runs without PyTorch.

    Class names and the normalisation of pictures go into the file. With --int8 the activations in front of layers of ±1
    filters are rounded to seven bits; their ranges come from training images of the run's own data set, unless
    --calibrate names another. For a model of your own, call subbit.pack in Python.
    """
    if calibrate is not None and not int8:
        raise ConfigError("--calibrate goes with --int8: without it no ranges are stored")
    if storage not in STORAGES:
        raise ConfigError(f"--storage {storage}: choose from {', '.join(STORAGES)}")
    from subbit.inspection import inspect
    from subbit.nn.pack import pack
    from subbit.train import open_run
    from subbit.train.images import images_of

    trained: Any = open_run(run)
    result = pack(
        trained.model,
        output,
        example=trained.shape,
        storage=storage,  # type: ignore[arg-type]  # checked above
        labels=trained.classes,
        preprocessing=trained.preprocessing,
        int8=int8,
        calibrate=images_of(trained, "train", images, calibrate or "", data_dir) if int8 else None,
    )
    dense = inspect(trained.model, trained.shape).dense_bytes
    layers = list(result.program.weighted())
    integer = sum(op.levels is not None for op in layers)
    if as_json:
        counts = {"bytes": result.bytes, "dense_bytes": dense, "layers": len(layers), "integer_layers": integer}
        typer.echo(json.dumps({"file": str(result.path), **counts}, indent=2))
        return
    typer.echo(f"{result.path}: {result.bytes:,} bytes, {dense / result.bytes:.1f}× smaller than {dense:,} in fp32")
    if int8:
        typer.echo(f"{integer} of {len(layers)} layers compute in integers; subbit verify shows what that costs")
