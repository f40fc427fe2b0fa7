"""Exported networks give the same answers in ONNX Runtime as the program they came from."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch

from subbit import models
from subbit.errors import ConfigError
from subbit.methods import BNN, SLBF, LegoNet
from subbit.nn import reference
from subbit.nn.compress import compress
from subbit.nn.pack import to_program
from subbit.records import Dense, Program, Upsample, Weight
from tests.core_cases import reals, shared, stacked
from tests.zoo_models import FAMILIES, INPUTS, UNTRACEABLE, build

runtime = pytest.importorskip("onnxruntime")
export = pytest.importorskip("subbit.export")


def outputs(program: Program, form: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    # As it is: fused into weights, a scale would make sums of signs that are exactly zero nearly so.
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = export.to_onnx(program, form).SerializeToString()
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    result: np.ndarray[Any, Any] = session.run(None, {"input": x})[0]
    return result


def check(program: Program, form: str) -> None:
    x = np.random.default_rng(0).normal(size=(3, *program.input_shape)).astype(np.float32)
    with torch.no_grad():
        wanted = reference.run(program, torch.from_numpy(x))[program.output_value].numpy()
    found = outputs(program, form, x)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= 2e-5 * max(1.0, float(np.abs(wanted).max()))


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - UNTRACEABLE))
def test_families_dense(family: str) -> None:
    model, _ = build(family)
    check(to_program(model, INPUTS[family]), "dense")


@pytest.mark.parametrize("form", ["dense", "stacked"])
@pytest.mark.parametrize("method", [SLBF(f1=1 / 2, f2=1 / 4), LegoNet(f1=1 / 2, f2=1 / 2), BNN()], ids=lambda m: m.name)
def test_compressed_lenet_in_both_forms(method: Any, form: str) -> None:
    torch.manual_seed(0)
    check(to_program(compress(models.lenet5(), method).eval(), (1, 28, 28)), form)


@pytest.mark.parametrize("form", ["dense", "stacked"])
@pytest.mark.parametrize("weight", [Dense(reals(6, 6, 3, 3)), stacked(6, 2, 3, 3, 3, 3)], ids=["dense", "stacked"])
def test_shared_weight_is_written_once(weight: Weight, form: str) -> None:
    program = shared(weight)
    check(program, form)
    kernels = [t for t in export.to_onnx(program, form).graph.initializer if list(t.dims[-2:]) == [3, 3]]
    assert len(kernels) == 1


def test_unknown_form_is_refused() -> None:
    program = to_program(torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1)), (1, 2, 2))
    with pytest.raises(ConfigError, match="form='stakced': choose one of 'dense', 'stacked'"):
        export.to_onnx(program, "stakced")


@pytest.mark.parametrize(("before", "after"), [(19, 37), (7, 29), (10, 7)])
def test_sizes_that_a_rounded_scale_would_miss(before: int, after: int) -> None:
    op = Upsample(inputs=(0,), mode="bilinear", output=(after, after))
    program = Program((2, before, before), (op,))
    onnx.checker.check_model(export.to_onnx(program, "dense"), full_check=True)
    check(program, "dense")
