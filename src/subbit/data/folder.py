"""Any folder of images as a data set: one subfolder per class.

photos/train/cat/1.jpg   photos/train/dog/2.png   photos/test/cat/3.jpg …      two parts given
photos/cat/1.jpg         photos/dog/2.png                                      a fifth of each class for the test
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from subbit.data.dataset import DataSet, Part, UInt8
from subbit.errors import DataError

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
_TEST_SHARE = 0.2  # of each class, where no test folder is given
_TRAIN, _TEST = ("train",), ("test", "val", "valid", "validation")


def load_folder(root: Path, *, size: int = 32, seed: int = 0) -> DataSet:
    """The images below `root`, scaled so that the shorter side is `size` and cropped to the centre, as RGB."""
    train_root, test_root = _child(root, _TRAIN), _child(root, _TEST)
    if train_root and test_root:
        classes = _classes(train_root)
        extra = sorted(set(_subfolders(test_root)) - set(classes))
        if extra:
            raise DataError(f"{test_root} has classes that {train_root} lacks: {', '.join(extra)}")
        train = _read(_files(train_root, classes, required=True), size)
        test = _read(_files(test_root, classes, required=False), size)
    elif train_root or test_root:
        raise DataError(f"{root} has {train_root or test_root} but not both: give train/ and test/, or classes alone")
    else:
        classes = _classes(root)
        kept, held = _split(_files(root, classes, required=True), len(classes), seed)
        train, test = _read(kept, size), _read(held, size)
    return DataSet.of(root.name, train, test, classes)


def _child(root: Path, names: tuple[str, ...]) -> Path | None:
    return next((root / name for name in names if (root / name).is_dir()), None)


def _subfolders(root: Path) -> tuple[str, ...]:
    return tuple(sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")))


def _classes(root: Path) -> tuple[str, ...]:
    names = _subfolders(root)
    if len(names) < 2:
        raise DataError(
            f"{root} has {len(names)} subfolders: expected at least two, one per class, with images in them"
        )
    return names


def _files(root: Path, classes: tuple[str, ...], *, required: bool) -> list[tuple[Path, int]]:
    found = []
    for label, name in enumerate(classes):
        paths = sorted(p for p in (root / name).rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        if required and not paths:
            raise DataError(f"{root / name} has no images; known are {', '.join(SUFFIXES)}")
        found += [(path, label) for path in paths]
    if not found:
        raise DataError(f"{root} has no images; known are {', '.join(SUFFIXES)}")
    return found


def _split(
    files: list[tuple[Path, int]], classes: int, seed: int
) -> tuple[list[tuple[Path, int]], list[tuple[Path, int]]]:
    random = np.random.default_rng([seed, 0xF01D])
    kept, held = [], []
    for label in range(classes):
        members = [file for file in files if file[1] == label]
        order = random.permutation(len(members))
        tests = max(1, round(_TEST_SHARE * len(members)))
        if tests == len(members):
            raise DataError(f"{members[0][0].parent} has a single image: a class needs two, to train and to test")
        held += [members[i] for i in order[:tests]]
        kept += [members[i] for i in order[tests:]]
    return kept, held


def _read(files: list[tuple[Path, int]], size: int) -> Part:
    images = np.empty((len(files), 3, size, size), dtype=np.uint8)
    unreadable = [problem for i, (path, _) in enumerate(files) if (problem := _read_into(images[i], path, size))]
    if unreadable:
        more = f" and {len(unreadable) - 5} more" if len(unreadable) > 5 else ""
        raise DataError(f"unreadable images: {'; '.join(unreadable[:5])}{more}. Remove or replace them")
    return Part(images, np.array([label for _, label in files], dtype=np.int64))


def _read_into(target: UInt8, path: Path, size: int) -> str:
    """Reads one image; what is wrong with it, or an empty string."""
    try:
        target[:] = read_image(path, size)
    except DataError as error:
        return str(error)
    return ""


def read_image(path: Path, size: int) -> UInt8:
    """One image as (3, size, size): scaled by its shorter side, cropped to the centre."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as file:
            upright = ImageOps.exif_transpose(file).convert("RGB")
            square = ImageOps.fit(upright, (size, size), method=Image.Resampling.BILINEAR)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} ({error})") from error
    return np.asarray(square, dtype=np.uint8).transpose(2, 0, 1)
