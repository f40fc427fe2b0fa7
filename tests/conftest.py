"""Shared by all tests: one seed for every test, and few threads, so that workers do not fight over the cores."""

from __future__ import annotations

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
