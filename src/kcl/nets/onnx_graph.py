"""A torch module as an ONNX graph."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
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
    with _quiet_exporter(), torch.no_grad():
        program = torch.onnx.export(module, examples, dynamic_shapes=shapes, dynamo=True, verbose=False, **options)
    if program is None:
        raise KclError("PyTorch's ONNX exporter returned no program for this model")
    return program.model_proto


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Hide the exporter's warnings about itself and optional packages, which do not concern the user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
