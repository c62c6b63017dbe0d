"""A torch module as an ONNX graph."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from kcl.core.packages import load_package
from kcl.errors import KclError


def trace(module: nn.Module, examples: tuple[Tensor, ...], **options: Any) -> Any:
    """The ONNX model of what the module computes from such inputs, for any number of rows in the first of them."""
    load_package("onnxscript", "onnx", "writing ONNX needs the packages onnx and onnxscript")
    rows = {0: torch.export.Dim("n", min=1)}
    shapes = (rows, *[None] * (len(examples) - 1))
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # the exporter warns about itself and optional packages
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad():
            program = torch.onnx.export(module, examples, dynamic_shapes=shapes, dynamo=True, verbose=False, **options)
    finally:
        logger.setLevel(level)
    if program is None:
        raise KclError("PyTorch's ONNX exporter returned no program for this model")
    return program.model_proto
