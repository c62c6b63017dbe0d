"""Kernel continual learning with variational random features: the paper's method, equation by equation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kcl.benchmarks.task import Task
from kcl.core.shapes import Float, Int
from kcl.functional import kernels, ridge
from kcl.functional.gaussian import DiagonalGaussian, bounded, kl_divergence, standard_normal_like
from kcl.functional.kernels import Kernel
from kcl.functional.metric import metric_of, scatter_within
from kcl.functional.noise import Noise
from kcl.methods import ridge_head, views
from kcl.methods.coreset import check_coreset, split_coreset
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.method import Learnable, Memory, Method
from kcl.nets.amortized import AmortizedGaussians
from kcl.nets.backbone import Backbone
from kcl.nets.head import HeadState, KernelRidgeHead
from kcl.ops.precision import compiled_on_cpu


class KernelModel(nn.Module):
    """The shared backbone h_θ, the inference network f_φ and the prior network f_γ (together in `gaussians`),
    and the current task's head."""

    phases: Tensor
    frequencies: Tensor
    gamma: Tensor
    tau: Tensor
    soft_targets: Tensor

    def __init__(self, backbone: Backbone, settings: KclSettings) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = KernelRidgeHead(settings.ridge_strength)
        variational = settings.kernel in ("vrf", "vrf-uninformative")
        self.conditional_prior = settings.kernel == "vrf"
        self.gaussians = AmortizedGaussians(backbone.features, 1 + self.conditional_prior) if variational else None
        if variational or settings.kernel == "rff":
            self.register_buffer("phases", 2.0 * math.pi * torch.rand(settings.bases))
        if settings.kernel == "rff":  # the spectral measure of exp(−γ‖x − y‖²) is N(0, 2γI)
            scale = math.sqrt(2.0 * settings.rbf_gamma)
            self.register_buffer("frequencies", scale * torch.randn(settings.bases, backbone.features))
        gamma = settings.laplacian_gamma if settings.kernel == "laplacian" else settings.rbf_gamma
        self.register_buffer("gamma", torch.tensor(gamma), persistent=False)
        self.register_buffer("tau", torch.tensor(settings.tau), persistent=False)
        if settings.soft_targets:
            self.register_buffer("soft_targets", torch.tensor(settings.soft_targets), persistent=False)


class Fitted(NamedTuple):
    """A task's classifier at the model's present weights, ready for queries."""

    kernel: Kernel
    head: HeadState
    anchors: Float[Tensor, "m d"] | None
    """The coreset's representations; None where the kernel is explicit and the coreset is no longer needed."""
    weights: Tensor
    """Dual weights α (m × c), or primal weights W (D × c) where the kernel is explicit."""
    moments: Float[Tensor, " k"] | None = None
    """The coreset's statistics that BatchNorm uses for queries; None for the running ones."""
    metric: Float[Tensor, "d d"] | None = None
    """What features are multiplied with before the kernel sees them; None where all directions count alike."""


