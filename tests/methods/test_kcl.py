"""The method against its equations, written out again with other means."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from kcl.benchmarks.array_stream import ArrayStream
from kcl.benchmarks.task import Task
from kcl.errors import KclError
from kcl.functional.kernels import unit_length, weigh_stages
from kcl.functional.noise import Noise
from kcl.methods.kcl import KernelContinualLearning
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.kernel_model import KernelModel
from kcl.methods.method import Batch, Memory
from kcl.methods.ridge_head import Head
from kcl.methods.ridge_kernels import KERNELS
from kcl.nets.backbone import Backbone
from kcl.nets.mlp import MLP

SMALL: dict[str, Any] = {"width": 6, "layers": 1, "bases": 9, "dropout": 0.0, "coreset_size_per_class": 3}
EXPLICIT = ("vrf", "vrf-uninformative", "rff", "linear")


def _task(draw: Any, samples: int = 30, classes: int = 3) -> Task:
    labels = torch.arange(samples) % classes
    inputs = draw.uniform(samples, 4) + labels[:, None]
    return ArrayStream([(inputs, labels)], [(inputs, labels)])[0]


class Bench:
    """A method, its model and what it keeps of a small task, before the first step."""

    def __init__(self, seeded: Any, make_noise: Any, **settings: Any) -> None:
        self.settings = KclSettings(**(SMALL | settings))
        self.task = _task(make_noise(11))
        self.method = KernelContinualLearning(self.settings, 3)
        with seeded(5):
            backbone = MLP((4,), self.settings.width, self.settings.layers, self.settings.dropout)
            self.model = self.method.build(backbone)
        learnable = self.method.begin_task(self.model, self.task, np.random.default_rng(3))
        self.rest = torch.from_numpy(learnable.positions)
        self.memory = self.seen(learnable.memory)
        with torch.no_grad():  # away from where a head begins, so that every part of it matters
            self.model.head.raw_strength.fill_(-0.23)
            self.model.head.scale.fill_(1.7)
            self.model.head.shift.fill_(0.4)

    def seen(self, memory: Memory) -> Memory:
        return memory | {"inputs": self.task.view.scale(memory["inputs"])}

    @property
    def batch(self) -> tuple[Tensor, Tensor]:
        chosen = self.rest[:7]
        return self.task.view(self.task.train.inputs[chosen]), self.task.train.labels[chosen]

    def ended(self) -> Memory:
        with torch.no_grad():
            return self.method.end_task(self.model, self.memory)

    def logits(self, memory: Memory, inputs: Tensor, noise: Noise) -> Tensor:
        with torch.no_grad():
            return self.method.logits(self.model, self.method.classifier(self.model, memory, noise), inputs)


@pytest.fixture
def bench(seeded: Any, make_noise: Any) -> Any:
    return lambda **settings: Bench(seeded, make_noise, **settings)


def _gram(kernel: str, settings: KclSettings, x: Tensor, y: Tensor, frequencies: Any, phases: Any) -> Tensor:
    """Every kernel from its formula, sample by sample."""
    difference = x[:, None, :] - y[None, :, :]
    if kernel == "linear":
        return (x[:, None, :] * y[None, :, :]).sum(-1)
    if kernel == "polynomial":
        return ((x[:, None, :] * y[None, :, :]).sum(-1) + 1.0) ** settings.polynomial_degree
    if kernel == "rbf":
        return torch.exp(-settings.rbf_gamma * difference.square().sum(-1))
    if kernel == "laplacian":
        return torch.exp(-settings.laplacian_gamma * difference.abs().sum(-1))
    waves = [torch.cos(side @ frequencies.T + phases) for side in (x, y)]
    return 2.0 / settings.bases * waves[0] @ waves[1].T


class Reference:
    """Eq. 3, 5 and 11 in double precision, with inverses, torch.distributions and the same draws of ε."""

    def __init__(self, model: KernelModel, settings: KclSettings, memory: Memory, noise: Any) -> None:
        self.model, self.settings, self.noise = copy.deepcopy(model).double(), settings, noise
        self.targets = memory["targets"].double()
        self.coreset = self.features(memory["inputs"])

    def features(self, inputs: Tensor) -> Tensor:
        features = self.model.backbone(inputs.double())
        norm = self.settings.feature_norm
        if norm == "l2":
            return F.normalize(features, dim=-1)
        if norm == "batch-minmax":
            return (features - features.min()) / (features.max() - features.min())
        return features

    def gaussians(self, batch: Tensor | None) -> tuple[Normal, Normal] | None:
        """q(ω | C_t), and p(ω | D_t \\ C_t) or N(0, I)."""
        if self.settings.kernel not in ("vrf", "vrf-uninformative"):
            return None
        pooled = [self.coreset.mean(0)]
        if self.settings.kernel == "vrf" and batch is not None:
            pooled.append(batch.mean(0))
        normals = [Normal(g.mean, g.log_variance.exp().sqrt()) for g in self.model.gaussians(torch.stack(pooled))]
        zero = torch.zeros_like(normals[0].mean)
        return normals[0], normals[1] if len(normals) == 2 else Normal(zero, zero + 1.0)

    def scores(self, queries: Tensor, posterior: Normal | None) -> Tensor:
        frequencies, phases = None, None
        if posterior is not None:
            noise = self.noise.normal(self.settings.bases, self.coreset.shape[-1]).double()
            frequencies, phases = posterior.mean + posterior.stddev * noise, self.model.phases
        elif self.settings.kernel == "rff":
            frequencies, phases = self.model.frequencies, self.model.phases
        arguments = self.settings.kernel, self.settings
        gram = _gram(*arguments, self.coreset, self.coreset, frequencies, phases)
        cross = _gram(*arguments, self.coreset, queries, frequencies, phases)
        strength = self.model.head.raw_strength.abs() + 0.01
        inverse = torch.linalg.inv(strength * torch.eye(len(gram), dtype=torch.float64) + gram)
        return (self.model.head.scale * (self.targets.T @ inverse @ cross) + self.model.head.shift).T

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        batch = self.features(inputs)
        gaussians = self.gaussians(batch)
        posterior, prior = gaussians if gaussians is not None else (None, None)
        draws = self.settings.monte_carlo_samples if posterior is not None else 1
        loss = torch.zeros((), dtype=torch.float64)
        for _ in range(draws):
            probabilities = torch.softmax(self.scores(batch, posterior), dim=-1)
            loss = loss - probabilities[torch.arange(len(labels)), labels].log().mean() / draws
        if posterior is not None:
            loss = loss + self.settings.tau * kl_divergence(posterior, prior).sum()
        return loss


VARIANTS = [
    *({"kernel": kernel} for kernel in KERNELS),
    {"kernel": "vrf", "monte_carlo_samples": 3, "tau": 0.5},
    {"kernel": "vrf", "tau": 0.0},
    {"kernel": "vrf-uninformative", "tau": 2.0},
    {"kernel": "rff", "rbf_gamma": 2.0},
    {"kernel": "rbf", "rbf_gamma": 2.0},
    {"kernel": "laplacian", "laplacian_gamma": 1.5},
    {"kernel": "polynomial", "polynomial_degree": 2},
    {"kernel": "vrf", "feature_norm": "none"},
    {"kernel": "linear", "feature_norm": "batch-minmax"},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
class TestEquations:
    """Tolerance: single precision, with a condition number of a few hundred."""

    def test_the_loss_is_cross_entropy_plus_tau_times_the_divergence(
        self, bench: Any, make_noise: Any, variant: dict[str, Any]
    ) -> None:
        it = bench(**variant)
        found = it.method.loss(it.model, it.memory, Batch(*it.batch), make_noise(8))
        expected = Reference(it.model, it.settings, it.memory, make_noise(8)).loss(*it.batch)
        assert found.item() == pytest.approx(expected.item(), rel=1e-4)

    def test_the_scores_are_those_of_the_dual_solution(
        self, bench: Any, make_noise: Any, draw: Any, variant: dict[str, Any]
    ) -> None:
        """Also where the classifier was collapsed to primal weights and the coreset is no longer looked at."""
        it, queries = bench(**variant), 3.0 * draw.uniform(12, 4)
        memory = it.ended()
        with torch.no_grad():
            head = it.method.classifier(it.model, memory, make_noise(8))
        assert ("anchors" not in head) == (it.settings.kernel in EXPLICIT)
        found = it.logits(memory, queries, make_noise(8))
        reference = Reference(it.model, it.settings, it.memory, make_noise(8))
        gaussians = reference.gaussians(None)
        expected = reference.scores(reference.features(queries), gaussians[0] if gaussians else None)
        torch.testing.assert_close(found.double(), expected.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "variant",
    [
        {"kernel": "vrf"},
        {"kernel": "vrf", "monte_carlo_samples": 2, "dropout": 0.3},
        {"kernel": "vrf-uninformative"},
        {"kernel": "rff"},
        {"kernel": "rbf"},
        {"kernel": "vrf", "feature_norm": "batch-minmax"},
    ],
    ids=str,
)
def test_the_gradient_of_the_objective_equals_finite_differences(
    bench: Any, make_noise: Any, variant: dict[str, Any]
) -> None:
    """Eq. 11 in double precision, for every parameter of backbone, Gaussians and head, with the noise held fixed."""
    it = bench(**{"width": 3, "bases": 4, "tau": 0.3} | variant)
    model, (inputs, labels) = it.model.double(), it.batch
    memory = it.memory | {"inputs": it.memory["inputs"].double()}

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> Tensor:
            return it.method.loss(self.model, memory, Batch(inputs.double(), labels), make_noise(8, torch.float64))

    names, values = zip(*Loss().named_parameters(), strict=True)

    def loss(*values: Tensor) -> Tensor:
        return torch.func.functional_call(Loss(), dict(zip(names, values, strict=True)))

    assert torch.autograd.gradcheck(loss, tuple(value.detach().requires_grad_() for value in values))


class TestBeginning:
    def test_the_coreset_is_taken_out_of_the_training_rows(self, bench: Any) -> None:
        it = bench()
        train = it.task.train
        assert len(it.memory["inputs"]) == 9
        assert len(it.rest) == len(train) - 9
        rest = {tuple(row) for row in train.inputs[it.rest].tolist()}
        kept = {tuple(row) for row in it.memory["inputs"].tolist()}
        assert len(kept) == 9
        assert not rest & kept
        assert rest | kept == {tuple(row) for row in train.inputs.tolist()}

    def test_its_targets_are_its_labels(self, bench: Any) -> None:
        it = bench()
        labels = dict(zip(map(tuple, it.task.train.inputs.tolist()), it.task.train.labels.tolist(), strict=True))
        expected = [[float(labels[tuple(row)] == label) for label in range(3)] for row in it.memory["inputs"].tolist()]
        assert it.memory["targets"].tolist() == expected

    def test_the_head_begins_anew(self, bench: Any) -> None:
        it = bench()
        it.method.begin_task(it.model, it.task, np.random.default_rng(0))
        assert [value.item() for value in it.model.head()] == pytest.approx([0.11, 1.0, 0.0])

    def test_a_task_it_could_not_learn_is_refused_beforehand(self, bench: Any) -> None:
        method = KernelContinualLearning(KclSettings(coreset_size_per_class=10), 3)
        with pytest.raises(KclError, match="none to train on"):
            method.check(bench().task)


class TestAnswers:
    @pytest.mark.parametrize("kernel", KERNELS)
    def test_do_not_depend_on_the_order_of_the_coreset(
        self, bench: Any, make_noise: Any, draw: Any, kernel: str
    ) -> None:
        it, queries = bench(kernel=kernel), draw.uniform(6, 4)
        memory = it.ended()
        order = torch.tensor([4, 0, 8, 2, 6, 1, 7, 5, 3])
        shuffled = memory | {name: memory[name][order] for name in ("inputs", "targets")}
        found, expected = (it.logits(which, queries, make_noise(8)) for which in (shuffled, memory))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("kernel", ["vrf", "vrf-uninformative"])
    def test_the_posterior_depends_on_the_coreset_but_not_on_its_order(
        self, bench: Any, make_noise: Any, draw: Any, kernel: str
    ) -> None:
        """With ε fixed, the kernel between any two vectors is a function of the posterior over ω alone."""
        it, probes = bench(kernel=kernel), draw.normal(6, 6)
        memory = it.ended()

        def kernel_of(order: list[int]) -> Tensor:
            chosen = memory | {name: memory[name][order] for name in ("inputs", "targets")}
            head = Head(**it.method.classifier(it.model, chosen, make_noise(8)))
            waves = torch.cos(probes @ head.frequencies[0].T + head.phases)
            return waves @ waves.T

        torch.testing.assert_close(kernel_of([4, 0, 8, 2, 6, 1, 7, 5, 3]), kernel_of(list(range(9))))
        assert not torch.allclose(kernel_of([0, 0, 0]), kernel_of(list(range(9))), rtol=1e-3)

    @pytest.mark.parametrize(("norm", "depends"), [("l2", False), ("none", False), ("batch-minmax", True)])
    def test_do_not_depend_on_batch_mates(
        self, bench: Any, make_noise: Any, draw: Any, norm: str, depends: bool
    ) -> None:
        """Except with batch-minmax, which is there for comparison with the authors' code and says so."""
        it, queries = bench(feature_norm=norm), draw.uniform(8, 4)
        memory = it.ended()
        queries[-1] *= 10.0
        together = it.logits(memory, queries, make_noise(8))[:3]
        alone = it.logits(memory, queries[:3], make_noise(8))
        assert torch.allclose(together, alone, rtol=1e-4, atol=1e-5) != depends

    def test_use_the_tasks_own_head(self, bench: Any, make_noise: Any, draw: Any) -> None:
        it, queries = bench(), draw.uniform(6, 4)
        memory = it.ended()
        before = it.logits(memory, queries, make_noise(8))
        with torch.no_grad():
            for parameter in it.model.head.parameters():
                parameter.add_(3.0)
        assert torch.equal(it.logits(memory, queries, make_noise(8)), before)
        assert not torch.allclose(it.logits(it.ended(), queries, make_noise(8)), before)

    def test_average_the_probabilities_of_several_draws(self, bench: Any, make_noise: Any, draw: Any) -> None:
        it, queries = bench(test_draws=4), draw.uniform(6, 4)
        with torch.no_grad():
            classifier = it.method.classifier(it.model, it.ended(), make_noise(8))
            alone = [
                classifier | {name: classifier[name][draw : draw + 1] for name in ("weights", "frequencies")}
                for draw in range(4)
            ]
            each = [torch.softmax(it.method.logits(it.model, one, queries), -1) for one in alone]
            found = torch.softmax(it.method.logits(it.model, classifier, queries), -1)
        assert len(classifier["weights"]) == 4
        assert not torch.allclose(each[0], each[1])
        torch.testing.assert_close(found, torch.stack(each).mean(0))

    def test_depend_on_the_draw(self, bench: Any, make_noise: Any, draw: Any) -> None:
        it, queries = bench(), draw.uniform(6, 4)
        first, again, other = (it.logits(it.ended(), queries, make_noise(seed)) for seed in (8, 8, 9))
        assert torch.equal(first, again)
        assert not torch.allclose(first, other)


