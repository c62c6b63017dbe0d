"""The folded head: the same answers as the classifier, and a variance that follows from the kernel alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kcl
from kcl.core.settings import KERNELS
from kcl.functional import kernels
from kcl.methods import ridge_head
from kcl.training.draws import RunNoise

SMALL: dict[str, Any] = {"bases": 32, "width": 16, "dropout": 0.1, "coreset_size_per_class": 4}


def _clusters(seed: int, labels: list[int], samples: int = 24) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    centres = 3.0 * torch.randn(len(labels), 6, generator=random)
    which = torch.arange(samples * len(labels)) % len(labels)
    return centres[which] + 0.3 * torch.randn(len(which), 6, generator=random), torch.tensor(labels)[which]


def _learned(kernel: str, **settings: Any) -> tuple[Any, Tensor]:
    stream = kcl.ArrayStream([_clusters(0, [0, 1, 2]), _clusters(1, [5, 3])])
    learner = kcl.KernelContinualLearner(stream, kernel=kernel, **(SMALL | settings))
    for task in stream:
        learner.learn(task)
    return learner, torch.cat([_clusters(2, [0, 1])[0], _clusters(0, [0, 1, 2])[0]])


@pytest.mark.parametrize("norm", ["l2", "none"])
@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("kernel", KERNELS)
def test_scores_and_variance(kernel: str, draws: int, norm: str) -> None:
    learner, queries = _learned(kernel, test_draws=draws, feature_norm=norm)
    run, method, model = learner._run, learner._run.method, learner.model
    for index in (0, 1):
        memory = run.kept[index].memory
        with torch.no_grad():
            head = method.head(model, memory, RunNoise(run.device, 0, "test noise", index))
            features = method.features(model, queries)
            scores, variance = ridge_head.scores_and_variance(head, method.kernel(model), features)
            expected, prior = _expected_variance(learner, index, queries)
            torch.testing.assert_close(ridge_head.scores(head, method.kernel(model), features), scores)
        torch.testing.assert_close(scores, learner.logits(queries, index), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(variance, expected, rtol=2e-3, atol=2e-4 * prior)  # the difference of large numbers


def _expected_variance(learner: Any, index: int, queries: Tensor) -> tuple[Tensor, float]:
    """k(x, x) − k_xᵀ(K + λI)⁻¹k_x with an inverse, in double precision, kernel by kernel; and the largest k(x, x)."""
    settings, run = learner.settings, learner._run
    model, memory = run.model, run.kept[index].memory
    plain = F.normalize if settings.feature_norm == "l2" else lambda x: x
    single = plain(model.backbone(memory["inputs"]))
    coreset, asked = single.double(), plain(model.backbone(queries)).double()
    noise, found = RunNoise(run.device, 0, "test noise", index), []
    variational = settings.kernel.startswith("vrf")
    for _ in range(settings.test_draws if variational else 1):
        if settings.kernel in ("vrf", "vrf-uninformative", "rff"):
            frequencies = model.frequencies if settings.kernel == "rff" else None
            if variational:
                posterior = model.gaussians(single.mean(0, keepdim=True))[0]
                drawn = noise.normal(settings.bases, 16)
                frequencies = posterior.mean + (0.5 * posterior.log_variance).exp() * drawn
            waves = [torch.cos(x @ frequencies.double().T + model.phases.double()) for x in (coreset, asked)]
            pairs = [(2.0 / settings.bases) ** 0.5 * wave for wave in waves]
            compare = kernels.linear
        else:
            pairs = [coreset, asked]
            compare = {
                "linear": kernels.linear,
                "polynomial": kernels.polynomial,
                "rbf": kernels.rbf,
                "laplacian": kernels.laplacian,
            }[settings.kernel]
        shifted = compare(pairs[0], pairs[0]) + memory["strength"].double() * torch.eye(len(coreset)).double()
        cross, prior = compare(pairs[0], pairs[1]), compare(pairs[1], pairs[1]).diagonal()
        found.append(prior - (cross * (torch.linalg.inv(shifted) @ cross)).sum(0))
    return torch.stack(found).mean(0).float(), max(1.0, prior.max().item())
