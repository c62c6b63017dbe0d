"""The folded head: scores and a variance that follow from the kernel alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kcl
from kcl.functional import kernels
from kcl.functional.noise import RunNoise
from kcl.methods import ridge_head
from kcl.methods.ridge_kernels import KERNELS

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
    method, model = learner._stack.method, learner.model
    for index in (0, 1):
        memory = learner._stack.memory_kept(0, index)
        with torch.no_grad():
            head = method.head(model, memory, RunNoise(torch.device("cpu"), 0, "test noise", index))
            features = method.features(model, queries)
            scores, variance = ridge_head.scores_and_variance(head, method.kernel, model, features)
            expected_scores, expected, prior = _expected(learner, index, queries)
            torch.testing.assert_close(ridge_head.scores(head, method.kernel, model, features), scores)
            onnx = ridge_head.scores(head, method.kernel, model, features, onnx=True)
        torch.testing.assert_close(onnx, scores)
        torch.testing.assert_close(scores, expected_scores, rtol=2e-3, atol=1e-3)
        torch.testing.assert_close(scores, learner.logits(queries, index), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(variance, expected, rtol=2e-3, atol=2e-4 * prior)  # the difference of large numbers


def _expected(learner: Any, index: int, queries: Tensor) -> tuple[Tensor, Tensor, float]:
    """s·k_xᵀ(K + λI)⁻¹Y + b and k(x, x) − k_xᵀ(K + λI)⁻¹k_x with an inverse, in double precision, kernel by kernel; and
    the largest k(x, x).
    """
    settings, model, memory = learner.settings, learner.model, learner._stack.memory_kept(0, index)
    plain = F.normalize if settings.feature_norm == "l2" else lambda x: x
    single = plain(model.backbone(memory["inputs"]))
    coreset, asked = single.double(), plain(model.backbone(queries)).double()
    noise, found, answers = RunNoise(torch.device("cpu"), 0, "test noise", index), [], []
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
        inverse, targets = torch.linalg.inv(shifted), memory["targets"].double()
        found.append(prior - (cross * (inverse @ cross)).sum(0))
        answers.append(memory["scale"].double() * cross.T @ inverse @ targets + memory["shift"].double())
    scores = answers[0] if len(answers) == 1 else torch.stack([own.softmax(-1) for own in answers]).mean(0).log()
    return scores.float(), torch.stack(found).mean(0).float(), max(1.0, prior.max().item())
