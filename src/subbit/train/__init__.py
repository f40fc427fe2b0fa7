"""Training: settings, recipes, one run.

    from subbit.train import Settings, fit

    settings = Settings.resolve(model="lenet5", data="digits", method="slbf", f1=1, f2=1/4, epochs=3)
    fit(settings, out=Path("runs/lenet5")).test_accuracy

`Settings` needs neither torch nor Lightning; the other names load them when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from subbit.train.recipes import RECIPES
from subbit.train.settings import Settings, read_config

if TYPE_CHECKING:
    from subbit.train.build import Run, build_model, load_run, open_run
    from subbit.train.evaluate import accuracy
    from subbit.train.learner import Learner
    from subbit.train.machine import environment
    from subbit.train.runner import Result, fit

__all__ = [
    "RECIPES",
    "Learner",
    "Result",
    "Run",
    "Settings",
    "accuracy",
    "build_model",
    "environment",
    "fit",
    "load_run",
    "open_run",
    "read_config",
]

_LAZY = {
    "Learner": "learner",
    "Result": "runner",
    "Run": "build",
    "accuracy": "evaluate",
    "build_model": "build",
    "environment": "machine",
    "fit": "runner",
    "load_run": "build",
    "open_run": "build",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'subbit.train' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"subbit.train.{_LAZY[name]}"), name)
    globals()[name] = value
    return value
