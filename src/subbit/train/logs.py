"""What a run writes down: metrics as CSV and for TensorBoard, and a live line on the terminal."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from subbit.train import checkpoint

METRICS = "metrics.csv"
COLUMNS = (
    "step", "epoch", "lr", "loss", "train_accuracy", "validation_accuracy", "test_accuracy",
    "flipped_signs", "changed_selections", "dead_filters", "input_share", "steps_per_second",
)  # fmt: skip
_REFRESH_SECONDS = 0.25


class Logs:
    """Rows by step; a resumed run drops the rows behind its checkpoint, which it will write again."""

    def __init__(self, folder: Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.path = folder / METRICS
        kept = [row for row in self._rows() if int(row["step"]) <= first_step]
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerows(kept)
        checkpoint.write_bytes(self.path, text.getvalue().encode())
        self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step + 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, COLUMNS).writerow({"step": step, **values})
        for key, value in values.items():
            self.board.add_scalar(key, value, step)

    def close(self) -> None:
        self.board.close()

    def _rows(self) -> list[dict[str, Any]]:
        """Whole rows only: a kill may leave half a line at the end."""
        if not self.path.exists():
            return []
        whole = self.path.read_bytes().rpartition(b"\n")[0].decode(errors="replace")
        rows = list(csv.DictReader(whole.splitlines()))
        return [row for row in rows if None not in row.values() and None not in row and str(row["step"]).isdigit()]


class Live:
    """A progress bar with the newest values; on anything but a terminal, one line per epoch."""

    def __init__(self, epochs: int, steps_per_epoch: int, console: Console) -> None:
        self.epochs, self.steps_per_epoch, self.console = epochs, steps_per_epoch, console
        columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, TextColumn("{task.fields[values]}"), console=console, transient=True)
        self.task = self.bar.add_task("", total=epochs * steps_per_epoch, values="")
        self.next_refresh = 0.0
        self.newest: dict[str, float] = {}
        if console.is_terminal:
            self.bar.start()

    def step(self, done: int, values: Mapping[str, float]) -> None:
        """Called at every step, draws a few times a second."""
        now = time.monotonic()
        if now < self.next_refresh or not self.console.is_terminal:
            return
        self.next_refresh = now + _REFRESH_SECONDS
        self.newest.update(values)
        epoch = min(self.epochs, done // self.steps_per_epoch + 1)
        self.bar.update(
            self.task, completed=done, description=f"epoch {epoch}/{self.epochs}", values=describe(self.newest)
        )

    def health(self, values: Mapping[str, float]) -> None:
        self.newest.update(values)

    def epoch(self, row: Mapping[str, float]) -> None:
        self.console.print(f"epoch {int(row['epoch'])}/{self.epochs}  {describe(row)}", highlight=False)

    def close(self) -> None:
        self.bar.stop()


_SHORT = {
    "loss": "loss {:.4f}",
    "train_accuracy": "train {:.2%}",
    "validation_accuracy": "validation {:.2%}",
    "test_accuracy": "test {:.2%}",
    "flipped_signs": "signs flipped {:.2%}",
    "changed_selections": "selections changed {:.2%}",
    "dead_filters": "dead filters {:.1%}",
    "input_share": "input {:.1%} of a step",
}


def describe(values: Mapping[str, float]) -> str:
    return "  ".join(text.format(values[key]) for key, text in _SHORT.items() if key in values)
