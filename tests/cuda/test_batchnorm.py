"""BatchNorm as it is spelled out for a GPU: PyTorch's own, part by part and run by run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from kcl.nets.resnet import SplitBatchNorm

PARTS = [8, 4]


class InWords(SplitBatchNorm):
    """What a GPU computes, anywhere."""

    def _in_one(self, x: Tensor) -> Tensor:
        return self._in_words(x)


def _norms(draw: Any, kind: type[nn.BatchNorm2d]) -> nn.BatchNorm2d:
    norm = kind(5).double()
    with torch.no_grad():
        norm.weight.copy_(draw.normal(5))
        norm.bias.copy_(draw.normal(5))
        norm.running_mean.copy_(draw.normal(5))
        norm.running_var.copy_(draw.uniform(5) + 0.5)
    return norm


def test_equals_pytorch_s(draw64: Any, make_noise: Any) -> None:
    """Output, gradients and running statistics of two parts, each as if it had been passed alone, in order."""
    x, direction = 3.0 * draw64.normal(12, 5, 3, 4) + 1.0, draw64.normal(12, 5, 3, 4)
    results = []
    for kind in (nn.BatchNorm2d, SplitBatchNorm, InWords):
        norm, given = _norms(make_noise(7, torch.float64), kind), x.clone().requires_grad_()
        plain = kind is nn.BatchNorm2d
        out = torch.cat([norm(part) for part in given.split(PARTS)]) if plain else norm(given, PARTS)
        gradients = torch.autograd.grad((out * direction).sum(), [given, norm.weight, norm.bias])
        results.append([out, *gradients, norm.running_mean, norm.running_var])
    for found in results[1:]:
        torch.testing.assert_close(found, results[0], rtol=1e-9, atol=1e-9)


def test_stacked_runs_keep_their_own_statistics(draw64: Any, make_noise: Any) -> None:
    norms = [_norms(make_noise(seed, torch.float64), InWords) for seed in range(3)]
    x = draw64.normal(3, 12, 5, 3, 4)
    names = ("weight", "bias", "running_mean", "running_var")
    state = {name: torch.stack([getattr(norm, name).detach() for norm in norms]) for name in names}
    out = vmap(lambda state, x: functional_call(norms[0], state, (x, PARTS)))(state, x)
    for run, norm in enumerate(norms):
        expected = norm(x[run], PARTS)
        torch.testing.assert_close(out[run], expected.detach(), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(state["running_mean"][run], norm.running_mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(state["running_var"][run], norm.running_var, rtol=1e-9, atol=1e-9)
