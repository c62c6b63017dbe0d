"""Which products may be rounded: to TF32 on a GPU's tensor cores (10 bits of mantissa), to bfloat16 on a CPU (7 bits).

The backbone and the random features may, as is usual for networks. The Gram matrix may not: K + λI is inverted, and its
error would be multiplied by the condition number. It is computed in float32, or on the tensor cores with every number
split in two, which is as exact to a few units in the last place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

import torch

PRECISIONS = {
    "float32": "float32 throughout",
    "tf32": "products and convolutions on the tensor cores in TF32",
    "bf16": "as tf32, and the ResNets' activations while training in bfloat16; in a compiled step on a CPU, "
    "products of the MLP, with the frequencies and of the ridge regression's gradient in bfloat16",
}
TRIES_AT_TEST = 8
_activations: ContextVar[torch.dtype] = ContextVar("activations", default=torch.float32)


@contextmanager
def products(precision: str, tries: int = 0) -> Iterator[None]:
    """Compute at one of the PRECISIONS. `tries`: how many of its algorithms cuDNN times for a convolution; 0 is all."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    saved = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.benchmark_limit
    matmul.allow_tf32 = cudnn.allow_tf32 = precision != "float32"
    cudnn.benchmark, cudnn.benchmark_limit = True, tries  # shapes stay for thousands of steps: timing pays
    token = _activations.set(torch.bfloat16 if precision == "bf16" else torch.float32)
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.benchmark_limit = saved
        _activations.reset(token)


def activations() -> torch.dtype:
    """The data type that activations may be rounded to: a ResNet's on a GPU, factors of products on a CPU."""
    return _activations.get()


def used(precision: str, device: torch.device, compiled: bool | None) -> str:
    """The precision that is used when `precision` is requested. A CPU uses bfloat16 only in compiled steps: otherwise
    the conversions would cost more than the products save.
    """
    return precision if device.type == "cuda" or (compiled and precision == "bf16") else "float32"


def at_test(precision: str) -> str:
    """The precision of predictions, which are never computed in bfloat16."""
    return "tf32" if precision == "bf16" else precision


def answering(precision: str) -> AbstractContextManager[None]:
    """The context for predictions of runs trained at one of the PRECISIONS. Few algorithms are timed: batches are
    large.
    """
    return products(at_test(precision), tries=TRIES_AT_TEST)
