"""Specs parse and resolve, the ledger survives damage, and only what is missing is run."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from subbit.errors import ConfigError, DataError
from subbit.experiments import ledger
from subbit.experiments import spec as spec_module
from subbit.experiments.ledger import Entry, Layer
from subbit.experiments.published import load_published, published_for
from subbit.experiments.run import Job, missing_jobs, select_rows
from subbit.experiments.spec import Spec, find_spec, load_spec

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
ALL_SPECS = sorted(path for path in EXPERIMENTS.glob("*.toml") if path.name != "published.toml")
BEYOND = ("mnist-small", "cifar10-fast", "cifar10-fast-resnet18")  # ours: linear layers are compressed too
SPECS = [path for path in ALL_SPECS if path.stem not in BEYOND]  # of the paper
TABLES = [path for path in SPECS if load_spec(path).figure == "size"]

SMALL = """
title = "Small"
seeds = [0, 1]

[settings]
model = "lenet5"
data = "digits"
epochs = 3

[[rows]]
name = "dense"
seeds = [0]
settings = { method = "dense" }

[[rows]]
name = "slbf"
label = "SLBF (1, 1/4)"
settings = { method = "slbf", f1 = "1", f2 = "1/4" }

[[rows]]
name = "taught"
inputs = { teacher = "dense" }
settings = { method = "slbf", f1 = "1", f2 = "1/4" }
"""


def write_spec(folder: Path, text: str = SMALL, name: str = "small") -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def entry(spec: Spec, row: str, seed: int = 0, **changes: Any) -> Entry:
    """A ledger line of `row` as the spec defines it now."""
    found = spec.row(row)
    made = Entry(
        spec=spec.name, row=row, row_hash=found.hash, seed=seed, epochs=found.epochs, spec_epochs=found.epochs,
        accuracy=98.5, curve=(95.0, 97.5, 98.5), curve_split="test", stored_bytes=20_480, dense_bytes=1_726_000,
        ratio=84.3, paper_ratio=29.9, seconds=12.5, date="2025-01-02T03:04:05+00:00",
        commit="0123456789ab", dirty=False,
        versions={"torch": "2.6.0"}, cpu="A processor", threads=2, command="subbit reproduce small", settings={},
        layers=(Layer("features.4", 25_000, 9_000, (3, 0, 5)), Layer("classifier.1", 400_000, 60_000)),
    )  # fmt: skip
    return replace(made, **changes)


# -------------------------------------------------------------------------------------- specs of the paper


@pytest.mark.parametrize("path", ALL_SPECS, ids=lambda path: path.stem)
def test_every_row_resolves_to_settings_and_a_method(path: Path) -> None:
    from subbit.train.build import method_of

    for row in load_spec(path).rows:
        method = method_of(row.resolve(seed=row.seeds[0]))
        assert (method is None) == (row.settings["method"] == "dense")


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_specs_of_the_paper_leave_linear_layers_alone_and_name_their_place(path: Path) -> None:
    spec = load_spec(path)
    for row in spec.rows:
        settings = row.resolve(seed=row.seeds[0])
        assert settings.keep == ("Linear",)
        if settings.f1:
            assert row.label.endswith(f"({settings.f1}, {settings.f2})") or path.stem not in [t.stem for t in TABLES]
    assert published_for(spec).place


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_tables_have_all_published_rows_in_order(path: Path) -> None:
    spec = load_spec(path)
    published = published_for(spec)
    in_table = [name for name, row in published.rows.items() if row.place == published.place]
    assert [row.published for row in spec.rows] == in_table
    assert all(spec.column in published.rows[row.published].accuracy for row in spec.rows)


def test_the_studies_of_the_paper_are_all_there() -> None:
    places = {published_for(load_spec(path)).place for path in SPECS}
    assert places == {
        "Table 1", "Table 2", "Table 3 (appendix)", "Figure 3", "Figure 4", "Figure 5 (appendix)",
        "Figure 6 (appendix)", "Figure 7 (appendix)",
    }  # fmt: skip


def test_mnist_measures_the_slbf_rows_with_three_seeds() -> None:
    spec = load_spec(find_spec(str(EXPERIMENTS / "mnist.toml")))
    assert {row.name: len(row.seeds) for row in spec.rows if row.settings["method"] == "slbf"} == {
        "slbf-1-0.25": 3,
        "slbf-1-0.125": 3,
        "slbf-1-0.0625": 3,
    }


def recounts() -> dict[str, list[tuple[dict[str, str], float]]]:
    """Network -> (method and its shares, ratio) of every recounted ratio in published.toml."""
    settings = {(spec.table, row.published): row.settings for spec in map(load_spec, TABLES) for row in spec.rows}
    settings["vgg16", "slbf-0.25-0.125"] = {"method": "slbf", "f1": "1/4", "f2": "1/8"}  # quoted in the text only
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for table, content in load_published(EXPERIMENTS / "published.toml").items():
        for name, row in content.rows.items():
            options = {
                key: settings[table, name][key] for key in ("method", "f1", "f2") if key in settings[table, name]
            }
            for network, ratio in row.recount.items():
                found.setdefault(network, []).append((options, ratio))
    return found


@pytest.mark.parametrize("network", ["lenet5", "vgg16", "vgg16-lego", "resnet18"])
def test_recounted_ratios_are_counted_from_records(network: str) -> None:
    from torch import nn

    import subbit
    from subbit.accounting import paper_bits
    from subbit.methods import from_config
    from subbit.methods.base import CompressedLayer

    name, _, variant = network.partition("-")
    dense = subbit.models.MODELS[name](**({"variant": variant} if variant else {}))
    weights = sum(module.weight.numel() for module in dense.modules() if isinstance(module, nn.Conv2d))
    for options, ratio in recounts()[network]:
        model = dense
        if options["method"] != "dense":
            method = from_config({"name": options["method"], **{k: v for k, v in options.items() if k != "method"}})
            model = subbit.compress(dense, method, keep=[nn.Linear])
        layers = [module for module in model.modules() if isinstance(module, CompressedLayer)]
        bits = sum(paper_bits(layer.record()) for layer in layers)
        bits += 32 * sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Conv2d))
        assert 32 * weights / bits == pytest.approx(ratio, abs=0.0051), options


# -------------------------------------------------------------------------------------------- spec files


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "Small"', 'titel = "Small"', r"unknown key 'titel'; did you mean 'title'\?"),
        ("epochs = 3", "epochs = 3\nepoch = 4", r"settings: unknown key 'epoch'; did you mean 'epochs'\?"),
        ("epochs = 3", "epochs = 0", "row dense: epochs is 0"),
        ("epochs = 3", "seed = 3", "unknown key 'seed'"),
        ('label = "SLBF (1, 1/4)"', 'lable = "x"', r"row slbf: unknown key 'lable'; did you mean 'label'\?"),
        ('teacher = "dense"', 'teacher = "dens"', r"inputs: unknown key 'dens'; did you mean 'dense'\?"),
        ('teacher = "dense"', 'teachr = "dense"', r"inputs: unknown key 'teachr'; did you mean 'teacher'\?"),
        ("seeds = [0, 1]", "seeds = [0, 0]", "a seed twice"),
        ("seeds = [0, 1]", "seeds = [true]", "seeds must be a list of numbers"),
        ("seeds = [0, 1]", "seeds = 3", "seeds must be a list of numbers"),
        ('name = "slbf"', 'name = "dense"', "two rows are named 'dense'"),
        ('name = "slbf"', 'name = "../x"', "must be made of"),
        ('title = "Small"', 'figure = "pie"', "allowed are size, curves, ratio"),
        ('title = "Small"', "title = 3", "title must be text"),
        ('f2 = "1/4"', 'f2 = "5/4"', "row slbf: f2 is '5/4'"),
        ('title = "Small"', "title = ", "is not a TOML file"),
        ("[settings]", "[setting]", r"unknown key 'setting'; did you mean 'settings'\?"),
    ],
)
def test_mistakes_in_a_spec_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SMALL
    with pytest.raises(ConfigError, match=message):
        load_spec(write_spec(tmp_path, SMALL.replace(old, new, 1)))


def test_a_spec_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"at least one \[\[rows\]\]"):
        load_spec(write_spec(tmp_path, SMALL.partition("[[rows]]")[0]))


def test_unknown_names_suggest_the_nearest_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXPERIMENTS.parent)
    with pytest.raises(ConfigError, match="did you mean 'mnist'"):
        find_spec("mnits")
    with pytest.raises(ConfigError, match=r"there is no spec missing\.toml"):
        find_spec("missing.toml")
    assert find_spec("mnist") == Path("experiments/mnist.toml")


def test_specs_of_an_installed_package_keep_their_results_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = tmp_path / "package"
    packaged.mkdir()
    for name in ("mnist.toml", "published.toml"):
        shutil.copy(EXPERIMENTS / name, packaged)
    monkeypatch.setattr(spec_module, "PACKAGED", packaged)
    monkeypatch.setattr(spec_module, "spec_folders", lambda: [Path("experiments"), packaged])
    monkeypatch.chdir(tmp_path)
    spec = load_spec(find_spec("mnist"))
    assert spec.path.parent == packaged
    assert spec.ledger == Path("experiments/results/mnist.jsonl")


def test_the_hash_follows_what_defines_a_row(tmp_path: Path) -> None:
    def hashes(text: str) -> dict[str, str]:
        return {row.name: row.hash for row in load_spec(write_spec(tmp_path, text)).rows}

    before = hashes(SMALL)
    assert len(set(before.values())) == 3
    assert hashes(SMALL.replace("epochs = 3", "epochs = 9")) == before  # told beside it
    assert hashes(SMALL.replace('label = "SLBF (1, 1/4)"', 'label = "Other"')) == before
    assert hashes(SMALL.replace("epochs = 3", "epochs = 3\ntest_each_epoch = true")) == before
    assert hashes(SMALL.replace('f2 = "1/4"', "f2 = 0.25")) == before
    changed = hashes(SMALL.replace("epochs = 3", "epochs = 3\nlr = 0.5"))
    assert not set(changed.values()) & set(before.values())
    # a row that starts from another one changes with it
    teacher = hashes(SMALL.replace('{ method = "dense" }', '{ method = "dense", lr = 0.5 }'))
    assert (teacher["slbf"], teacher["taught"]) != (before["slbf"], before["taught"])
    assert teacher["slbf"] == before["slbf"]


def test_a_retuned_recipe_makes_another_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from subbit.train import recipes

    before = load_spec(write_spec(tmp_path)).row("slbf").hash
    monkeypatch.setitem(recipes.RECIPES, "fast", {**recipes.RECIPES["fast"], "lr": 0.123})
    assert load_spec(write_spec(tmp_path)).row("slbf").hash != before


# ------------------------------------------------------------------------------------------- what to run


def test_only_missing_pairs_are_run(tmp_path: Path) -> None:
    spec = load_spec(write_spec(tmp_path))
    rows = select_rows(spec, ["dense", "slbf"])

    def missing(*entries: Entry, **options: Any) -> list[tuple[str, int, int]]:
        return [(job.row.name, job.seed, job.epochs) for job in missing_jobs(spec, entries, rows, **options)]

    assert missing() == [("dense", 0, 3), ("slbf", 0, 3), ("slbf", 1, 3)]
    assert missing(entry(spec, "slbf", seed=1)) == [("dense", 0, 3), ("slbf", 0, 3)]
    # another definition, or fewer epochs, does not count
    other = entry(spec, "slbf", seed=1, row_hash="000000000000")
    short = entry(spec, "slbf", seed=0, epochs=1)
    assert missing(other, short) == [("dense", 0, 3), ("slbf", 0, 3), ("slbf", 1, 3)]
    assert missing(short, epochs=1) == [("dense", 0, 1), ("slbf", 1, 1)]
    assert missing(seeds=[7]) == [("dense", 7, 3), ("slbf", 7, 3)]


def test_rows_are_chosen_by_name_or_glob(tmp_path: Path) -> None:
    spec = load_spec(write_spec(tmp_path))
    assert [row.name for row in select_rows(spec, [])] == ["dense", "slbf", "taught"]
    assert [row.name for row in select_rows(spec, ["t*", "dense"])] == ["dense", "taught"]
    with pytest.raises(ConfigError, match="no row is named 'slfb'; did you mean 'slbf'"):
        select_rows(spec, ["slfb"])


def test_an_input_row_gets_the_same_seed_or_its_first(tmp_path: Path) -> None:
    spec = load_spec(write_spec(tmp_path, SMALL.replace("seeds = [0]", "seeds = [1, 5]")))
    taught = spec.row("taught")
    needed = [Job(spec, taught, seed, epochs).inputs()["teacher"] for seed, epochs in ((1, 3), (0, 3), (1, 2), (1, 9))]
    assert [(job.row.name, job.seed, job.epochs) for job in needed] == [
        ("dense", 1, 3),
        ("dense", 1, 3),
        ("dense", 1, 2),
        ("dense", 1, 3),
    ]


def test_an_input_row_has_its_own_length(tmp_path: Path) -> None:
    spec = load_spec(write_spec(tmp_path, SMALL.replace('{ method = "dense" }', '{ method = "dense", epochs = 9 }')))
    needed = [Job(spec, spec.row("taught"), 0, epochs).inputs()["teacher"].epochs for epochs in (1, 2, 3, 4)]
    assert needed == [3, 6, 9, 9]  # shortened by the same share, never lengthened


def test_run_folders_differ_where_runs_do(tmp_path: Path) -> None:
    spec = load_spec(write_spec(tmp_path))
    other = load_spec(write_spec(tmp_path, SMALL.replace("epochs = 3", "epochs = 3\nlr = 0.5")))
    jobs = [Job(s, s.row(row), seed, epochs) for s in (spec, other) for row in ("slbf", "taught") for seed in (0, 1)
            for epochs in (2, 3)]  # fmt: skip
    assert len({job.folder for job in jobs}) == len(jobs)


# -------------------------------------------------------------------------------------------- the ledger


def test_ledger_lines_come_back_as_they_were(tmp_path: Path) -> None:
    spec = load_spec(write_spec(tmp_path))
    lines = [entry(spec, "dense"), entry(spec, "slbf", seed=1, accuracy=99.25, dirty=True)]
    for line in lines:
        ledger.append(spec.ledger, line)
    assert spec.ledger == tmp_path / "results" / "small.jsonl"
    assert ledger.read(spec.ledger) == ledger.Ledger(tuple(lines))


def test_a_damaged_line_is_named_and_the_others_kept(tmp_path: Path) -> None:
    spec = load_spec(write_spec(tmp_path))
    good = entry(spec, "dense")
    without_seed = json.loads(good.to_line())
    del without_seed["seed"]
    wrong_type = {**json.loads(good.to_line()), "epochs": "three"}
    spec.ledger.parent.mkdir()
    lines = [
        good.to_line(),
        '{"spec": "sm',
        json.dumps(without_seed),
        "[1]",
        json.dumps(wrong_type),
        "",
        good.to_line(),
    ]
    spec.ledger.write_text("\n".join(lines) + "\n")
    found = ledger.read(spec.ledger)
    assert found.entries == (good, good)
    assert [message.partition(" is damaged")[0] for message in found.damaged] == [
        f"{spec.ledger}, line {number}" for number in (2, 3, 4, 5)
    ]
    assert "seed is missing" in found.damaged[1]
    assert "epochs is not a whole number" in found.damaged[3]


def test_a_line_after_a_torn_one_is_still_readable(tmp_path: Path) -> None:
    spec = load_spec(write_spec(tmp_path))
    good = entry(spec, "dense")
    ledger.append(spec.ledger, good)
    with spec.ledger.open("a") as file:
        file.write(good.to_line()[:40])  # the machine went down here
    ledger.append(spec.ledger, replace(good, seed=1))
    found = ledger.read(spec.ledger)
    assert [line.seed for line in found.entries] == [0, 1]
    assert len(found.damaged) == 1


def test_keys_of_a_later_version_are_passed_over(tmp_path: Path) -> None:
    spec = load_spec(write_spec(tmp_path))
    good = entry(spec, "dense")
    spec.ledger.parent.mkdir()
    spec.ledger.write_text(json.dumps({**json.loads(good.to_line()), "energy": 3}) + "\n")
    assert ledger.read(spec.ledger).entries == (good,)


def test_an_accuracy_that_is_no_number_is_never_written(tmp_path: Path) -> None:
    spec = load_spec(write_spec(tmp_path))
    with pytest.raises(ValueError, match="JSON"):
        ledger.append(spec.ledger, entry(spec, "dense", accuracy=float("nan")))
    assert not spec.ledger.exists() or not spec.ledger.read_bytes()


def test_a_ledger_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    spec = load_spec(write_spec(tmp_path))
    spec.ledger.mkdir(parents=True)  # a folder where the file should be
    with pytest.raises(DataError, match=r"cannot append to .*small\.jsonl"):
        ledger.append(spec.ledger, entry(spec, "dense"))


def _append_many(path: Path, line: Entry, count: int) -> None:
    for number in range(count):
        ledger.append(path, replace(line, epochs=number))


def test_two_processes_may_append_at_once(tmp_path: Path) -> None:
    spec = load_spec(write_spec(tmp_path))
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_append_many, args=(spec.ledger, entry(spec, "slbf", seed=s), 12)) for s in (0, 1)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found = ledger.read(spec.ledger)
    assert not found.damaged
    assert sorted((line.seed, line.epochs) for line in found.entries) == [(s, n) for s in (0, 1) for n in range(12)]
