"""Standard data sets in every accepted layout, and everything that must be refused."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import io
import os
import pickle
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subbit.data import DataSet, Part, cifar, data_folder, load, sources
from subbit.errors import DataError
from tests.tiny import idx_bytes

random = np.random.default_rng(0)
IMAGES = random.integers(0, 256, (30, 28, 28), dtype=np.uint8)
LABELS = (np.arange(30) % 10).astype(np.uint8)
TRAIN, TEST = slice(0, 20), slice(20, 30)

IDX_CONTENT = {
    "train-images-idx3-ubyte": idx_bytes(IMAGES[TRAIN]),
    "train-labels-idx1-ubyte": idx_bytes(LABELS[TRAIN]),
    "t10k-images-idx3-ubyte": idx_bytes(IMAGES[TEST]),
    "t10k-labels-idx1-ubyte": idx_bytes(LABELS[TEST]),
}


def write_idx(folder: Path, *, packed: bool = False, dotted: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in IDX_CONTENT.items():
        file = name.replace("-idx", ".idx") if dotted else name
        (folder / (file + ".gz" * packed)).write_bytes(gzip.compress(content) if packed else content)
    return folder


def check_idx_set(data: DataSet) -> None:
    assert np.array_equal(data.train.images[:, 0], IMAGES[TRAIN])
    assert np.array_equal(data.test.images[:, 0], IMAGES[TEST])
    assert data.train.labels.dtype == np.int64
    assert np.array_equal(data.test.labels, LABELS[TEST])


# ------------------------------------------------------------------------------------------- idx files


@pytest.mark.parametrize("form", ["plain", "gz", "dotted", "dotted_gz"])
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "."),
        ("mnist", "MNIST/raw"),
        ("mnist", "mnist"),
        ("fashion-mnist", "FashionMNIST/raw"),
        ("fashion-mnist", "fashion-mnist"),
    ],
)
def test_idx_layouts(tmp_path: Path, name: str, folder: str, form: str) -> None:
    write_idx(tmp_path / folder, packed="gz" in form, dotted="dotted" in form)
    check_idx_set(load(name, tmp_path, download=False))


def test_gz_content_under_a_plain_name(tmp_path: Path) -> None:
    for name, content in IDX_CONTENT.items():
        (tmp_path / name).write_bytes(gzip.compress(content))
    check_idx_set(load("mnist", tmp_path, download=False))


def test_folder_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx(tmp_path / "mnist")
    monkeypatch.setenv("SUBBIT_DATA", str(tmp_path))
    check_idx_set(load("mnist", download=False))
    assert data_folder() == tmp_path
    assert data_folder(tmp_path / "given") == tmp_path / "given"
    monkeypatch.delenv("SUBBIT_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder() == tmp_path / "cache" / "subbit" / "data"


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("train-images-idx3-ubyte", lambda c: c[:-1], "20×28×28 bytes but holds 15679"),
        ("train-images-idx3-ubyte", lambda c: c + b"\0", "holds 15681"),
        ("train-labels-idx1-ubyte", lambda c: c[:5], "does not start with the magic number"),
        ("t10k-images-idx3-ubyte", lambda c: b"\x89PNG" + c, "does not start with the magic number"),
        ("t10k-images-idx3-ubyte", lambda c: b"", "does not start with the magic number"),
        ("train-images-idx3-ubyte", lambda c: c[:2] + b"\x0d" + c[3:], "holds type 13 in 3 dimensions"),
        ("train-images-idx3-ubyte", lambda c: c[:4] + b"\xff\xff\xff\xff" + c[8:], "announces 4294967295×28×28"),
        ("train-labels-idx1-ubyte", lambda c: IDX_CONTENT["train-images-idx3-ubyte"], "images and labels swapped"),
        ("train-labels-idx1-ubyte", lambda c: IDX_CONTENT["t10k-labels-idx1-ubyte"], "20 images but .* 10 labels"),
        ("t10k-labels-idx1-ubyte", lambda c: c[:-1] + b"\x0a", "labels run from 0 to 10, but there are 10 classes"),
        ("train-images-idx3-ubyte", lambda c: gzip.compress(c)[:200], "cannot read .*train-images"),
    ],
    ids=[
        "truncated", "one_byte_more", "header_only", "foreign", "empty", "floats", "huge_announcement",
        "images_for_labels", "labels_of_the_other_part", "label_too_large", "truncated_gz",
    ],
)  # fmt: skip
def test_damaged_idx(tmp_path: Path, file: str, change: Callable[[bytes], bytes], message: str) -> None:
    write_idx(tmp_path)
    (tmp_path / file).write_bytes(change(IDX_CONTENT[file]))
    with pytest.raises(DataError, match=message):
        load("mnist", tmp_path, download=False)


def test_mnist_is_not_taken_for_fashion(tmp_path: Path) -> None:
    labels = np.array([5, 0, 4, 1, 9, 2, 1, 3, 1, 4] * 2, dtype=np.uint8)
    write_idx(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
    load("mnist", tmp_path, download=False)
    with pytest.raises(DataError, match="holds mnist, not fashion-mnist"):
        load("fashion-mnist", tmp_path, download=False)


def test_one_file_missing_names_all_places(tmp_path: Path) -> None:
    write_idx(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte \(plain or \.gz\) into one of .*MNIST/raw"):
        load("mnist", tmp_path, download=False)


def test_unknown_name_suggests() -> None:
    with pytest.raises(DataError, match="did you mean 'cifar10'"):
        load("cifar-10")


# ----------------------------------------------------------------------------------------------- CIFAR

PIXELS = random.integers(0, 256, (12, 3072), dtype=np.uint8)


def pickled(name: str, rows: slice, protocol: int = 2) -> bytes:
    labels = [int(v) for v in LABELS[: len(PIXELS)][rows]]
    key = b"labels" if name == "cifar10" else b"fine_labels"
    return pickle.dumps({b"data": PIXELS[rows], key: labels, b"batch_label": b"x"}, protocol=protocol)


def python2_pickle() -> bytes:
    """As Python 2 with an old NumPy wrote them: protocol 2, byte strings, numpy.core.multiarray."""
    content = pickled("cifar10", slice(0, 2)).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert b"numpy.core.multiarray" in content
    return content


def cifar_files(name: str, version: str) -> dict[str, bytes]:
    """The files of a small CIFAR: ten training images and two test images."""
    batches = [slice(2 * i, 2 * i + 2) for i in range(5)] if name == "cifar10" else [slice(0, 10)]
    layout = cifar.LAYOUTS[name][0 if version == "python" else 1]
    names = [f"class {i}" for i in range(10)]
    files = {}
    for file, rows in [*zip(layout.train, batches, strict=True), (layout.test, slice(10, 12))]:
        if version == "python":
            files[file] = pickled(name, rows)
        else:
            labels = LABELS[:12][rows, None]
            coarse = [] if name == "cifar10" else [np.full_like(labels, 99)]
            files[file] = np.hstack([*coarse, labels, PIXELS[rows]]).astype(np.uint8).tobytes()
    text = "\n".join(names) + "\n\n"
    key = "label_names" if name == "cifar10" else "fine_label_names"
    files[layout.names] = pickle.dumps({key: names}) if version == "python" else text.encode()
    return files


def write_cifar(root: Path, name: str, version: str, place: str, files: dict[str, bytes] | None = None) -> Path:
    """Writes the files into the folder or the archive that the layout has; returns the folder or archive."""
    layout = cifar.LAYOUTS[name][0 if version == "python" else 1]
    files = cifar_files(name, version) if files is None else files
    if place == "archive":
        root.mkdir(parents=True, exist_ok=True)
        with tarfile.open(root / layout.archive, "w:gz") as archive:
            for file, content in files.items():
                member = tarfile.TarInfo(f"{layout.folder}/{file}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return root / layout.archive
    folder = root if place == "flat" else root / layout.folder if place == "folder" else root / name / layout.folder
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    return folder


@pytest.mark.parametrize("place", ["folder", "nested", "flat", "archive"])
@pytest.mark.parametrize("version", ["python", "binary"])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_layouts(tmp_path: Path, name: str, version: str, place: str) -> None:
    write_cifar(tmp_path, name, version, place)
    data = load(name, tmp_path, download=False)
    assert np.array_equal(data.train.images, PIXELS[:10].reshape(-1, 3, 32, 32))
    assert np.array_equal(data.train.labels, LABELS[:10])
    assert np.array_equal(data.test.images, PIXELS[10:].reshape(-1, 3, 32, 32))
    assert data.classes == tuple(f"class {i}" for i in range(10))
    assert data.train.images.flags.writeable
    assert data.test.images.flags.writeable


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickles_of_other_protocols(protocol: int) -> None:
    content = cifar.load_pickle("batch", pickled("cifar10", slice(0, 2), protocol))
    assert np.array_equal(content["data"], PIXELS[:2])


def test_pickles_of_old_numpy() -> None:
    assert np.array_equal(cifar.load_pickle("batch", python2_pickle())["data"], PIXELS[:2])


class Call:
    """Pickles to a call of any function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def _hostile(target: Path) -> dict[str, bytes]:
    command = f"touch {target}"
    return {
        "os_system": pickle.dumps({b"data": Call(os.system, command)}),
        "eval": pickle.dumps(Call(eval, f"open({str(target)!r}, 'w')")),
        "exec_as_label": pickle.dumps({b"labels": [Call(exec, f"open({str(target)!r}, 'w')")]}),
        "partial": pickle.dumps(Call(functools.partial, os.system, command)),
        "os_system_by_hand": b"cposix\nsystem\n(S'" + command.encode() + b"'\ntR.",
        "dotted_name": b"\x80\x04\x8c\x05numpy\x8c\x0ef2py.os.system\x93.",
        "numpy_load": pickle.dumps(Call(np.load, str(target))),
        "getattr": b"c__builtin__\ngetattr\n.",
    }  # fmt: skip


