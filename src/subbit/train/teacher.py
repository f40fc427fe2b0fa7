"""Networks to distil from: finished runs, and packed files.

    teacher = open_teacher("vgg16-cifar10-slbf-0.5-0.25-int8", data)      # a network of the zoo
    wanted = teacher(images)

The core runs a packed file at a fraction of what the same network costs in PyTorch, and gives the same bits on any
number of threads, so a distilled run resumes exactly.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from subbit import zoo
from subbit.data.dataset import DataSet
from subbit.errors import ConfigError
from subbit.runtime import Network, load
from subbit.train.build import MODEL_FILE, open_run


def open_teacher(name: str, data: DataSet) -> nn.Module:
    """The network that `name` says: a run folder, a model.pt, a packed file, or a name in the zoo."""
    path = Path(name)
    if path.is_dir() or path.name == MODEL_FILE:
        run = open_run(path)
        _check(name, data, run.classes, run.shape)
        return run.model
    file = zoo.find(name)
    teacher = Packed(file)
    _check(name, data, teacher.network.labels, teacher.network.input_shape)
    expected = teacher.network.preprocessing
    if expected is not None and not (
        np.allclose(expected.mean, data.mean, rtol=1e-3) and np.allclose(expected.std, data.std, rtol=1e-3)
    ):
        raise ConfigError(f"the teacher {name} expects images of another mean and spread than {data.name} has")
    return teacher


def _check(name: str, data: DataSet, classes: tuple[str, ...], shape: tuple[int, ...]) -> None:
    if classes != data.classes or shape != data.shape:
        raise ConfigError(f"the teacher {name} was trained on other classes or image sizes than {data.name}")


class Packed(nn.Module):
    """A packed file as a module without parameters, run by the core on as many threads as torch has."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.network = load(file)
        self._by_shape: dict[tuple[int, ...], Network] = {self.network.input_shape: self.network}

    def forward(self, images: Tensor) -> Tensor:
        shape = tuple(images.shape[1:])
        if shape not in self._by_shape:  # images that grow
            self._by_shape[shape] = load(self.file, input_shape=shape)
        batch = images.detach().float().cpu().contiguous().numpy()
        return torch.from_numpy(self._by_shape[shape](batch, threads=torch.get_num_threads())).to(images.device)
