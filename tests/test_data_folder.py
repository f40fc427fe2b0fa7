"""A user's own images: any sizes and formats, one subfolder per class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from subbit.data import load
from subbit.errors import DataError

RED, BLUE = (250, 0, 0), (0, 0, 250)


def paint(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (20, 20), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path)


def two_classes(root: Path, count: int = 10) -> Path:
    for i in range(count):
        paint(root / "red" / f"{i}.png", (250 - i, 0, 0))
        paint(root / "blue" / f"{i}.png", (0, 0, 250 - i))
    return root


def test_classes_and_a_fifth_for_the_test(tmp_path: Path) -> None:
    data = load(str(two_classes(tmp_path / "photos")), image_size=16)
    assert data.classes == ("blue", "red")
    assert data.shape == (3, 16, 16)
    assert np.bincount(data.train.labels).tolist() == [8, 8]
    assert np.bincount(data.test.labels).tolist() == [2, 2]
    for part in (data.train, data.test):
        assert all((image[0].max() > 0) == (label == 1) for image, label in zip(part.images, part.labels, strict=True))


def test_split_follows_the_seed(tmp_path: Path) -> None:
    root = str(two_classes(tmp_path))
    first, same, other = (load(root, seed=seed).test.images for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("test", ["test", "val", "validation"])
def test_given_parts(tmp_path: Path, test: str) -> None:
    two_classes(tmp_path / "train", 4)
    paint(tmp_path / test / "blue" / "deeper" / "one.png", BLUE)
    data = load(str(tmp_path))
    assert (len(data.train), len(data.test)) == (8, 1)
    assert data.test.labels.tolist() == [0]


@pytest.mark.parametrize("mode", ["L", "P", "1", "RGBA", "CMYK"])
def test_any_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    two_classes(tmp_path)
    suffix = "jpg" if mode == "CMYK" else "png"
    paint(tmp_path / "blue" / f"odd.{suffix}", (255, 255, 255), mode=mode)
    data = load(str(tmp_path), image_size=8)
    whites = np.concatenate([data.train.images, data.test.images]).reshape(-1, 3 * 64).min(1)
    assert whites.max() > 240


def test_wide_images_are_cropped_to_the_centre(tmp_path: Path) -> None:
    two_classes(tmp_path / "train", 2)
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200  # the middle third
    (tmp_path / "test" / "red").mkdir(parents=True)
    Image.fromarray(wide).save(tmp_path / "test" / "red" / "wide.png")
    image = load(str(tmp_path), image_size=10).test.images[0]
    assert image.min() == 200


def test_unreadable_files_are_all_named(tmp_path: Path) -> None:
    two_classes(tmp_path)
    (tmp_path / "red" / "text.png").write_text("not an image")
    good = (tmp_path / "blue" / "0.png").read_bytes()
    (tmp_path / "blue" / "half.png").write_bytes(good[: len(good) // 2])
    with pytest.raises(DataError, match=r"(half\.png.*text\.png|text\.png.*half\.png).*Remove or replace") as caught:
        load(str(tmp_path), seed=4)
    assert "0.png" not in str(caught.value)


def test_folders_that_are_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="0 subfolders: expected at least two, one per class"):
        load(str(tmp_path))
    paint(tmp_path / "red" / "1.png", RED)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty has no images"):
        load(str(tmp_path))
    paint(tmp_path / "empty" / "1.png", BLUE)
    with pytest.raises(DataError, match="has a single image"):
        load(str(tmp_path))


def test_only_one_part_given(tmp_path: Path) -> None:
    two_classes(tmp_path / "train")
    with pytest.raises(DataError, match="not both"):
        load(str(tmp_path))


def test_class_without_training_images(tmp_path: Path) -> None:
    two_classes(tmp_path / "train", 2)
    two_classes(tmp_path / "test", 2)
    paint(tmp_path / "test" / "green" / "1.png", (0, 250, 0))
    with pytest.raises(DataError, match=r"has classes that .*train lacks: green"):
        load(str(tmp_path))