class KernelContinualLearning(Method):
    settings: KclSettings
    settings_type = KclSettings
    name = "kcl"
    summary = "kernel continual learning: a kernel ridge classifier per task on its coreset, nothing replayed"
    keeps = "coreset_size_per_class samples per class and task; λ, scale and shift of each task"
    memory_setting = "coreset_size_per_class"
    keeps_coresets = True
    answers_unseen = False  # without its coreset a task has no classifier

    def build(self, backbone: Backbone) -> KernelModel:
        return KernelModel(backbone, self.settings)

    def check(self, task: Task) -> None:
        super().check(task)
        check_coreset(task.train.labels.numpy(), self.settings.coreset_size_per_class)

    # Learning a task

    def begin_task(self, model: KernelModel, task: Task, rng: np.random.Generator) -> Learnable:
        """Draw the coreset, take it out of the training data, and begin λ, scale and shift anew, unless warm."""
        model.head.restart(self.settings.warm_start)
        coreset, rest = split_coreset(task.train.labels.numpy(), self.settings.coreset_size_per_class, rng)
        return Learnable(rest, self.keep(task, coreset))

    @property
    def trained(self) -> tuple[str, ...]:
        return ("correction",) if self.settings.soft_targets else ()

    def keep(self, task: Task, positions: np.ndarray) -> Memory:
        """The coreset: these training samples, which class each has, and what is learned to be added to that."""
        kept = torch.from_numpy(positions)
        stored = task.train.inputs[task.train.rows[kept]]
        targets = F.one_hot(task.train.labels[kept], task.ways)
        begun = {name: torch.zeros(targets.shape) for name in self.trained}
        return {"inputs": task.view.move(stored), "targets": targets.to(torch.uint8)} | begun

    def loss(
        self,
        model: KernelModel,
        memory: Memory,
        inputs: Float[Tensor, "n ..."],
        labels: Int[Tensor, " n"],
        noise: Noise,
    ) -> Float[Tensor, ""]:
        """The negative of the empirical objective (Eq. 11): cross-entropy averaged over L draws of ω, plus τ·KL."""
        # The batch goes first: where BatchNorm keeps running statistics, the coreset is their last word, as published.
        passed = model.backbone.forward_parts([inputs, memory["inputs"]], noise)
        batch, coreset = (self._normalise(own, model.backbone.parts) for own in passed)
        features, sizes = torch.cat([coreset, batch]), (len(coreset), len(batch))
        head, targets = model.head(), memory["targets"].to(features.dtype)
        posterior, prior = self._gaussians(model, coreset, batch)
        draws = self.settings.monte_carlo_samples if posterior else 1
        loss = inputs.new_zeros(())
        for _ in range(draws):
            kernel = self._kernel(model, posterior, noise)
            represented = kernel.represent(features)
            anchors, queries = represented.split(sizes)
            if kernel.explicit and compiled_on_cpu(represented):
                scores = ridge.primal_scores(represented, targets, head.strength)
            else:
                scores = self._scores(kernel, queries, anchors, self._weights(kernel, anchors, targets, head))
            loss = loss + F.cross_entropy(head.scale * scores + head.shift, labels) / draws
            if self.settings.soft_targets:
                correction = model.soft_targets * memory["correction"]
                loss = loss + self._target_loss(kernel, queries, anchors, scores, correction, head, labels) / draws
        if posterior is not None and prior is not None:
            loss = loss + model.tau * kl_divergence(posterior, prior)
        return loss

    def end_task(self, model: KernelModel, memory: Memory) -> Memory:
        """Keep the task's own λ, scale and shift with its coreset."""
        return memory | {name: value.detach().clone() for name, value in model.head()._asdict().items()}

    # Answering

    def classifier(self, model: KernelModel, memory: Memory, noise: Noise) -> list[Fitted]:
        """Solve the ridge regression of a task at the model's present weights, once for each draw of ω."""
        features, moments = self._coreset(model, memory["inputs"])
        posterior, _ = self._gaussians(model, features)
        head, targets, metric = self._learned(memory), self._targets(model, memory, features), memory.get("metric")
        features, fitted = ridge_head.measured(features, metric), []
        for _ in range(self.settings.test_draws if posterior else 1):
            kernel = self._kernel(model, posterior, noise)
            anchors = kernel.represent(features)
            weights = self._weights(kernel, anchors, targets, head)
            fitted.append(Fitted(kernel, head, None if kernel.explicit else anchors, weights, moments, metric))
        return fitted

    def logits(
        self, model: KernelModel, classifier: list[Fitted], inputs: Float[Tensor, "n ..."]
    ) -> Float[Tensor, "n c"]:
        """Eq. 5 for each draw of ω; several draws are averaged as probabilities, in the log domain."""
        features = ridge_head.measured(self.features(model, inputs, classifier[0].moments), classifier[0].metric)
        scores = [
            head.scale * self._scores(kernel, kernel.represent(features), anchors, weights) + head.shift
            for kernel, head, anchors, weights, *_ in classifier
        ]
        if len(scores) == 1:
            return scores[0]
        return torch.logsumexp(torch.stack(scores).log_softmax(-1), dim=0) - math.log(len(scores))

    def features(
        self, model: KernelModel, inputs: Float[Tensor, "n ..."], moments: Float[Tensor, " k"] | None = None
    ) -> Float[Tensor, "n d"]:
        """What the kernel acts on; `moments`: what BatchNorm uses in place of its running averages."""
        passed = model.backbone(inputs) if moments is None else model.backbone(inputs, None, moments)
        return self._normalise(passed, model.backbone.parts)

    def _coreset(
        self, model: KernelModel, inputs: Float[Tensor, "m ..."]
    ) -> tuple[Float[Tensor, "m d"], Float[Tensor, " k"] | None]:
        """The coreset's features at test, and its statistics where BatchNorm is to use them."""
        if self.settings.batch_norm == "running":
            return self.features(model, inputs), None
        features, moments = model.backbone.gather(inputs)
        return self._normalise(features, model.backbone.parts), moments

    def head(self, model: KernelModel, memory: Memory, noise: Noise) -> ridge_head.Head:
        """What `prepare` gives, with the same draws of ω, folded for fast answers and with their variance."""
        memory = views.shown_memory(memory, views.rotations(self.settings), views.mirrors(self.settings))
        features, moments = self._coreset(model, memory["inputs"])
        posterior, _ = self._gaussians(model, features)
        learned, targets = self._learned(memory), self._targets(model, memory, features)
        frequencies, phases = getattr(model, "frequencies", None), None
        metric, heads = memory.get("metric"), []
        features = ridge_head.measured(features, metric)
        for _ in range(self.settings.test_draws if posterior else 1):
            if posterior is not None:
                draws = noise.normal(self.settings.bases, model.backbone.features)
                frequencies = kernels.reparameterised(posterior, draws)
            phases = None if frequencies is None else model.phases
            heads.append(ridge_head.fold(self.kernel(model), features, targets, learned, frequencies, phases))
        return ridge_head.join(heads)._replace(moments=moments, metric=metric)

    @property
    def shares(self) -> bool:
        return self.settings.shared_metric > 0.0

    def contribution(self, model: KernelModel, memory: Memory) -> Float[Tensor, "d d"]:
        """How the coreset's features vary within classes, as it is shown at test."""
        memory = views.shown_memory(memory, views.rotations(self.settings), views.mirrors(self.settings))
        features, _ = self._coreset(model, memory["inputs"])
        return scatter_within(features, memory["targets"].to(features.dtype))

    def common(self, total: Float[Tensor, "*s d d"]) -> Memory:
        """The metric in which features are compared."""
        return {"metric": metric_of(total, self.settings.shared_metric)}

    def kernel(self, model: KernelModel) -> Kernel:
        """The kernel of what `head` represents queries by: random Fourier features, or the features themselves."""
        fourier = model.gaussians is not None or self.settings.kernel == "rff"
        return kernels.linear_kernel() if fourier else self._fixed_kernel(model)

    # Parts

    def _targets(self, model: KernelModel, memory: Memory, features: Tensor) -> Float[Tensor, "m c"]:
        """What the ridge regression is fitted to: one-hot, or near it where targets are learned."""
        targets = memory["targets"].to(features.dtype)
        return targets + model.soft_targets * memory["correction"] if self.settings.soft_targets else targets

    def _target_loss(
        self,
        kernel: Kernel,
        queries: Tensor,
        anchors: Tensor,
        scores: Float[Tensor, "n c"],
        correction: Float[Tensor, "m c"],
        head: HeadState,
        labels: Int[Tensor, " n"],
    ) -> Float[Tensor, ""]:
        """Zero, with the gradient that corrected targets follow: of the cross-entropy they would give, as if nothing
        else could move. So everything else is trained as with one-hot targets.
        """
        queries, anchors, scores = queries.detach(), anchors.detach(), scores.detach()
        head = HeadState(*(value.detach() for value in head))
        scores = scores + self._scores(kernel, queries, anchors, self._weights(kernel, anchors, correction, head))
        loss = F.cross_entropy(head.scale * scores + head.shift, labels)
        return loss - loss.detach()

    def _learned(self, memory: Memory) -> HeadState:
        """λ, scale and shift that a task's training ended with, as they are used at test."""
        return HeadState(memory["strength"] * self.settings.test_strength, memory["scale"], memory["shift"])

    def _weights(self, kernel: Kernel, anchors: Tensor, targets: Float[Tensor, "m c"], head: HeadState) -> Tensor:
        """The ridge solution on the coreset: primal where the kernel is explicit, dual otherwise."""
        if kernel.explicit:
            return ridge.primal_weights(anchors, targets, head.strength)
        return ridge.dual_weights(kernel.compare(anchors, anchors), targets, head.strength)

    def _scores(self, kernel: Kernel, queries: Tensor, anchors: Tensor | None, weights: Tensor) -> Tensor:
        """ψ(x) W, or K̃ᵀα where the kernel has no explicit features."""
        return (queries if kernel.explicit or anchors is None else kernel.compare(queries, anchors)) @ weights

    def _normalise(self, features: Float[Tensor, "n d"], parts: Sequence[int]) -> Float[Tensor, "n d"]:
        if self.settings.feature_norm == "l2":
            return unit_length(features) if len(parts) < 2 else weighed(features, parts)
        if self.settings.feature_norm == "batch-minmax":
            low, high = features.min(), features.max()
            return (features - low) / (high - low).clamp_min(1e-12)
        return features

    def _gaussians(
        self, model: KernelModel, coreset: Float[Tensor, "m d"], batch: Float[Tensor, "n d"] | None = None
    ) -> tuple[DiagonalGaussian | None, DiagonalGaussian | None]:
        """q(ω | C_t) amortised from the coreset's mean feature, and the prior from the batch's, or N(0, I)."""
        if model.gaussians is None:
            return None, None
        if batch is not None and model.conditional_prior:
            posterior, prior = map(self._bounded, model.gaussians(torch.stack([coreset.mean(0), batch.mean(0)])))
            return posterior, prior
        posterior = self._bounded(model.gaussians(coreset.mean(0, keepdim=True))[0])
        return posterior, standard_normal_like(posterior)

    def _bounded(self, gaussian: DiagonalGaussian) -> DiagonalGaussian:
        bound = self.settings.log_variance_bound
        return bounded(gaussian, bound) if bound else gaussian

    def _kernel(self, model: KernelModel, posterior: DiagonalGaussian | None, noise: Noise) -> Kernel:
        settings = self.settings
        if posterior is not None:
            draws = noise.normal(settings.bases, model.backbone.features)
            return kernels.variational_kernel(posterior, draws, model.phases)
        return self._fixed_kernel(model)

    def _fixed_kernel(self, model: KernelModel) -> Kernel:
        settings = self.settings
        if settings.kernel == "rff":
            return kernels.fourier_kernel(model.frequencies, model.phases)
        if settings.kernel == "rbf":
            return kernels.rbf_kernel(model.gamma)
        if settings.kernel == "laplacian":
            return kernels.laplacian_kernel(model.gamma)
        if settings.kernel == "polynomial":
            return kernels.polynomial_kernel(settings.polynomial_degree)
        return kernels.linear_kernel()


def weighed(features: Float[Tensor, "n d"], parts: Sequence[int]) -> Float[Tensor, "n d"]:
    """Features of several stages, of unit length: each stage's squared length is half of the next one's."""
    squares = [2.0**place / (2.0 ** len(parts) - 1.0) for place in range(len(parts))]
    split = zip(features.split(list(parts), dim=-1), squares, strict=True)
    return torch.cat([math.sqrt(square) * unit_length(own) for own, square in split], dim=-1)


def unit_length(features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """x / ‖x‖, smooth at zero: a sample whose features all vanish stays zero, with a finite gradient."""
    return features * torch.rsqrt(features.square().sum(-1, keepdim=True) + 1e-12)