@pytest.mark.parametrize("attack", sorted(_hostile(Path("x"))))
@pytest.mark.parametrize("place", ["folder", "archive"])
def test_hostile_pickles_are_refused_not_executed(tmp_path: Path, attack: str, place: str) -> None:
    target = tmp_path / "executed"
    files = {**cifar_files("cifar10", "python"), "data_batch_3": _hostile(target)[attack]}
    write_cifar(tmp_path, "cifar10", "python", place, files)
    with pytest.raises(DataError, match=r"data_batch_3.* asks for .*, which a data set has no need of; refused"):
        load("cifar10", tmp_path, download=False)
    assert not target.exists()


def test_hostile_class_names_are_refused(tmp_path: Path) -> None:
    target = tmp_path / "executed"
    files = {**cifar_files("cifar100", "python"), "meta": _hostile(target)["os_system"]}
    write_cifar(tmp_path, "cifar100", "python", "folder", files)
    with pytest.raises(DataError, match=r"meta.*refused"):
        load("cifar100", tmp_path, download=False)
    assert not target.exists()


def test_other_encodings_in_pickles_are_refused() -> None:
    import codecs

    with pytest.raises(DataError, match="uses the encoding 'zip'"):
        cifar.load_pickle("batch", pickle.dumps(Call(codecs.encode, "text", "zip"), protocol=2))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickled("cifar10", slice(0, 2))[:-100], "damaged or not complete"),
        (b"", "damaged or not complete"),
        (b"\x80\x02}q\x00.", "no uint8 array 'data' of 3072 pixels"),
        (pickle.dumps([1, 2]), "holds a list, not a dictionary"),
        (pickle.dumps({b"data": PIXELS[:2, :100], b"labels": [0, 1]}), "no uint8 array 'data' of 3072 pixels"),
        (pickle.dumps({b"data": PIXELS[:2].astype(float), b"labels": [0, 1]}), "no uint8 array"),
        (pickle.dumps({b"data": PIXELS[:2], b"labels": [0]}), "a number for each of its 2 images"),
        (pickle.dumps({b"data": PIXELS[:2], b"labels": [0, "1"]}), "a number for each of its 2 images"),
        (pickle.dumps({b"data": PIXELS[:2], b"labels": [0, 10]}), "labels run from 0 to 10, but there are 10 classes"),
        (pickled("cifar100", slice(0, 2)), "no list 'labels'"),
    ],
    ids=[
        "truncated", "empty", "no_data", "a_list", "other_size", "floats", "too_few_labels", "a_text_label",
        "label_too_large", "the_other_cifar",
    ],
)  # fmt: skip
def test_damaged_cifar_pickles(tmp_path: Path, content: bytes, message: str) -> None:
    write_cifar(tmp_path, "cifar10", "python", "folder", {**cifar_files("cifar10", "python"), "data_batch_2": content})
    with pytest.raises(DataError, match=message):
        load("cifar10", tmp_path, download=False)


