"""A finished run becomes a network of the zoo: packed, run on the whole test set, and described on a card."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np

import subbit
from subbit.errors import DataError
from subbit.experiments import ledger
from subbit.experiments.run import Job, find_entry
from subbit.zoo import Card

ALLOWED_GAP = 0.1  # percentage points between the file and the model it was packed from


def zoo_name(job: Job) -> str:
    """Network, data and row: lenet5-mnist-slbf-0.5-0.25."""
    return f"{job.row.settings['model']}-{Path(job.row.settings['data']).name}-{job.row.name}"


def add_to_zoo(job: Job, runs: Path, folder: Path, *, data_dir: str = "") -> Card:
    """Writes NAME.sbit and NAME.json into `folder`; a file that answers otherwise than its model is refused."""
    from subbit.train import open_run

    entry = find_entry(job, ledger.read(job.spec.ledger).entries)
    if entry is None:
        raise DataError(f"{job.row.label}, seed {job.seed} is not measured yet: {job.command}")
    run = open_run(runs / job.folder)
    name = zoo_name(job)
    file = folder / f"{name}.sbit"
    folder.mkdir(parents=True, exist_ok=True)
    unchecked = folder / f"{name}.sbit.unchecked"
    packed = subbit.pack(run.model, unchecked, example=run.shape, labels=run.classes, preprocessing=run.preprocessing)
    try:
        accuracy, images = file_accuracy(unchecked, job, data_dir)
        if abs(accuracy - entry.accuracy) > ALLOWED_GAP:
            raise DataError(
                f"{name}: the file reaches {accuracy:.2f} %, its model {entry.accuracy:.2f} %: more than "
                f"{ALLOWED_GAP} points apart; subbit verify shows where they part"
            )
        os.replace(unchecked, file)
    finally:
        unchecked.unlink(missing_ok=True)
    settings = job.row.resolve()
    card = Card(
        name=name,
        title=f"{settings.model}, {job.row.label}",
        data=Path(settings.data).name,
        accuracy=round(accuracy, 2),
        torch_accuracy=round(entry.accuracy, 2),
        test_images=images,
        bytes=packed.bytes,
        ratio=round(entry.dense_bytes / packed.bytes, 2),
        bits_per_weight=round(8 * packed.bytes / sum(layer.weights for layer in entry.layers), 4),
        epochs=entry.epochs,
        recipe=settings.recipe,
        seed=entry.seed,
        command=entry.command,
        commit=entry.commit,
        date=entry.date,
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
    )
    (folder / f"{name}.json").write_text(card.to_json(), encoding="utf-8")
    return card


def file_accuracy(file: Path, job: Job, data_dir: str) -> tuple[float, int]:
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
