"""`subbit demo`: train, pack and run a compressed LeNet-5 on the digits inside the package."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable

if TYPE_CHECKING:
    from subbit.data.dataset import DataSet
    from subbit.experiments.run import Job
    from subbit.train import Run


@dataclass(frozen=True)
class Packed:
    """A trained network as a file, and what the two say about the test digits."""

    label: str
    path: Path
    predicted: int  # bytes
    dense_bytes: int
    weights: int
    accuracy: float  # of PyTorch, percent
    core_accuracy: float  # of the file
    agreement: float  # share of digits for which both say the same class, percent
    torch_seconds: float
    core_seconds: float

    @property
    def size(self) -> int:
        return self.path.stat().st_size


def command(
    out: Annotated[
        Path, typer.Option("--out", help="Folder for runs, files and report; finished runs are reused.")
    ] = Path("runs/demo"),
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="Passes over the 12,000 digits.")] = None,
) -> None:
    """Train LeNet-5 dense and stacked from binary filters, pack both, and run the files: about two minutes."""
    from subbit import data
    from subbit.experiments.report import write_report
    from subbit.experiments.run import missing_jobs, run_job
    from subbit.experiments.spec import load_spec
    from subbit.experiments.table import build_table
    from subbit.train import open_run

    console = Console()
    out.mkdir(parents=True, exist_ok=True)
    # The ledger lies beside its spec, so the spec goes where the results are to go.
    path = out / "demo.toml"
    path.write_text(files("subbit.experiments").joinpath("demo.toml").read_text(encoding="utf-8"), encoding="utf-8")
    spec = load_spec(path)
    digits = data.load("digits")
    packed = []
    for job in missing_jobs(spec, (), spec.rows, epochs=epochs):
        run_job(job, out, console=console)
        packed.append(pack_and_compare(job, open_run(out / job.folder), out / f"{job.row.name}.sbit", digits))
    console.print(_results(packed))
    for result in packed:
        console.print(_comparison(result), highlight=False, soft_wrap=True)
    page, _ = write_report([build_table(spec)], out)
    smallest = min(packed, key=lambda result: result.size)
    console.print(f"\nReport with tables and figures: [bold]{page.resolve()}[/bold]", soft_wrap=True)
    console.print(f"Look into the file: [bold]subbit inspect {smallest.path}[/bold]", soft_wrap=True)


def pack_and_compare(job: Job, run: Run, path: Path, digits: DataSet) -> Packed:
    """Packs a trained network and runs the test digits through the file and through PyTorch."""
    import numpy as np
    import torch

    import subbit
    from subbit.nn.pack import to_program
    from subbit.train.batches import plain_batches

    example = torch.zeros(1, *run.shape)
    program = to_program(run.model, example, labels=run.classes, preprocessing=run.preprocessing)
    report = subbit.inspect(run.model, run.shape)
    subbit.pack(run.model, path, example=example, labels=run.classes, preprocessing=run.preprocessing)
    batches = [images for images, _ in plain_batches(digits, digits.test)]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the file runs on one thread too
    start = time.perf_counter()
    with torch.no_grad():
        by_torch = torch.cat([run.model(images) for images in batches]).argmax(1).numpy()
    torch_seconds = time.perf_counter() - start
    torch.set_num_threads(threads)

    network = subbit.load(path)
    arrays = [images.numpy() for images in batches]
    start = time.perf_counter()
    by_core = np.concatenate([network(images) for images in arrays]).argmax(1)
    core_seconds = time.perf_counter() - start

    labels = digits.test.labels
    return Packed(
        label=job.row.label,
        path=path,
        predicted=subbit.inspect(program).stored_bytes,
        dense_bytes=report.dense_bytes,
        weights=sum(layer.weights for layer in report.layers),
        accuracy=100 * float(np.mean(by_torch == labels)),
        core_accuracy=100 * float(np.mean(by_core == labels)),
        agreement=100 * float(np.mean(by_torch == by_core)),
        torch_seconds=torch_seconds,
        core_seconds=core_seconds,
    )


def _results(packed: list[Packed]) -> RichTable:
    table = RichTable(title="LeNet-5 on 2,000 test digits", title_justify="left")
    table.add_column("network")
    for header in ("accuracy", "file", "ratio to fp32", "bits per weight"):
        table.add_column(header, justify="right")
    for result in packed:
        table.add_row(
            result.label,
            f"{result.accuracy:.2f} %",
            f"{result.size:,} bytes",
            f"{result.dense_bytes / result.size:.1f}×",
            f"{8 * result.size / result.weights:.3f}",
        )
    return table


def _comparison(result: Packed) -> str:
    if result.predicted == result.size:
        size = f"predicted {result.predicted:,} bytes, and the file has {result.size:,}"
    else:
        size = f"[red]predicted {result.predicted:,} bytes, but the file has {result.size:,}[/red]"
    return (
        f"{result.path}: {size}; without PyTorch {result.core_accuracy:.2f} % in {result.core_seconds:.2f} s, "
        f"with it {result.accuracy:.2f} % in {result.torch_seconds:.2f} s, "
        f"same answer for {result.agreement:.2f} %, on one thread"
    )
