"""`subbit pack`: a finished training run as a `.sbit` file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from subbit.errors import ConfigError

STORAGES = ("f16", "f32")


def command(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run (runs/…), or its model.pt.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("net.sbit"),
    storage: Annotated[str, typer.Option("--storage", help="Real numbers of the file: f16 or f32.")] = "f16",
) -> None:
    """Write a trained network as one small file that runs without PyTorch.

    Class names and the normalisation of pictures go into the file. For a model of your own, call subbit.pack in Python.
    """
    if storage not in STORAGES:
        raise ConfigError(f"--storage {storage}: choose from {', '.join(STORAGES)}")
    from subbit.inspection import inspect
    from subbit.nn.pack import pack
    from subbit.train import open_run

    trained: Any = open_run(run)
    result = pack(
        trained.model,
        output,
        example=trained.shape,
        storage=storage,  # type: ignore[arg-type]  # checked above
        labels=trained.classes,
        preprocessing=trained.preprocessing,
    )
    dense = inspect(trained.model, trained.shape).dense_bytes
    typer.echo(f"{result.path}: {result.bytes:,} bytes, {dense / result.bytes:.1f}× smaller than {dense:,} in fp32")
