"""Packed networks in other formats. Needs `pip install onnx`."""

from __future__ import annotations

from subbit.export.onnx import to_onnx

__all__ = ["to_onnx"]
