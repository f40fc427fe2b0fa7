"""A finished run becomes a network of the zoo: packed, run on the whole test set, and described on a card."""

from __future__ import annotations

import hashlib
import os
import warnings
from pathlib import Path

import numpy as np

import subbit
from subbit.calibration import calibrated, takes_levels
from subbit.errors import DataError, PackError
from subbit.experiments import ledger
from subbit.experiments.ledger import Entry
from subbit.experiments.run import Job, find_entry
from subbit.format import encode
from subbit.records import Program
from subbit.zoo import Card

# How many percentage points a file may differ from the model it was packed from.
FLOAT_GAP, INTEGER_GAP = 0.1, 0.2
CALIBRATION_IMAGES = 256


def zoo_name(job: Job) -> str:
    """Network, data and row: lenet5-mnist-slbf-0.5-0.25."""
    return f"{job.row.settings['model']}-{Path(job.row.settings['data']).name}-{job.row.name}"


def add_to_zoo(job: Job, runs: Path, folder: Path, *, data_dir: str = "") -> list[Card]:
    """Writes NAME.sbit and its card NAME.json into `folder`, and NAME-int8 where layers can compute in integers.

    A file that answers otherwise than its model is refused.
    """
    from subbit.nn.pack import to_program
    from subbit.train import open_run
    from subbit.train.images import images_of

    entry = find_entry(job, ledger.read(job.spec.ledger).entries)
    if entry is None:
        raise DataError(f"{job.row.label}, seed {job.seed} is not measured yet: {job.command}")
    run = open_run(runs / job.folder)
    program = to_program(run.model, run.shape, labels=run.classes, preprocessing=run.preprocessing)
    folder.mkdir(parents=True, exist_ok=True)
    cards = [_add(zoo_name(job), job.row.label, program, job, entry, FLOAT_GAP, folder, data_dir)]
    if any(map(takes_levels, program.ops)):
        images = images_of(run, "train", CALIBRATION_IMAGES, folder=Path(data_dir) if data_dir else None)
        label = f"{job.row.label}, in integers"
        try:
            levels = calibrated(program, images)
        except PackError as error:
            warnings.warn(f"no file in integers: {error}", stacklevel=2)
            return cards
        cards.append(_add(f"{zoo_name(job)}-int8", label, levels, job, entry, INTEGER_GAP, folder, data_dir))
    return cards


def _add(
    name: str, label: str, program: Program, job: Job, entry: Entry, gap: float, folder: Path, data_dir: str
) -> Card:
    from subbit.train.checkpoint import write_bytes

    content = encode(program)
    accuracy, images = file_accuracy(content, job, data_dir)
    if abs(accuracy - entry.accuracy) > gap:
        raise DataError(
            f"{name}: the file reaches {accuracy:.2f} %, its model {entry.accuracy:.2f} %: more than "
            f"{gap} points apart; subbit verify shows where they part"
        )
    settings = job.row.resolve()
    card = Card(
        name=name,
        title=f"{settings.model}, {label}",
        data=Path(settings.data).name,
        accuracy=round(accuracy, 2),
        torch_accuracy=round(entry.accuracy, 2),
        test_images=images,
        bytes=len(content),
        ratio=round(entry.dense_bytes / len(content), 2),
        bits_per_weight=round(8 * len(content) / sum(layer.weights for layer in entry.layers), 4),
        epochs=entry.epochs,
        recipe=settings.recipe,
        seed=entry.seed,
        command=entry.command,
        commit=entry.commit,
        date=entry.date,
        sha256=hashlib.sha256(content).hexdigest(),
    )
    write_bytes(folder / f"{name}.sbit", content)
    write_bytes(folder / f"{name}.json", card.to_json().encode())
    return card


def file_accuracy(file: bytes, job: Job, data_dir: str) -> tuple[float, int]:
    """Percent of all test images that the core puts into their class, and how many images that were."""
    from subbit import data
    from subbit.train.batches import plain_batches

    settings = job.row.resolve()
    dataset = data.load(settings.data, data_dir or None, image_size=settings.image_size, seed=job.seed)
    net = subbit.load(file)
    right = [
        net(images.numpy(), threads=os.cpu_count() or 1).argmax(1) == labels.numpy()
        for images, labels in plain_batches(dataset, dataset.test)
    ]
    return 100 * float(np.mean(np.concatenate(right))), len(dataset.test)