def test_damaged_binary_cifar(tmp_path: Path) -> None:
    files = cifar_files("cifar100", "binary")
    write_cifar(tmp_path, "cifar100", "binary", "folder", {**files, "test.bin": files["test.bin"][:-1]})
    with pytest.raises(DataError, match=r"test\.bin holds 6147 bytes, not a multiple of 3074"):
        load("cifar100", tmp_path, download=False)


def test_truncated_archive(tmp_path: Path) -> None:
    archive = write_cifar(tmp_path, "cifar10", "python", "archive")
    archive.write_bytes(archive.read_bytes()[:-2000])
    with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz is damaged or not complete"):
        load("cifar10", tmp_path, download=False)


def test_archive_with_paths_that_lead_outside(tmp_path: Path) -> None:
    files = {f"../../{name}": content for name, content in cifar_files("cifar10", "python").items()}
    write_cifar(tmp_path / "data", "cifar10", "python", "archive", files)
    load("cifar10", tmp_path / "data", download=False)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["cifar-10-python.tar.gz", "data"]


def test_archive_without_a_file(tmp_path: Path) -> None:
    files = cifar_files("cifar10", "python")
    del files["test_batch"]
    write_cifar(tmp_path, "cifar10", "python", "archive", files)
    with pytest.raises(DataError, match="has no file test_batch"):
        load("cifar10", tmp_path, download=False)


