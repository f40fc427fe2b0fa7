"""The search for a recipe: its tries are settings, its results are theirs, and the document shows them."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import recipe

from subbit.train import Settings
from tests import tiny


def test_results_belong_to_tries_as_they_are_defined() -> None:
    tries = {one.name: one for one in recipe.read_tries()}
    results = recipe.read_results()
    assert len(tries) == len(recipe.read_tries())  # no name twice
    assert results
    for line in results:
        assert Settings.from_dict(line["settings"]) == tries[line["name"]].settings, line["name"]
        assert line["validation"] == line["curve"][-1]
        assert line["commit"]


def test_a_try_changes_the_base_key_by_key() -> None:
    tries = {one.name: one.settings for one in recipe.read_tries()}
    assert tries["both"].method_options == {"selection": "fixed", "estimator": "soft"}
    assert tries["muon"].differences(tries["muon-low"]) == ["latent_lr = 1.0 and 0.5"]


def test_only_what_is_missing_is_run() -> None:
    tries = recipe.read_tries()
    done = [{"name": tries[0].name}]
    assert recipe.chosen(tries, [], done) == tries[1:]
    assert [one.name for one in recipe.chosen(tries, ["muon*"], [])] == [
        one.name for one in tries if one.name.startswith("muon")
    ]


def test_a_try_never_sees_the_test_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = tiny.digits()
    held_out = data.hold_out(0.25, seed=0).validation
    assert held_out is not None
    seen = []

    def fit(settings: Settings, *, out: Path, data: object) -> None:
        seen.append((settings, data))
        raise RuntimeError("seen")

    monkeypatch.setattr(recipe, "fit", fit)
    monkeypatch.setattr(recipe, "RUNS", tmp_path)
    with pytest.raises(RuntimeError, match="seen"):
        recipe.run(recipe.Try("one", "", "", tiny.settings(validation=0.25, teacher="dense")), data)
    ((settings, given),) = seen
    assert settings.validation == 0
    assert settings.teacher == (str(tmp_path / "dense"),)  # the network of the try of that name
    assert given.test.images.tolist() == held_out.images.tolist()  # type: ignore[attr-defined]
    assert len(given.train) + len(given.test) == 320  # type: ignore[attr-defined]


def test_document_and_plot_show_the_kept_results() -> None:
    advice = "run: python -m bench.recipe --tables"
    assert recipe.fresh() == recipe.DOCUMENT.read_text(encoding="utf-8"), advice
    shown = {line["name"] for line in recipe.read_results()}
    labels = [one.about for one in recipe.read_tries() if one.name in shown]
    assert all(f"| {label} |" in recipe.fresh() for label in labels)
    assert recipe.PLOT.read_text(encoding="utf-8").count("<path") > len(labels), advice


@pytest.mark.parametrize(
    ("sentence", "better", "worse"),
    [
        ("{:.1f} points over the best of three rates of AdamW and of two of SGD", "muon-again", "sgd-high"),
        ("**Whitening** {:.1f} points", "muon-whiten", "muon"),
        ("**signs that harden** {:.1f} (both", "muon-soft", "muon-scales"),
        ("both together {:.1f}.", "both", "muon"),
        ("**Fixed selections** are {:.0f} points ahead", "both", "both-learned"),
        ("and {:.0f} where these have\n", "muon", "muon-learned"),
        ("lie in between, {:.1f} points behind", "both-again", "both-frozen"),
        ("last fifth only, they are {:.1f} points behind", "both-once-more", "both-frozen-late"),
        (
            "keeps it for the last fifth ([selections.py](../bench/selections.py)), is {:.1f} points",
            "both-once-more",
            "both-annealed",
        ),
        ("by the nearest shared filter, is {:.0f} points behind", "both-once-more", "both-nearest"),
        ("for half of its last epoch, gains {:.1f} points", "both-two-learned", "both-two-kept"),
        ("with a tenth of the rate are {:.1f} points behind", "both-once-more", "both-norm-low"),
        ("**Growing images** cost {:.1f} points", "both-full", "both"),
        ("**Label smoothing** is worth {:.1f} points", "both-again", "both-plain"),
        ("squares that are blanked\n  out cost {:.1f} points", "both-again", "both-cutout"),
        ("two from its network are {:.0f} points behind", "both-again", "both-from-dense"),
        ("gains {:.1f} points, little more than chance", "both-distilled", "both-again"),
        ("a decay of 0.1 it is {:.1f} points ahead of SGD", "dense-muon-low", "dense"),
        ("a second seed lost {:.1f} points", "both", "both-seed"),
        ("by {:.1f} and ", "muon", "muon-again"),
        (" and {:.1f} points. What follows", "both", "both-again"),
    ],
)
def test_differences_in_the_text_are_those_of_the_results(sentence: str, better: str, worse: str) -> None:
    found = {line["name"]: line["validation"] for line in recipe.read_results()}
    assert sentence.format(found[better] - found[worse]) in recipe.DOCUMENT.read_text(encoding="utf-8")


def test_tries_of_a_group_stand_together() -> None:
    tries = [recipe.Try(name, group, f"about {name}", tiny.settings()) for name, group in ("ax", "by", "cx")]
    results = [{"name": name, "validation": 50.0, "seconds": 1.0, "commit": "0" * 12} for name in "cab"]
    said = [line.split(" | ")[:2] for line in recipe.table(results, tries).splitlines()[2:]]
    assert said == [["| x", "about a"], ["| ", "about c"], ["| y", "about b"]]
