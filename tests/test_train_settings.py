"""Settings and recipes as values: what is given wins, what is unknown is an error, TOML keeps everything."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from subbit.cli import build_app
from subbit.cli.train import default_folder, resolve
from subbit.errors import ConfigError
from subbit.train import RECIPES, Settings, read_config


def test_paper_recipe_is_the_published_one() -> None:
    settings = Settings.resolve(recipe="paper", data="cifar10")
    decays = {settings.weight_decay, settings.latent_decay, settings.selector_decay, settings.norm_decay}
    assert (settings.optimizer, settings.lr, settings.momentum, decays) == ("sgd", 0.1, 0.9, {5e-4})
    assert (settings.schedule, settings.batch, settings.epochs) == ("cosine", 128, 400)


@pytest.mark.parametrize("recipe", RECIPES)
def test_digits_are_never_mirrored_and_photographs_are(recipe: str) -> None:
    assert not Settings.resolve(recipe=recipe, data="mnist").flip
    assert not Settings.resolve(recipe=recipe, data="digits").flip
    assert Settings.resolve(recipe=recipe, data="cifar100").flip
    assert Settings.resolve(recipe=recipe, data="some/folder").flip


def test_given_values_win_over_the_recipe() -> None:
    settings = Settings.resolve({"recipe": "paper", "lr": 0.5}, epochs=3)
    assert (settings.lr, settings.epochs, settings.momentum) == (0.5, 3, 0.9)


@pytest.mark.parametrize("value", [0.25, "1/4", "0.25", Fraction(1, 4), "2/8"])
def test_shares_have_one_form(value: Any) -> None:
    assert Settings.resolve(f2=value).f2 == "1/4"


def test_one_third_is_exact() -> None:
    assert Settings.resolve(f1=1 / 3).f1 == "1/3"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"weight-decay": 1}, "unknown setting 'weight-decay': did you mean 'weight_decay'"),
        ({"recipe": "papr"}, "recipe is 'papr': did you mean 'paper'"),
        ({"optimizer": "lion"}, "choose from sgd, adam, adamw"),
        ({"lr": 0}, "lr is 0.0: it must be positive"),
        ({"lr": float("nan")}, "lr is nan: it must be positive"),
        ({"lr": "fast"}, "lr is 'fast', which is not a number"),
        ({"epochs": 0}, "epochs is 0: it must be at least 1"),
        ({"epochs": 2.5}, "epochs is 2.5: it must be a int"),
        ({"flip": 1}, "flip is 1: it must be a bool"),
        ({"validation": 0.95}, "validation is 0.95: it must be at least 0 and at most 0.9"),
        ({"label_smoothing": 1}, "label_smoothing is 1.0"),
        ({"f1": "2"}, "f1 is '2': it must lie above 0 and be at most 1"),
        ({"f1": "half"}, "f1 is 'half': give a fraction"),
        ({"method": "dense", "f1": "1/2"}, "method dense has no options"),
        ({"keep": 3}, "keep is 3: it must be a list of strings"),
        ({"method_options": 3}, "method_options is 3: it must be a table"),
        ({"keep": [1]}, "keep is .* list of strings"),
        ({"method_options": {"scale": [1]}}, "method_options is .* table"),
        ({"batch": "32.5"}, "batch is '32.5'"),
    ],
)
def test_impossible_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings.resolve(values)


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_PLAIN = st.one_of(st.booleans(), st.integers(-(2**40), 2**40), st.floats(allow_nan=False), _TEXT)


@given(
    seed=st.integers(0, 2**40),
    lr=st.floats(1e-300, 1e300),
    data=_TEXT,
    keep=st.lists(_TEXT, max_size=3),
    options=st.dictionaries(_TEXT, _PLAIN, max_size=3),
)
def test_toml_round_trip(seed: int, lr: float, data: str, keep: list[str], options: dict[str, Any]) -> None:
    settings = Settings.resolve(seed=seed, lr=lr, data=data, keep=keep, model_options=options, method_options=options)
    assert Settings.from_toml(settings.to_toml()) == settings
    assert Settings.from_dict(settings.to_dict()) == settings


def test_differences_ignore_what_changes_no_bit() -> None:
    settings = Settings.resolve(f1=1, f2=1)
    assert settings.differences(settings.but(data_dir="elsewhere", log_every=3, checkpoint_minutes=1)) == []
    assert settings.differences(settings.but(seed=4)) == ["seed = 0 and 4"]


# --------------------------------------------------------------------------------------- command line


def test_flags_win_over_the_config_file(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('recipe = "paper"\nlr = 0.3\nepochs = 7\nf1 = 0.5\n[method_options]\nscale = false\n')
    settings = resolve(read_config(file), {"epochs": "9", "f2": "1/4", "method_options": ["form=weight", "x=3"]})
    assert (settings.lr, settings.epochs, settings.f1, settings.f2) == (0.3, 9, "1/2", "1/4")
    assert settings.method_options == {"scale": False, "form": "weight", "x": 3}
    assert settings.momentum == 0.9


def test_saved_settings_are_a_config_file(tmp_path: Path) -> None:
    settings = Settings.resolve(recipe="paper", data="cifar10", f1="1/2", f2="1/4", method_options={"scale": False})
    (tmp_path / "settings.toml").write_text(settings.to_toml())
    assert resolve(read_config(tmp_path / "settings.toml"), {}) == settings


@pytest.mark.parametrize(("text", "message"), [("lr = ", "not a TOML file"), ("learn = 1", "unknown setting 'learn'")])
def test_bad_config_files(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        resolve(read_config(tmp_path / "bad.toml"), {})
    with pytest.raises(ConfigError, match="cannot read the config file"):
        read_config(tmp_path / "absent.toml")


def test_every_setting_has_a_flag() -> None:
    group = typer.main.get_command(build_app(["train"]))
    assert isinstance(group, typer.core.TyperGroup)
    flags = {flag for option in group.commands["train"].params for flag in [*option.opts, *option.secondary_opts]}
    assert not [spec.name for spec in fields(Settings) if f"--{spec.name.replace('_', '-')}" not in flags]
    assert {"--out", "--resume", "--config", "--no-flip"} <= flags


def test_default_folder_says_what_is_in_it() -> None:
    settings = Settings.resolve(data="mnist", f1=1, f2="1/16", seed=3, epochs=8)
    assert default_folder(settings) == Path("runs/lenet5-mnist-slbf-1-0.0625-fast-8-seed3")


def test_settings_need_neither_torch_nor_lightning() -> None:
    import subprocess
    import sys

    code = "import sys, subbit.cli.train, subbit.train; sys.exit('torch' in sys.modules or 'lightning' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ------------------------------------------------------------------------------------------------ recipes


def test_recipe_knows_what_a_method_wants() -> None:
    stacked = Settings.resolve(data="cifar10", f1="1/2", f2="1/4")
    assert stacked.method_options == {"selection": "fixed", "estimator": "soft"}
    assert stacked.latent_optimizer == "muon"
    dense = Settings.resolve(data="cifar10", method="dense")
    assert (dense.optimizer, dense.method_options) == ("sgd", {})
    assert Settings.resolve(data="cifar10", method="bwn").latent_optimizer == ""
    assert Settings.resolve(data="cifar10", recipe="paper", f1=1, f2=1).method_options == {}


def test_given_method_options_add_to_those_of_the_recipe() -> None:
    options = {"selection": "learned", "scale": False}
    settings = Settings.resolve(data="cifar10", f1=1, f2=1, method_options=options)
    assert settings.method_options == {"selection": "learned", "estimator": "soft", "scale": False}
