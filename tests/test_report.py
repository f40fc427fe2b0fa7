"""The report shows what the ledger says, says where it falls short, and generated tables cannot go stale."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest

from subbit.cli import main
from subbit.errors import ConfigError
from subbit.experiments import figures, ledger
from subbit.experiments.ledger import Ledger
from subbit.experiments.report import (
    build_section,
    environments,
    marked_figures,
    render_html,
    replace_tables,
    write_report,
)
from subbit.experiments.spec import Spec, load_spec
from subbit.experiments.table import Table, build_table, cells, markdown, notes
from tests.test_experiments import EXPERIMENTS, SMALL, entry, write_spec

ROOT = EXPERIMENTS.parent
PUBLISHED = """
[tables.here]
place = "Table 9"
caption = "A table"
finding = "It works."
convolution_weights = 25500

[tables.here.rows]
dense = { label = "Full", ratio = 1, mnist = 99.48 }
slbf = { label = "SLBF", ratio = 32, about = true, mnist = 99.27, recount = { lenet5 = 29.89 } }
"""


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    (tmp_path / "published.toml").write_text(PUBLISHED)
    reference = 'published = { table = "here", column = "mnist" }\n'
    return load_spec(write_spec(tmp_path, SMALL.replace('title = "Small"\n', 'title = "Small"\n' + reference)))


@pytest.fixture
def measured(spec: Spec) -> Spec:
    """Dense with one seed, SLBF with two, the third row not at all."""
    ledger.append(spec.ledger, entry(spec, "dense", accuracy=99.12, stored_bytes=862_331, ratio=2.0, paper_ratio=1.0))
    ledger.append(spec.ledger, entry(spec, "slbf", seed=0, accuracy=98.50))
    ledger.append(spec.ledger, entry(spec, "slbf", seed=1, accuracy=98.70, curve=(94.0, 97.0, 98.7)))
    return spec


def test_more_epochs_are_forecast_from_three_lengths(spec: Spec) -> None:
    """The error is 8, 4 and 2 % after 1, 2 and 4 epochs: half for twice the epochs, so the spec's 8 would leave 1 %."""
    spec = replace(spec, rows=tuple(replace(row, epochs=8) if row.name == "slbf" else row for row in spec.rows))
    runs = [entry(spec, "slbf", epochs=epochs, accuracy=100 - 8 / epochs) for epochs in (4, 1, 2)]
    said = notes(build_table(spec, Ledger(tuple(runs[:2]))))
    assert "SLBF (1, 1/4) by epochs: 92.00 % after 1, 98.00 % after 4." in said
    said = notes(build_table(spec, Ledger(tuple(runs))))
    assert any(note.endswith("as a power of the epochs, 8 give 99.0 %.") for note in said)
    worse = [replace(run, accuracy=90 - run.epochs) for run in runs]
    assert not any("goes on falling" in note for note in notes(build_table(spec, Ledger(tuple(worse)))))
    done = entry(spec, "slbf", epochs=8, accuracy=98.9)
    said = notes(build_table(spec, Ledger((*runs, done))))
    assert not any("goes on falling" in note for note in said)
    assert any("The shorter ones" in note and "promised 99.0 %" in note for note in said)  # beside what came of it


def column(table: Table, header: str) -> list[str]:
    headers, rows = cells(table)
    return [row[headers.index(header)] for row in rows]


# --------------------------------------------------------------------------------------------------- cells


def test_paper_and_ours_stand_side_by_side(measured: Spec) -> None:
    table = build_table(measured)
    assert column(table, "network") == ["dense", "SLBF (1, 1/4)", "taught"]
    assert column(table, "ratio, paper") == ["1×", "~32×", "–"]
    assert column(table, "recounted") == ["–", "29.89×", "–"]
    assert column(table, "file") == ["862.3 kB", "20.5 kB", "–"]
    assert column(table, "ratio, file") == ["2.0×", "84.3×", "–"]
    assert column(table, "accuracy, paper") == ["99.48", "99.27", "–"]
    assert column(table, "accuracy, ours") == ["99.12", "98.60 ± 0.14 (2)", "–"]
    assert "sample standard deviation" in " ".join(notes(table))


def test_rows_are_held_against_the_baseline_of_the_spec(measured: Spec) -> None:
    assert not any("behind" in header for header in cells(build_table(measured))[0])
    text = measured.path.read_text()
    table = build_table(load_spec(write_spec(measured.path.parent, 'baseline = "dense"\n' + text)))
    assert column(table, "points behind, paper") == ["–", "0.21", "–"]
    assert column(table, "points behind, ours") == ["–", "0.52", "–"]
    assert [cell.split(", ")[1] for cell in column(table, "training")[:2]] == ["2 threads", "2 threads"]
    with pytest.raises(ConfigError, match="baseline is 'densest'"):
        load_spec(write_spec(measured.path.parent, 'baseline = "densest"\n' + text))


