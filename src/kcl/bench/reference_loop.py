"""Kernel continual learning as most research code is written: the yardstick of `kcl bench`.

One run, eager PyTorch, a DataLoader, nn.Dropout, two forward passes, the inverse through autograd, `.item()` at every
step. It learns what the library learns; nothing in it is slow on purpose.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from kcl.benchmarks.task import Task
from kcl.methods.kcl_settings import KclSettings


class PlainMLP(nn.Sequential):
    def __init__(self, dropout: float, pixels: int) -> None:
        super().__init__(
            nn.Flatten(), nn.Linear(pixels, 256), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(256, 256), nn.ReLU(), nn.Dropout(dropout),
        )  # fmt: skip
        self.features = 256


class PlainBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.shortcut = (
            nn.Conv2d(before, after, 1, stride, bias=False) if stride > 1 or before != after else nn.Identity()
        )
        self.first = nn.Sequential(nn.BatchNorm2d(after), nn.Dropout(dropout))
        self.second = nn.Sequential(nn.BatchNorm2d(after), nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(torch.relu(self.conv(x))) + self.shortcut(x)))


class PlainResNet(nn.Sequential):
    def __init__(self, widths: Sequence[int], strides: Sequence[int], stem: int, dropout: float) -> None:
        layers: list[nn.Module] = [nn.Conv2d(3, widths[0], stem, strides[0], 1, bias=False)]
        layers += [nn.BatchNorm2d(widths[0]), nn.ReLU()]
        for before, after, stride in zip(widths, widths[1:], strides[1:], strict=False):
            layers += [PlainBlock(before, after, stride, dropout), PlainBlock(after, after, 1, dropout)]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.features = widths[-1]


def _amortiser(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.ELU(), nn.Linear(width, width), nn.ELU(), nn.Linear(width, width))


def _backbone(shape: Sequence[int], dropout: float) -> PlainMLP | PlainResNet:
    if shape[0] == 1:
        return PlainMLP(dropout, math.prod(shape))
    if shape[-1] == 32:
        return PlainResNet((20, 20, 40, 80, 160), (1, 1, 2, 2, 2), 3, dropout)
    return PlainResNet((64, 64, 128, 128, 512), (2, 2, 2, 2, 2), 7, dropout)


class PlainModel(nn.Module):
    """Everything that one run learns, and its random phases."""

    phases: Tensor

    def __init__(self, shape: Sequence[int], settings: KclSettings) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone, self.bases = _backbone(shape, settings.dropout), settings.bases
        width = self.backbone.features
        self.q_mean, self.q_logvar, self.p_mean, self.p_logvar = (_amortiser(width) for _ in range(4))
        self.ridge, self.scale, self.shift = (nn.Parameter(torch.tensor(value)) for value in (0.1, 1.0, 0.0))
        self.register_buffer("phases", 2 * math.pi * torch.rand(self.bases))

    def solve(self, features: Tensor, kept: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, and mean and log-variance of the posterior, from the features of batch and coreset."""
        mean, logvar = self.q_mean(kept.mean(0)), self.q_logvar(kept.mean(0))
        omega = mean + torch.exp(0.5 * logvar) * torch.randn(self.bases, len(mean), device=kept.device)
        psi_kept = math.sqrt(2 / self.bases) * torch.cos(kept @ omega.T + self.phases)
        psi = math.sqrt(2 / self.bases) * torch.cos(features @ omega.T + self.phases)
        gram = psi_kept @ psi_kept.T + (self.ridge.abs() + 0.01) * torch.eye(len(kept), device=kept.device)
        return self.scale * (psi @ psi_kept.T @ torch.inverse(gram) @ targets) + self.shift, mean, logvar


def milliseconds_per_step(task: Task, settings: KclSettings, device: str, steps: int) -> float:
    """The median time of a training step."""
    model = PlainModel(task.train.inputs.shape[1:], settings).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.8)

    ways, size = len(task.classes), settings.coreset_size_per_class
    labels = task.train.labels
    chosen = torch.cat([torch.nonzero(labels == k).flatten()[:size] for k in range(ways)])
    coreset = task.train.inputs[chosen].float().div(255).to(device)
    targets = F.one_hot(labels[chosen], ways).float().to(device)
    in_stream = torch.ones(len(labels), dtype=torch.bool)
    in_stream[chosen] = False
    rows = torch.nonzero(in_stream).flatten()[: (steps + 5) * settings.batch_size]
    data = TensorDataset(task.train.inputs[rows].float().div(255), labels[rows])
    loader = DataLoader(data, batch_size=settings.batch_size, shuffle=True)

    ticks = []
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        features = F.normalize(model.backbone(x))
        logits, mean, logvar = model.solve(features, F.normalize(model.backbone(coreset)), targets)
        prior_mean, prior_logvar = model.p_mean(features.mean(0)), model.p_logvar(features.mean(0))
        ratio = logvar - prior_logvar
        kl = 0.5 * (ratio.exp() - ratio - 1 + (mean - prior_mean) ** 2 / prior_logvar.exp()).sum()
        loss = F.cross_entropy(logits, y) + settings.tau * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        ticks.append(time.perf_counter())
    gaps = [later - sooner for sooner, later in itertools.pairwise(ticks)]
    return 1e3 * statistics.median(gaps[4:])


def classify(settings: KclSettings, coreset: Tensor, targets: Tensor, x: Tensor) -> Callable[[], Tensor]:
    """A call that classifies `x` as such code does: every call solves the task's classifier anew from its coreset."""
    model = PlainModel(x.shape[1:], settings).to(x.device).eval()

    @torch.no_grad()
    def call() -> Tensor:
        kept = F.normalize(model.backbone(coreset.float().div(255)))
        return model.solve(F.normalize(model.backbone(x)), kept, targets.float())[0]

    return call
