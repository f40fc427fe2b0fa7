"""Networks to distil from: finished runs, and packed files.

    teacher = open_teacher("vgg16-cifar10-slbf-0.5-0.25-int8", data)      # a network of the zoo
    wanted = teacher(images)

The core runs a packed file at a fraction of what the same network costs in PyTorch, and gives the same bits on any
number of threads, so a distilled run resumes exactly on a machine with the same instructions. On others sums are added
in another order; that goes for files in integers too, whose first layer is not.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor, nn

from subbit import zoo
from subbit.data.dataset import DataSet
from subbit.runtime import load
from subbit.train.build import MODEL_FILE, check_fits, check_packed_fits, open_run


def open_teacher(name: str, data: DataSet) -> nn.Module:
    """The network that `name` says: a run folder, a model.pt, a packed file, or a name in the zoo."""
    file = _file(name)
    if file.suffix == ".pt":
        run = open_run(file)
        check_fits(f"the teacher {name}", data, run.classes, run.shape, run.preprocessing)
        return run.model
    teacher = Packed(file)
    check_packed_fits(f"the teacher {name}", data, teacher.network)
    return teacher


def fingerprint(name: str) -> str:
    """SHA-256 of the file behind such a name, in hexadecimal digits: names stay when networks are replaced."""
    return hashlib.sha256(_file(name).read_bytes()).hexdigest()


def _file(name: str) -> Path:
    """The model.pt or the packed file."""
    path = Path(name)
    if path.is_dir():
        if not (path / MODEL_FILE).exists():
            open_run(path)  # says what is missing
        return path / MODEL_FILE
    return zoo.find(name)


class Packed(nn.Module):
    """A packed file as a module without parameters, run by the core on as many threads as torch has."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.network = load(file)

    def forward(self, images: Tensor) -> Tensor:
        batch = images.detach().float().cpu().contiguous().numpy()
        return torch.from_numpy(self.network(batch, threads=torch.get_num_threads())).to(images.device)