class _Recording(Backbone):
    """Notes what it is asked; with batch normalisation, so that passes must be separate."""

    features = 4

    def __init__(self, mixing: bool) -> None:
        super().__init__()
        self.layer = nn.BatchNorm1d(4) if mixing else nn.Identity()
        self.calls: list[tuple[int, bool]] = []

    def forward(self, x: Tensor, noise: Noise | None = None) -> Tensor:
        self.calls.append((len(x), noise is not None))
        return self.layer.train(noise is not None)(x)


class TestPasses:
    @pytest.fixture
    def parts(self, make_noise: Any, seeded: Any) -> Any:
        def make(mixing: bool) -> tuple[KernelContinualLearning, KernelModel, Memory, Task]:
            task, method = _task(make_noise(11)), KernelContinualLearning(KclSettings(**SMALL), 3)
            with seeded(0):
                model = method.build(_Recording(mixing))
            return method, model, method.begin_task(model, task, np.random.default_rng(3)).memory, task

        return make

    def test_coreset_and_batch_pass_apart_where_samples_mix(self, parts: Any, make_noise: Any) -> None:
        """Each with its own batch statistics, both in training mode."""
        method, model, memory, task = parts(mixing=True)
        method.loss(model, memory, Batch(task.train.inputs[:7], task.train.labels[:7]), make_noise(1))
        assert sorted(model.backbone.calls) == [(7, True), (9, True)]

    def test_everything_passes_with_noise_while_training_and_without_at_test(self, parts: Any, make_noise: Any) -> None:
        method, model, memory, task = parts(mixing=False)
        method.loss(model, memory, Batch(task.train.inputs[:7], task.train.labels[:7]), make_noise(1))
        assert sum(count for count, _ in model.backbone.calls) == 16
        assert all(noisy for _, noisy in model.backbone.calls)
        model.backbone.calls.clear()
        classifier = method.classifier(model, method.end_task(model, memory), make_noise(1))
        method.logits(model, classifier, task.test.inputs[:5])
        assert model.backbone.calls == [(9, False), (5, False)]


