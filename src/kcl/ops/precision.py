"""Which products may use the tensor cores' TF32 format (10 bits of mantissa) on a GPU, which bfloat16 (7 bits) on a
CPU, and which may not.

The backbone and the random features may, as networks usually do. The Gram matrix may not:
K + λI is inverted, and its error would come back multiplied by the condition number. It is computed in float32, or on
the tensor cores with every number split in two, which is as exact to a few units in the last place.
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
    """Compute at one of the PRECISIONS. `tries`: in how many ways cuDNN tries each convolution out; 0 is all it has."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.benchmark_limit
    matmul.allow_tf32 = cudnn.allow_tf32 = precision != "float32"
    cudnn.benchmark, cudnn.benchmark_limit = True, tries  # shapes stay for thousands of steps: it pays to try
    token = _activations.set(torch.bfloat16 if precision == "bf16" else torch.float32)
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.benchmark_limit = before
        _activations.reset(token)


def activations() -> torch.dtype:
    """What a ResNet's activations are held in while it is trained on a GPU."""
    return _activations.get()


def used(precision: str, device: torch.device, compiled: bool | None) -> str:
    """What of a precision comes to pass. On a CPU, bfloat16 where the step is compiled: the conversions would otherwise
    cost more than the products save.
    """
    return precision if device.type == "cuda" or (compiled and precision == "bf16") else "float32"


def at_test(precision: str) -> str:
    """What is computed in where runs are asked: answers never come from bfloat16."""
    return "tf32" if precision == "bf16" else precision


def answering(precision: str) -> AbstractContextManager[None]:
    """For tests of runs that are trained at one of the PRECISIONS. Their large batches are few, and long to try out."""
    return products(at_test(precision), tries=TRIES_AT_TEST)
