"""Stacked convolutions, channels last, with PyTorch's own in cuDNN's place: shapes, padding and gradients. What cuDNN
computes is in `test_device.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kcl.ops import convolution_cuda
from kcl.ops.folding import Fold

RUNS = 3


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def convolve(x: Tensor, weight: Tensor, padding: list[int], stride: list[int], *_: Any, out: Tensor) -> None:
        out.copy_(F.conv2d(x, weight, stride=stride, padding=padding))

    def one_by_one(_: Any, __: str, count: int, one: Callable[[int], None]) -> None:
        for number in range(count):
            one(number)

    monkeypatch.setattr(torch.ops.aten, "cudnn_convolution", SimpleNamespace(out=convolve))
    monkeypatch.setattr(convolution_cuda, "side_by_side", one_by_one)


def _leaves(size: int, side: int, channels: int, padded: int, outputs: int, kernel: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(RUNS, size, side, side, padded, generator=random)
    x[..., channels:] = 0.0
    weight = torch.randn(RUNS, outputs, channels, kernel, kernel, generator=random)
    return x.requires_grad_(), weight.requires_grad_()


def _expected(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """Run by run in double precision, channels first in between."""
    images = x[..., : weight.shape[2]].double().permute(0, 1, 4, 2, 3)
    parts = zip(images, weight.double(), strict=True)
    return torch.stack([F.conv2d(image, own, stride=stride, padding=padding) for image, own in parts]).permute(
        0, 1, 3, 4, 2
    )


@pytest.mark.parametrize(
    ("side", "channels", "padded", "outputs", "kernel", "stride"),
    [(6, 4, 4, 8, 3, 1), (6, 5, 8, 5, 3, 2), (7, 3, 4, 6, 3, 2), (5, 4, 4, 4, 3, 1), (9, 3, 4, 7, 7, 2)],
)
def test_the_gradients_of_both_ways_are_added_up(
    side: int, channels: int, padded: int, outputs: int, kernel: int, stride: int
) -> None:
    x, weight = _leaves(2, side, channels, padded, outputs, kernel)

    def both(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return convolution_cuda.convolve_and_show(x, weight, stride, kernel // 2)

    out, shown = torch.func.vmap(both)(x, weight)
    wide = -(-outputs // 4) * 4
    assert out.shape[-1] == wide
    assert not out[..., outputs:].any()
    assert torch.equal(shown, x[:, :, ::stride, ::stride])
    expected = _expected(x, weight, stride, kernel // 2)
    torch.testing.assert_close(out[..., :outputs].double(), expected, rtol=1e-4, atol=1e-4)
    random = torch.Generator().manual_seed(1)
    one, two = (torch.randn(tensor.shape, generator=random) for tensor in (out, shown))
    two[..., channels:] = 0.0
    for both_count in (False, True):
        loss, same = (out * one).sum(), (expected * one[..., :outputs]).sum()
        if both_count:
            loss, same = loss + (shown * two).sum(), same + (x[:, :, ::stride, ::stride] * two).sum()
        found, wanted = (torch.autograd.grad(value, [x, weight], retain_graph=True) for value in (loss, same))
        for mine, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


def test_the_sum_of_both_gradients_is_rounded_once_as_adding_them_would_be() -> None:
    """So a block is the same to the last bit as one whose gradients autograd adds up."""
    x, weight = _leaves(2, 6, 4, 4, 4, 3)

    def apart(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return convolution_cuda.convolve(x, weight, 2, 1), x[:, ::2, ::2]

    def both(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return convolution_cuda.convolve_and_show(x, weight, 2, 1)

    found = []
    for way in (apart, both):
        out, shown = torch.func.vmap(way)(x, weight)
        found.append(torch.autograd.grad(out.square().sum() + shown.exp().sum(), [x, weight]))
    for mine, other in zip(*found, strict=True):
        assert torch.equal(mine, other)


def test_images_need_no_gradient() -> None:
    x, weight = _leaves(2, 6, 3, 4, 4, 3)
    out = torch.func.vmap(lambda x, weight: convolution_cuda.convolve(x, weight, 1, 1))(x.detach(), weight)
    (found,) = torch.autograd.grad(out.sum(), [weight])
    (wanted,) = torch.autograd.grad(_expected(x, weight, 1, 1).sum(), [weight])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def _folded(images: Tensor, fold: Fold, channels: int) -> Tensor:
    """Pixel by pixel, as `ops.folding` says: (n, c, h, w) as (n, y, x, channels)."""
    count, own, height, width = images.shape
    out = torch.zeros(count, fold.side(height), fold.side(width), channels)
    for row, column in itertools.product(range(out.shape[1]), range(out.shape[2])):
        for place, (down, right) in enumerate(itertools.product(range(fold.stride), repeat=2)):
            y, x = row * fold.stride + down - fold.padding, column * fold.stride + right - fold.padding
            if 0 <= y < height and 0 <= x < width:
                out[:, row, column, place * own : (place + 1) * own] = images[:, :, y, x]
    return out


FOLDS = [Fold(2, 1, 7), Fold(2, 3, 7), Fold(2, 1, 3), Fold(3, 1, 5), Fold(2, 0, 2), Fold(1, 1, 3), Fold(4, 2, 3)]


@pytest.mark.parametrize("side", [12, 13])
@pytest.mark.parametrize("fold", FOLDS, ids=str)
def test_a_folded_convolution_is_the_convolution(fold: Fold, side: int) -> None:
    """Values and the gradient of its own weight, of stacked runs, with channels that are padded."""
    random = torch.Generator().manual_seed(0)
    images = torch.randn(RUNS, 2, 3, side, side, generator=random)
    weight = torch.randn(RUNS, 5, 3, fold.kernel, fold.kernel, generator=random, requires_grad=True)
    channels = -(-3 * fold.stride**2 // 4) * 4
    folded = torch.stack([_folded(own, fold, channels) for own in images])
    found = torch.func.vmap(lambda x, weight: convolution_cuda.convolve_folded(x, weight, fold))(folded, weight)
    parts = zip(images, weight, strict=True)
    expected = torch.stack([F.conv2d(own, kernel, None, fold.stride, fold.padding) for own, kernel in parts])
    torch.testing.assert_close(found[..., :5].permute(0, 1, 4, 2, 3), expected, rtol=1e-4, atol=1e-4)
    assert not found[..., 5:].any()
    direction = torch.randn(expected.shape, generator=random)
    (wanted,) = torch.autograd.grad((expected * direction).sum(), [weight])
    (gradient,) = torch.autograd.grad((found[..., :5].permute(0, 1, 4, 2, 3) * direction).sum(), [weight])
    torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-4)
    assert torch.equal(fold.unfolded(fold.weight(weight)), weight)


class _Stream:
    def __init__(self, name: str, told: list[str]) -> None:
        self.name, self.told = name, told

    def wait_stream(self, other: _Stream) -> None:
        self.told.append(f"{self.name} waits for {other.name}")


def test_packing_begins_with_the_step_and_ends_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    present, packing, weights = (_Stream(name, told) for name in ("present", "packing", "weights"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: present)
    monkeypatch.setattr(convolution_cuda, "stream", lambda *_: packing)
    with convolution_cuda.weights_beside(torch.device("cuda", 0)):
        assert told == ["packing waits for present"]
        convolution_cuda._overlap.sides.add(weights)  # type: ignore[arg-type]
    assert sorted(told[1:]) == ["present waits for packing", "present waits for weights"]
    assert convolution_cuda._overlap.packing is None
    assert not convolution_cuda._overlap.sides
