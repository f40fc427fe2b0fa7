"""Comparison of a PyTorch model with its packed form, for the tests of packing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import subbit
from subbit.format import decode, encode
from subbit.nn.pack import to_program
from subbit.nn.reference import run
from subbit.records import Op, Program

TOLERANCE = 1e-4  # relative to the largest output; folding and summation order cost about 1e-6


def outputs(model: nn.Module, x: Tensor) -> Tensor:
    training = model.training
    with torch.no_grad():
        y: Tensor = model.eval()(x.clone())
    model.train(training)
    return y


def relative_error(expected: Tensor, got: Tensor) -> float:
    assert expected.shape == got.shape
    return float((expected - got).abs().max() / expected.abs().max().clamp_min(1e-6))


def assert_parity(model: nn.Module, shape: tuple[int, ...], batches: tuple[int, ...] = (1, 4)) -> Program:
    """Reference and core give what PyTorch gives, for several batch sizes; the program, for further questions."""
    data = encode(to_program(model, shape, storage="f32"))
    program, net = decode(data), subbit.load(data)
    for batch in batches:
        x = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(batch))
        expected = outputs(model, x)
        assert relative_error(expected, run(program, x)[program.output_value]) <= TOLERANCE
        assert relative_error(expected, torch.from_numpy(net(x.numpy()))) <= TOLERANCE
    return program


def kinds(program: Program) -> list[str]:
    """Names of the operations, in order."""
    return [type(op).__name__ for op in program.ops]


def only(program: Program, kind: type[Op]) -> Op:
    (op,) = (op for op in program.ops if isinstance(op, kind))
    return op


def randomise_norms(model: nn.Module, seed: int = 0) -> nn.Module:
    """BatchNorm statistics and gains that are not trivial, some gains negative."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.2, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
            if module.affine:
                nn.init.uniform_(module.weight, -0.5, 1.5, generator=generator)
                nn.init.normal_(module.bias, 0, 0.2, generator=generator)
    return model