# ------------------------------------------------------------------------------------------- downloads


class _Server(http.server.BaseHTTPRequestHandler):
    """Serves the packed idx files in several tempers."""

    def do_GET(self) -> None:
        _, temper, file = self.path.split("/")
        content = gzip.compress(IDX_CONTENT[file.removesuffix(".gz")], mtime=0)
        if temper == "missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if temper == "other":
            content = bytes(len(content))
        self.wfile.write(content[: len(content) // 2] if temper == "breaking" else content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirrors(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def use(*tempers: str) -> None:
        sums = {
            f"{name}.gz": hashlib.md5(gzip.compress(content, mtime=0)).hexdigest()
            for name, content in IDX_CONTENT.items()
        }
        urls = tuple(f"http://127.0.0.1:{server.server_port}/{temper}/" for temper in tempers)
        monkeypatch.setitem(sources.SOURCES, "mnist", replace(sources.SOURCES["mnist"], downloads=sums, mirrors=urls))

    yield use
    server.shutdown()
    server.server_close()


def files_below(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("first", ["good", "missing", "other", "breaking"])
def test_download_from_the_first_mirror_that_works(tmp_path: Path, mirrors: Callable[..., None], first: str) -> None:
    mirrors(first, "good")
    check_idx_set(load("mnist", tmp_path))
    assert files_below(tmp_path) == sorted(f"{name}.gz" for name in IDX_CONTENT)
    mirrors("missing")
    check_idx_set(load("mnist", tmp_path))  # from disk now


@pytest.mark.parametrize("temper", ["missing", "other", "breaking"])
def test_failed_download_leaves_nothing_and_says_what_to_put_where(
    tmp_path: Path, mirrors: Callable[..., None], temper: str
) -> None:
    mirrors(temper, temper)
    with pytest.raises(DataError, match=r"could not be downloaded .*Without network: put train-images.* into one of"):
        load("mnist", tmp_path)
    assert files_below(tmp_path) == []


def test_a_rest_of_an_interrupted_download_is_not_used(tmp_path: Path, mirrors: Callable[..., None]) -> None:
    mirrors("good")
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    (folder / "tmpabcdef").write_bytes(b"half a file")  # as a killed download leaves it
    check_idx_set(load("mnist", tmp_path))


def test_offline_cifar_names_both_versions(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cifar-10-batches-py or cifar-10-python\.tar\.gz or .*cifar-10-batches-bin"):
        load("cifar10", tmp_path, download=False)


# --------------------------------------------------------------------------------- digits and the value


def test_digits_are_real_balanced_and_small() -> None:
    import subbit.data

    data = load("digits")
    assert data.train.images.shape == (12000, 1, 28, 28)
    assert data.test.images.shape == (2000, 1, 28, 28)
    assert np.bincount(data.train.labels).tolist() == [1200] * 10
    assert np.bincount(data.test.labels).tolist() == [200] * 10
    folder = Path(str(subbit.data.__file__)).parent
    assert (folder / "digits.npz").stat().st_size <= 3_000_000
    assert "LeCun" in (folder / "digits.md").read_text()
    # The first images of MNIST are 5, 0, 4, 1, 9; no digit repeats between the parts.
    assert data.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    seen = {image.tobytes() for image in data.train.images}
    assert not any(image.tobytes() in seen for image in data.test.images)


def test_statistics_are_those_of_the_pixels(tmp_path: Path) -> None:
    write_cifar(tmp_path, "cifar10", "binary", "folder")
    data = load("cifar10", tmp_path, download=False)
    scaled = data.train.images.astype(np.float64) / 255
    assert data.mean == pytest.approx(scaled.mean((0, 2, 3)), rel=1e-6)
    assert data.std == pytest.approx(scaled.std((0, 2, 3)), rel=1e-6)


def test_held_out_part_is_a_pure_function_of_the_seed() -> None:
    data = load("digits")
    one, same, other = data.hold_out(0.1, 3), data.hold_out(0.1, 3), data.hold_out(0.1, 4)
    assert one.validation is not None
    assert same.validation is not None
    assert other.validation is not None
    assert np.array_equal(one.validation.images, same.validation.images)
    assert not np.array_equal(one.validation.images, other.validation.images)
    assert np.bincount(one.validation.labels).tolist() == [120] * 10
    assert len(one.train) == 10800
    kept = {image.tobytes() for image in one.train.images}
    assert not any(image.tobytes() in kept for image in one.validation.images)
    assert np.array_equal(one.mean, data.mean)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5])
def test_impossible_shares_are_refused(share: float) -> None:
    with pytest.raises(DataError, match="between 0 and 1"):
        load("digits").hold_out(share, 0)


def test_parts_that_do_not_fit_together_are_refused() -> None:
    small = Part(np.zeros((3, 1, 8, 8), np.uint8), np.zeros(3, np.int64))
    large = Part(np.zeros((3, 1, 9, 9), np.uint8), np.zeros(3, np.int64))
    with pytest.raises(DataError, match="both must have one shape"):
        DataSet.of("own", small, large, ("a", "b"))
    with pytest.raises(DataError, match=r"3 images but labels of shape \(2,\)"):
        DataSet.of("own", Part(small.images, small.labels[:2]), small, ("a", "b"))