def test_only_trainings_of_about_the_same_share_are_held_against_each_other(spec: Spec) -> None:
    spec = replace(spec, baseline="dense", rows=tuple(replace(row, epochs=20) for row in spec.rows))

    def dense(epochs: int, accuracy: float) -> ledger.Entry:
        return entry(spec, "dense", epochs=epochs, accuracy=accuracy)

    def slbf(epochs: int, accuracy: float) -> ledger.Entry:
        return entry(spec, "slbf", epochs=epochs, accuracy=accuracy)

    def behind(*entries: ledger.Entry) -> str:
        return column(build_table(spec, Ledger(entries)), "points behind, ours")[1]

    assert "points behind, ours" not in cells(build_table(spec, Ledger((dense(5, 99.0), slbf(20, 99.5)))))[0]
    assert behind(dense(5, 99.0), slbf(6, 98.2)) == "0.80"
    assert behind(dense(5, 99.0), slbf(20, 99.5), slbf(6, 98.2)) == "0.80, 6 and 5 epochs"
    assert behind(dense(5, 99.0), dense(20, 99.9), slbf(6, 98.2)) == "0.80, 6 and 5 epochs"
    assert behind(dense(5, 99.0), dense(20, 99.9), slbf(20, 99.5), slbf(6, 98.2)) == "0.40"
    assert behind(dense(20, 99.9), slbf(20, 99.5), slbf(22, 99.6)) == "0.40"  # what is shown, not the longest
    assert behind(dense(5, 99.0), dense(6, 99.2), slbf(5, 98.2)) == "0.80, 5 and 5 epochs"  # the nearest share


def test_fewer_epochs_are_said_wherever_the_row_is_shown(spec: Spec) -> None:
    ledger.append(spec.ledger, entry(spec, "slbf", epochs=2, curve=(95.0, 97.5)))
    table = build_table(spec)
    assert column(table, "accuracy, ours")[1] == "98.50, 2 of 3 epochs"
    assert "2 of 3 epochs: SLBF (1, 1/4)" in " ".join(notes(table))
    assert "98.50, 2 of 3 epochs" in markdown(table)
    assert "98.50, 2 of 3 epochs" in render_html([build_section(table)], [])
    # a spec that asks for more later makes earlier runs short ones
    longer = load_spec(write_spec(spec.path.parent, spec.path.read_text().replace("epochs = 3", "epochs = 40")))
    assert column(build_table(longer), "accuracy, ours")[1] == "98.50, 2 of 40 epochs"


def test_runs_of_the_specs_length_are_shown_before_others(spec: Spec) -> None:
    for epochs, accuracy in ((2, 90.0), (3, 95.0), (5, 97.0)):
        ledger.append(spec.ledger, entry(spec, "slbf", epochs=epochs, accuracy=accuracy))
    assert column(build_table(spec), "accuracy, ours")[1] == "95.00"


def test_a_longer_run_says_so_too(spec: Spec) -> None:
    ledger.append(spec.ledger, entry(spec, "slbf", epochs=5))
    assert column(build_table(spec), "accuracy, ours")[1] == "98.50, 5 epochs instead of 3"


def test_the_latest_line_of_a_seed_counts(spec: Spec) -> None:
    ledger.append(spec.ledger, entry(spec, "slbf", accuracy=90.0))
    ledger.append(spec.ledger, entry(spec, "slbf", accuracy=95.0))
    assert column(build_table(spec), "accuracy, ours")[1] == "95.00"


def test_lines_of_another_definition_are_not_shown_but_mentioned(spec: Spec) -> None:
    ledger.append(spec.ledger, entry(spec, "slbf", row_hash="000000000000"))
    table = build_table(spec)
    assert column(table, "accuracy, ours")[1] == "–"
    assert "1 older measurement of another definition" in " ".join(notes(table))


def test_damaged_lines_are_named_under_the_table(measured: Spec) -> None:
    with measured.ledger.open("a") as file:
        file.write("{broken\n")
    assert "small.jsonl, line 4 is damaged" in markdown(build_table(measured))


# ------------------------------------------------------------------------------------------------ pictures


