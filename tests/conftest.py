"""Shared by all tests: one seed for every test, and few threads, so that workers do not fight over the cores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("subbit", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("subbit")


@pytest.fixture(autouse=True)
def _seed() -> None:
    np.random.seed(0)  # noqa: NPY002 - code under test may use the global generator
    try:
        import torch
    except ModuleNotFoundError:  # the tests of the runtime do without
        return
    torch.manual_seed(0)
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense run to start from, or to be taught by."""
    from subbit.train import fit
    from tests import tiny

    out = tmp_path_factory.mktemp("dense") / "run"
    fit(tiny.settings(method="dense", epochs=3), out=out, data=tiny.digits())
    return out
