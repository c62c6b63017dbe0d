"""Kernel continual learning with variational random features: the paper's method, equation by equation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kcl.benchmarks.task import Task
from kcl.core.shapes import Float, Int
from kcl.errors import KclError
from kcl.functional import ridge
from kcl.functional.gaussian import DiagonalGaussian, bounded, kl_divergence, standard_normal_like
from kcl.functional.kernels import unit_length, weigh_stages
from kcl.functional.matching import matched_targets
from kcl.functional.metric import metric_of, scatter_within
from kcl.functional.noise import Noise
from kcl.methods import class_heads, ridge_head, views
from kcl.methods.class_heads import ClassHead
from kcl.methods.coreset import check_coreset, split_coreset
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.kernel_model import KernelModel
from kcl.methods.method import Batch, Learnable, Memory, Method, Places
from kcl.methods.ridge_head import Head, HeadState
from kcl.methods.ridge_kernels import KERNELS
from kcl.nets.backbone import Backbone

BATCH = 2048
"""Samples that pass the backbone together, where all of a task or of all coresets do."""


class KernelContinualLearning(Method):
    settings: KclSettings
    settings_type = KclSettings
    name = "kcl"
    summary = "kernel continual learning: a kernel ridge classifier per task on its coreset, nothing replayed"
    keeps = "coreset_size_per_class samples per class and task; λ, scale and shift of each task"
    memory_setting = "coreset_size_per_class"
    keeps_coresets = True
    answers_unseen = False  # without its coreset a task has no classifier

    def __init__(self, settings: KclSettings, class_count: int, places: int | None = None) -> None:
        super().__init__(settings, class_count, places)
        settings.check_network_loss()
        self.kernel = KERNELS[settings.kernel](settings)

    @property
    def by_linear_output(self) -> bool:
        """Whether a linear output layer trains the network, which then does not see the coreset."""
        return self.settings.network_loss == "linear"

    def build(self, backbone: Backbone) -> KernelModel:
        if self.by_linear_output and not list(backbone.parameters()):
            raise KclError("network_loss=linear trains the network, and this one has nothing to train: choose another")
        return KernelModel(backbone, self.kernel, self.settings)

    def check(self, task: Task) -> None:
        super().check(task)
        check_coreset(task.train.labels.numpy(), self.settings.coreset_size_per_class)

    # Learning a task

    def begin_task(self, model: KernelModel, task: Task, rng: np.random.Generator) -> Learnable:
        """Draw the coreset, remove it from the training data, and reset λ, scale and shift (unless `warm_start`)."""
        model.head.restart(self.settings.warm_start)
        coreset, rest = split_coreset(task.train.labels.numpy(), self.settings.coreset_size_per_class, rng)
        return Learnable(rest, self.keep(model, task, coreset))

    @property
    def trained_state(self) -> tuple[str, ...]:
        if self.by_linear_output:
            return ("output",)
        return ("correction",) if self.settings.soft_targets else ()

    def keep(self, model: KernelModel, task: Task, positions: np.ndarray) -> Memory:
        """The coreset: the training samples at `positions`, their one-hot classes, and what is trained with them."""
        coreset, turns = torch.from_numpy(positions), views.rotations(self.settings)
        stored = task.train.inputs[task.train.rows[coreset]]
        targets = F.one_hot(task.train.labels[coreset], task.ways)
        memory = {"inputs": task.view.move(stored), "targets": targets.to(torch.uint8)}
        if self.by_linear_output:
            memory["output"] = torch.zeros(task.ways * turns, model.backbone.features + 1)
        elif self.settings.soft_targets:
            memory["correction"] = torch.zeros(targets.shape)
        if self.settings.matched_targets:
            memory["matched"] = torch.zeros(len(positions), turns, task.ways, turns)
        return memory

    def observe(self, model: KernelModel, memory: Memory, batch: Batch, noise: Noise) -> tuple[Float[Tensor, ""], ...]:
        return super().observe(model, {"output": memory["output"]} if self.by_linear_output else memory, batch, noise)

    def loss(self, model: KernelModel, memory: Memory, batch: Batch, noise: Noise) -> Float[Tensor, ""]:
        """The negative of the empirical objective (Eq. 11): cross-entropy averaged over L draws of ω, plus τ·KL. With
        `network_loss=linear`, the cross-entropy of the task's linear output layer instead (not in the paper).
        """
        if self.by_linear_output:
            weights, bias = memory["output"][:, :-1], memory["output"][:, -1]
            return F.cross_entropy(F.linear(model.backbone(batch.inputs, noise), weights, bias), batch.labels)
        # The batch goes first, so that the coreset updates BatchNorm's running statistics last, as published.
        outputs = model.backbone.forward_parts([batch.inputs, memory["inputs"]], noise)
        queried, coreset = (self._normalise(features, model.backbone.parts) for features in outputs)
        features, sizes = torch.cat([coreset, queried]), (len(coreset), len(queried))
        head, targets = model.head(), memory["targets"].to(features.dtype)
        posterior, prior = self._gaussians(model, coreset, queried)
        draws = self.settings.monte_carlo_samples if posterior else 1
        loss = batch.inputs.new_zeros(())
        for _ in range(draws):
            represented = self.kernel.represent(model, features, posterior, noise)
            anchors, queries = represented.split(sizes)
            if self.kernel.explicit:
                scores = ridge.query_scores(represented, targets, head.strength)
            else:
                scores = self._scores(model, queries, anchors, targets, head.strength)
            loss = loss + F.cross_entropy(head.scale * scores + head.shift, batch.labels) / draws
            if self.settings.soft_targets:
                correction = model.soft_targets * memory["correction"]
                loss = loss + self._target_loss(model, queries, anchors, scores, correction, head, batch.labels) / draws
        if posterior is not None and prior is not None:
            loss = loss + model.tau * kl_divergence(posterior, prior)
        return loss

    def end_task(self, model: KernelModel, memory: Memory) -> Memory:
        """Keep the task's λ, scale and shift with its coreset. The linear output layer is dropped."""
        learned = {name: value.detach().clone() for name, value in model.head()._asdict().items()}
        return {name: tensor for name, tensor in memory.items() if name != "output"} | learned

    def review(self, model: KernelModel, memory: Memory, task: Task) -> Memory:
        """With `matched_targets`: those of the backbone's features, by rotation of coreset sample and class."""
        if not self.settings.matched_targets:
            return memory
        turns, labels = views.rotations(self.settings), task.train.labels
        sums = memory["matched"].new_zeros(turns, task.ways, model.backbone.features)
        for rows in torch.arange(len(labels), device=labels.device).split(BATCH // turns):
            shown = self._turned(model, task.view.scale(task.moved(rows)))
            sums.index_add_(1, labels[rows], shown.to(sums.dtype))
        means = sums / torch.bincount(labels, minlength=task.ways)[:, None]
        coreset = self._turned(model, task.view.scale(memory["inputs"])).flatten(0, 1)
        targets = views.turned_targets(memory["targets"].to(sums.dtype), turns)
        matched = matched_targets(coreset, targets, means.transpose(0, 1).flatten(0, 1))
        return memory | {"matched": matched.view(turns, -1, task.ways, turns).transpose(0, 1).contiguous()}

    def _turned(self, model: KernelModel, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "r n d"]:
        """Features of samples in each rotation that the settings show."""
        turns = views.rotations(self.settings)
        return self.features(model, views.copies(inputs, turns)).unflatten(0, (turns, len(inputs)))

    # Prediction

    def classifier(self, model: KernelModel, memory: Memory, noise: Noise) -> Memory:
        """The task's head, without its predictive variance."""
        return self.head(model, memory, noise, variance=False).tensors()

    def logits(self, model: KernelModel, classifier: Memory, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        head = Head(**classifier)
        return ridge_head.scores(head, self.kernel, model, self.features(model, inputs, head.moments))

    def head(self, model: KernelModel, memory: Memory, noise: Noise, variance: bool = True) -> Head:
        """Solve a task's ridge regression at the current weights for each draw of ω. `memory`: as `show` returns it."""
        features, moments = self._coreset(model, memory["inputs"])
        posterior, _ = self._gaussians(model, features)
        learned = HeadState(memory["strength"] * self.settings.test_strength, memory["scale"], memory["shift"])
        targets = memory.get("matched", memory["targets"]).flatten(1).to(features.dtype)
        if self.settings.soft_targets:
            targets = targets + model.soft_targets * memory["correction"]
        metric, kernel, copies = memory.get("metric"), self.kernel, views.copies_at_test(self.settings)
        features = ridge_head.in_metric(features, metric)
        heads = []
        for _ in range(self.settings.test_draws if posterior else 1):
            frequencies = kernel.frequencies(model, posterior, noise)
            heads.append(ridge_head.fold(kernel, model, features, targets, learned, frequencies, variance, copies))
        return ridge_head.join(heads)._replace(moments=moments, metric=metric)

    def features(
        self, model: KernelModel, inputs: Float[Tensor, "n ..."], moments: Float[Tensor, " k"] | None = None
    ) -> Float[Tensor, "n d"]:
        """The kernel's inputs. `moments`: statistics that BatchNorm uses instead of its running averages."""
        features = model.backbone(inputs) if moments is None else model.backbone(inputs, None, moments)
        return self._normalise(features, model.backbone.parts)

    def _coreset(
        self, model: KernelModel, inputs: Float[Tensor, "m ..."]
    ) -> tuple[Float[Tensor, "m d"], Float[Tensor, " k"] | None]:
        """The coreset's features at test time, and its BatchNorm statistics with `batch_norm=coreset`."""
        if self.settings.batch_norm == "running":
            return self.features(model, inputs), None
        features, moments = model.backbone.gather(inputs)
        return self._normalise(features, model.backbone.parts), moments

    @property
    def shares(self) -> bool:
        return self.settings.shared_metric > 0.0

    def contribution(self, model: KernelModel, memory: Memory) -> Float[Tensor, "d d"]:
        """The within-class scatter of the coreset's features at test time."""
        features, _ = self._coreset(model, memory["inputs"])
        return scatter_within(features, memory["targets"].to(features.dtype))

    def common(self, total: Float[Tensor, "*s d d"]) -> Memory:
        """The metric applied to features before the kernel."""
        return {"metric": metric_of(total, self.settings.shared_metric)}

    # Answers without a task

    def united(self, memories: Sequence[Memory], places: Places) -> Memory:
        """The union of all coresets."""
        labels = [
            torch.tensor(several, device=memory["targets"].device)[memory["targets"].argmax(-1)]
            for memory, several in zip(memories, places, strict=True)
        ]
        classes = torch.arange(1 + max(max(several) for several in places), device=labels[0].device)
        inputs = torch.cat([memory["inputs"] for memory in memories])
        united = {"inputs": inputs, "labels": torch.cat(labels), "classes": classes}
        if self.settings.matched_targets:
            united["matched"] = torch.cat([
                memory["matched"].new_zeros(*memory["matched"].shape[:2], len(classes), memory["matched"].shape[3])
                .index_copy_(2, torch.tensor(several, device=classes.device), memory["matched"])
                for memory, several in zip(memories, places, strict=True)
            ])  # fmt: skip
        return united

    def class_head(self, model: KernelModel, memory: Memory, rng: np.random.Generator) -> ClassHead:
        """The classifier over all classes, from `united` as `show` returns it. BatchNorm uses its running averages."""
        features = torch.cat([self.features(model, part) for part in memory["inputs"].split(BATCH)])
        labels, classes, copies = memory["labels"], len(memory["classes"]), views.copies_at_test(self.settings)
        matched = memory["matched"].flatten(1) if self.settings.matched_targets else None
        return class_heads.fit(self.settings, features, labels, classes, copies, rng, matched)

    def classifier_of_all(self, model: KernelModel, memory: Memory, rng: np.random.Generator) -> Memory:
        return self.class_head(model, memory, rng).tensors()

    def logits_of_all(
        self, model: KernelModel, classifier: Memory, inputs: Float[Tensor, "n ..."]
    ) -> Float[Tensor, "n c"]:
        return class_heads.scores(self.settings, classifier, self.features(model, inputs))

    def posterior(self, model: KernelModel, coreset: Float[Tensor, "m d"]) -> DiagonalGaussian | None:
        """q(ω | C_t) from the kernel's inputs of a coreset, where the kernel infers its frequencies."""
        return self._gaussians(model, coreset)[0]

    # Parts

    def _target_loss(
        self,
        model: KernelModel,
        queries: Tensor,
        anchors: Tensor,
        scores: Float[Tensor, "n c"],
        correction: Float[Tensor, "m c"],
        head: HeadState,
        labels: Int[Tensor, " n"],
    ) -> Float[Tensor, ""]:
        """Zero in value; its gradient trains only the target correction.

        The gradient is that of the cross-entropy with corrected targets, everything else held fixed. All other
        parameters are therefore trained as with one-hot targets.
        """
        queries, anchors, scores = queries.detach(), anchors.detach(), scores.detach()
        head = HeadState(*(value.detach() for value in head))
        scores = scores + self._scores(model, queries, anchors, correction, head.strength)
        loss = F.cross_entropy(head.scale * scores + head.shift, labels)
        return loss - loss.detach()

    def _scores(
        self, model: KernelModel, queries: Tensor, anchors: Tensor, targets: Tensor, strength: Tensor
    ) -> Float[Tensor, "n c"]:
        """ψ(x) W, or K̃ᵀα for a kernel without explicit features, fitted to the coreset."""
        weights = self.kernel.weights(model, anchors, targets, strength)
        return (queries if self.kernel.explicit else self.kernel.compare(model, queries, anchors)) @ weights

    def _normalise(self, features: Float[Tensor, "n d"], parts: Sequence[int]) -> Float[Tensor, "n d"]:
        if self.settings.feature_norm == "l2":
            return unit_length(features) if len(parts) < 2 else weigh_stages(features, parts)
        if self.settings.feature_norm == "batch-minmax":
            low, high = features.min(), features.max()
            return (features - low) / (high - low).clamp_min(1e-12)
        return features

    def _gaussians(
        self, model: KernelModel, coreset: Float[Tensor, "m d"], batch: Float[Tensor, "n d"] | None = None
    ) -> tuple[DiagonalGaussian | None, DiagonalGaussian | None]:
        """q(ω | C_t), amortised from the coreset's mean feature, and the prior, from the batch's or N(0, I)."""
        if model.gaussians is None:
            return None, None
        if batch is not None and self.kernel.inferred == 2:
            posterior, prior = map(self._bounded, model.gaussians(torch.stack([coreset.mean(0), batch.mean(0)])))
            return posterior, prior
        posterior = self._bounded(model.gaussians(coreset.mean(0, keepdim=True))[0])
        return posterior, standard_normal_like(posterior)

    def _bounded(self, gaussian: DiagonalGaussian) -> DiagonalGaussian:
        bound = self.settings.log_variance_bound
        return bounded(gaussian, bound) if bound else gaussian