def test_pictures_are_valid_svg_and_the_same_every_time(measured: Spec) -> None:
    section = build_section(build_table(measured))
    names = [picture.name for picture in (*section.pictures, *section.details)]
    assert names == [
        "small",
        "small-curves",
        "small-dense-bits",
        "small-dense-use",
        "small-slbf-bits",
        "small-slbf-use",
    ]
    for picture in (*section.pictures, *section.details):
        assert ElementTree.fromstring(picture.svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert build_section(build_table(measured)) == section


@pytest.mark.parametrize("kind", ["size", "ratio", "curves"])
def test_every_kind_of_figure_can_be_drawn(measured: Spec, kind: str) -> None:
    text = measured.path.read_text().replace('title = "Small"', f'title = "Small"\nfigure = "{kind}"')
    drawing = figures.draw(build_table(load_spec(write_spec(measured.path.parent, text))))
    assert drawing is not None
    assert "<svg" in drawing


def test_a_perfect_or_hopeless_network_can_be_drawn(spec: Spec) -> None:
    ledger.append(spec.ledger, entry(spec, "slbf", accuracy=100.0, curve=(0.0, 100.0, 100.0)))
    section = build_section(build_table(spec))
    assert len(section.pictures) == 2


def test_a_line_without_layers_says_what_cannot_be_drawn(spec: Spec) -> None:
    ledger.append(spec.ledger, entry(spec, "slbf", layers=()))
    section = build_section(build_table(spec))
    assert section.details == ()
    assert "no layers" in section.missing[0]
    assert "no layers" in render_html([section], [])


# -------------------------------------------------------------------------------------------------- report


def test_the_page_needs_nothing_from_outside(measured: Spec, tmp_path: Path) -> None:
    page, text = write_report([build_table(measured)], tmp_path / "out")
    html = page.read_text()
    sources = re.findall(r"""(?:src|href)=["']([^"']+)""", html)
    assert sources
    assert all(source.startswith(("data:image/svg+xml;base64,", "#")) for source in sources)
    assert not re.search(r"@import|url\(|<script|<link", html)
    for shown in ("98.60 ± 0.14 (2)", "99.27", "Table 9 of the paper", "It works.", "A processor", "0123456789"):
        assert shown in html
        assert shown in text.read_text()
    for target in re.findall(r"\]\((figures/[^)]+)\)", text.read_text()):
        assert (tmp_path / "out" / target).is_file()


def test_names_with_markup_are_shown_as_text(tmp_path: Path) -> None:
    spec = load_spec(write_spec(tmp_path, SMALL.replace('"SLBF (1, 1/4)"', '"<b>SLBF</b>"')))
    ledger.append(spec.ledger, entry(spec, "slbf"))
    html = render_html([build_section(build_table(spec))], [])
    assert "&lt;b&gt;SLBF&lt;/b&gt;" in html
    assert "<b>SLBF</b>" not in html


def test_what_is_not_measured_is_listed_with_its_command(measured: Spec, tmp_path: Path) -> None:
    waiting = load_spec(write_spec(tmp_path, SMALL, name="other"))
    page, text = write_report([build_table(measured), build_table(waiting)], tmp_path / "out")
    assert "subbit reproduce other" in page.read_text()
    assert "`subbit reproduce other`" in text.read_text()


def test_machines_are_told_apart(measured: Spec) -> None:
    ledger.append(measured.ledger, entry(measured, "taught", cpu="Another processor", dirty=True, seconds=7200))
    lines = environments([build_table(measured)])
    assert [line.partition(":")[0] for line in lines] == ["3 runs, 38 s", "1 run, 2.0 h"]
    assert "with local changes" in lines[1]


# -------------------------------------------------------------------------------------- tables in documents


DOCUMENT = "# Title\n\n<!-- subbit:table small -->\nold\n<!-- /subbit:table -->\n\nrest\n"


def test_marked_tables_are_replaced_and_the_rest_kept(measured: Spec) -> None:
    table = build_table(measured)
    fresh = replace_tables(DOCUMENT, {"small": table}.__getitem__, "doc.md")
    assert markdown(table) in fresh
    assert "old" not in fresh
    assert fresh.startswith("# Title\n\n<!-- subbit:table small -->\n")
    assert fresh.endswith("<!-- /subbit:table -->\n\nrest\n")
    assert replace_tables(fresh, {"small": table}.__getitem__, "doc.md") == fresh


def test_a_marker_without_its_end_is_an_error(measured: Spec) -> None:
    with pytest.raises(ConfigError, match=r"doc\.md: 1 tables begin .* only 0 end"):
        replace_tables("<!-- subbit:table small -->\n", lambda name: build_table(measured), "doc.md")


def test_stale_documents_fail_the_check(measured: Spec, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = [tmp_path / name for name in ("doc.md", "other.md")]
    for document in documents:
        document.write_text(DOCUMENT.replace("table small", "table mnist"))
    arguments = ["report", *(word for document in documents for word in ("--update", str(document)))]
    with pytest.raises(SystemExit) as failure:
        main([*arguments, "--check"])
    assert failure.value.code == 2
    assert "doc.md: stale; run: subbit report --update" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(SystemExit) as success:
        main(arguments)
    assert success.value.code == 0
    assert all("SLBF (1, 1/16)" in document.read_text() for document in documents)
    with pytest.raises(SystemExit) as success:
        main([*arguments, "--check"])
    assert success.value.code == 0


@pytest.mark.parametrize("arguments", [("report", "mnist", "--out"), ("demo", "--out")], ids=lambda a: a[0])
def test_a_folder_that_cannot_be_made_is_a_plain_error(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(SystemExit) as failure:
        main([*arguments, str(tmp_path / "file")])
    assert failure.value.code == 2
    assert "choose another place" in " ".join(capsys.readouterr().err.split())


def test_a_document_that_is_no_text_is_a_plain_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "doc.md").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SystemExit) as failure:
        main(["report", "--update", str(tmp_path / "doc.md")])
    assert failure.value.code == 2
    assert "not a text file" in " ".join(capsys.readouterr().err.split())


def test_figures_of_documents_are_drawn_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document, picture = tmp_path / "doc.md", tmp_path / "images" / "numbers.svg"
    document.write_text("<!-- subbit:figure mnist -->\n![Numbers](images/numbers.svg)\n")

    def report(*arguments: str) -> object:
        with pytest.raises(SystemExit) as end:
            main(["report", "--update", str(document), *arguments])
        return end.value.code

    assert report("--check") == 2  # there is none
    assert "numbers.svg: stale" in " ".join(capsys.readouterr().err.split())
    assert report() == 0
    assert picture.read_text().count("<svg") == 1
    assert report("--check") == 0
    picture.write_text(picture.read_text().replace("<svg", "<svg "))
    assert report("--check") == 2


def test_marked_figures_that_cannot_be_drawn_are_named(measured: Spec, spec: Spec) -> None:
    def table_of(name: str) -> Table:
        assert name == "small"
        return build_table(measured)

    for wrong in ("\n![A](a.svg)", "![A](a.png)", "![A](https://a.svg)", "![A](/a.svg)"):
        with pytest.raises(ConfigError, match=r"doc\.md: behind .* the next line must be the picture"):
            marked_figures(f"<!-- subbit:figure small -->\n{wrong}\n", table_of, "doc.md")
    curves = "<!-- subbit:figure small-curves -->\n![B](b.svg)\n"
    with pytest.raises(ConfigError, match="there is no figure 'small-curves': small has small"):
        marked_figures(curves, lambda name: build_table(spec, Ledger()), "doc.md")
    both = f"<!-- subbit:figure small -->\n![A](a.svg)\n\n{curves}"
    assert list(marked_figures(both, table_of, "doc.md")) == ["a.svg", "b.svg"]


def test_the_line_of_a_series_goes_through_the_best_training_of_each_network() -> None:
    short, taught, other, larger = (
        figures.Point(100.0, 90.0, 0.0, "half"),
        figures.Point(101.0, 92.0, 0.1, "half"),
        figures.Point(100.5, 80.0, 0.0, "quarter"),  # as large, and another network
        figures.Point(200.0, 85.0, 0.0, "whole"),
    )
    assert figures._best_of_each_network([larger, short, taught, other]) == ([other, taught, larger], [short])


@pytest.mark.parametrize("page", ["README.md", "docs/experiments.md", "zoo/README.md"])
def test_tables_and_figures_in_documents_are_up_to_date(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "subbit:table" in text or "subbit:zoo" in text

    def table_of(name: str) -> Table:
        return build_table(load_spec(EXPERIMENTS / f"{name}.toml"))

    assert replace_tables(text, table_of, page) == text, f"run: subbit report --update {page}"
    if f"matplotlib=={matplotlib.__version__}\n" not in (ROOT / "constraints.txt").read_text(encoding="utf-8"):
        return  # another version draws the same otherwise
    for path, drawing in marked_figures(text, table_of, page).items():
        assert ((ROOT / page).parent / path).read_text(encoding="utf-8") == drawing, (
            f"run: subbit report --update {page}"
        )