@pytest.mark.parametrize("gamma", [0.1, 0.5, 3.0])
def test_fixed_random_features_stand_for_the_rbf_kernel(bench: Any, make_noise: Any, draw: Any, gamma: float) -> None:
    """A term of the mean over D features has a variance of at most 3/2: six standard errors."""
    it, bases = bench(kernel="rff", rbf_gamma=gamma, bases=20_000), 20_000
    x = unit_length(draw.normal(10, 6))
    features = it.method.kernel.represent(it.model, x, None, make_noise(1))
    exact = torch.exp(-gamma * torch.cdist(x, x).square())
    assert (it.method.kernel.compare(it.model, features, features) - exact).abs().max() < 6.0 * math.sqrt(1.5 / bases)


class TestUnitLength:
    def test_has_length_one(self, draw: Any) -> None:
        found = unit_length(100.0 * draw.normal(20, 5))
        torch.testing.assert_close(found.norm(dim=-1), torch.ones(20))

    def test_a_sample_without_features_stays_zero_with_a_finite_gradient(self) -> None:
        """ReLU and dropout can leave a sample with none."""
        features = torch.zeros(2, 5, requires_grad=True)
        found = unit_length(features)
        found.sum().backward()
        assert (found == 0.0).all()
        assert torch.isfinite(features.grad).all()


def test_features_of_several_stages_are_weighed(draw: Any) -> None:
    """Each stage's squared length is half of the next one's, whatever lengths they had; directions stay."""
    features = torch.cat([draw.normal(7, 3), 100.0 * draw.normal(7, 4), 0.01 * draw.normal(7, 5)], dim=1)
    found = weigh_stages(features, (3, 4, 5))
    squares = torch.stack([own.square().sum(1) for own in found.split([3, 4, 5], dim=1)])
    torch.testing.assert_close(squares, torch.tensor([1.0, 2.0, 4.0])[:, None].expand(3, 7) / 7.0, rtol=1e-4, atol=1e-6)
    for own, before in zip(found.split([3, 4, 5], dim=1), features.split([3, 4, 5], dim=1), strict=True):
        torch.testing.assert_close(unit_length(own), unit_length(before), rtol=1e-4, atol=1e-5)


def test_a_backbone_of_one_s_own_has_no_stages(seeded: Any) -> None:
    method = KernelContinualLearning(KclSettings(**SMALL, feature_stages=2), 3)
    with seeded(0), pytest.raises(KclError, match="feature_stages=2 needs a backbone"):
        method.make(MLP((4,), 6, 1, 0.0))
