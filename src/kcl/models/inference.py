"""Predictions for a named task, or for the task inferred from the kernels, with probabilities and uncertainty."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kcl.core.settings import nearest
from kcl.core.shapes import Float, Int
from kcl.errors import KclError
from kcl.functional.noise import RunNoise
from kcl.methods import ridge_head, views
from kcl.methods.kcl import KernelContinualLearning
from kcl.methods.kernel_model import KernelModel
from kcl.methods.method import Memory
from kcl.methods.recipes import make_backbone
from kcl.methods.ridge_head import Head
from kcl.models.calibration import fit_temperature
from kcl.training.stack import RunStack

BATCH = 2048
LARGEST_BATCH = 2**22
"""Most input values (samples times their size) whose features are computed at once."""


class Evidence(NamedTuple):
    """The output of one task's head for n queries."""

    logits: Float[Tensor, "n c"]
    """Divided by the task's temperature. With several draws of ω, the log of their averaged probabilities."""
    responses: Float[Tensor, "n c"]
    """The same before temperature, scale and shift: the ridge regression's estimate of the one-hot target."""
    variance: Float[Tensor, " n"]
    surprise: Float[Tensor, " n"]
    """By how many standard deviations the variance exceeds the leave-one-out variances of the coreset. Unlike the
    variance, this is comparable between tasks, whose λ and kernel widths differ."""


def residual(responses: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
    """−‖r − e_best‖², the negative squared distance of the ridge responses from the nearest one-hot target."""
    best = torch.nn.functional.one_hot(responses.argmax(-1), responses.shape[-1])
    return -(responses - best).square().sum(-1)


TASK_SCORES: dict[str, Callable[[Evidence], Float[Tensor, " n"]]] = {
    "typicality": lambda evidence: -evidence.surprise,
    "variance": lambda evidence: -evidence.variance,
    "probability": lambda evidence: evidence.logits.softmax(-1).amax(-1),
    "entropy": lambda evidence: (evidence.logits.softmax(-1) * evidence.logits.log_softmax(-1)).sum(-1),
    "response": lambda evidence: evidence.responses.amax(-1),
    "residual": lambda evidence: residual(evidence.responses),
}
"""Scores of how well a task fits a query; higher is better."""
DEFAULT_SCORE = "typicality"
JOINT = "joint"
WITHOUT_A_TASK = {JOINT: "one classifier over all classes", **dict.fromkeys(TASK_SCORES, "the task that fits best")}
"""What a model does if no task is named: compare all classes at once, or choose a task by a score."""
NOTHING_LEARNED = "the model has not learned any task yet: learn a task first"


class Answers(NamedTuple):
    """The answers to n queries."""

    task: Int[Tensor, " n"]
    """The number of the task."""
    label: Int[Tensor, " n"]
    """The position of the class among that task's classes; −1 where the model abstains."""
    confidence: Float[Tensor, " n"]
    """The probability of that class, given the task."""
    variance: Float[Tensor, " n"]
    """The task's predictive variance: near zero close to its coreset, near k(x, x) far from it."""
    task_margin: Float[Tensor, " n"]
    """Difference between the best and second-best task score; infinite if the task was named or is the only one."""
    known: Float[Tensor, " n"]
    """The share of known queries that are less known than this one; not a number where the model was told none."""


class Answerer:
    """Predicts with the tasks that a run has learned so far.

    A task's head is solved when first needed and kept until the weights change, so that the cost of a prediction for a
    named task does not depend on the number of tasks. `calibrated`: each head's temperature is fitted to what it says
    of its coreset with one sample left out at a time, at the present weights. `temperatures`: those to use instead.
    """

    def __init__(
        self, stack: RunStack, run: int = 0, temperatures: dict[int, float] | None = None, calibrated: bool = False
    ) -> None:
        method, model = list(itertools.chain(*stack.variants))[run], stack.model_at_test(run)
        assert isinstance(method, KernelContinualLearning)  # noqa: S101 - callers refuse other methods
        assert isinstance(model, KernelModel)  # noqa: S101 - what that method builds
        self.stack, self.run, self.method, self.model = stack, run, method, model
        self.temperatures, self.calibrated = dict(temperatures or {}), calibrated
        self._turns, self._mirrors = views.rotations(method.settings), views.mirrors(method.settings)
        self._copies = self._turns * self._mirrors
        self.by_task = method.settings.batch_norm == "coreset"
        """Whether the features of a query depend on the task."""
        self.install({})

    def install(self, heads: dict[int, Head]) -> None:
        """Use heads that were solved earlier at the current weights, such as those of a saved model."""
        self._heads, self._version = dict(heads), self.stack.version
        self._shared: Memory | None = None

    @torch.no_grad()
    def head(self, index: int) -> Head:
        """The task's head at the current weights. The draws of ω are the same as in every other evaluation."""
        if self._version != self.stack.version:
            self.install({})
        if index not in self._heads:
            if self._shared is None:
                self._shared = self.method.in_common(self.model, map(self.as_seen, sorted(self.stack.kept)))
            noise = RunNoise(self.stack.device, self.stack.seeds[self.run], "test noise", index)
            memory = self.method.show(self.as_seen(index) | self._shared)
            head = self.method.head(self.model, memory, noise)
            self._heads[index] = head._replace(temperature=self._temperature(index, head), left_out=None)
        return self._heads[index]

    def _temperature(self, index: int, head: Head) -> Float[Tensor, ""] | None:
        given = self.temperatures.get(index)
        if given is None and self.calibrated and head.left_out is not None:
            logits = self._vote(ridge_head.mix(head.left_out.unbind()))
            labels = self.stack.memory_kept(self.run, index)["targets"].argmax(-1)
            several = torch.bincount(labels)[labels] > 1  # of a class with one sample, the others know nothing
            given = fit_temperature(logits[several], labels[several])
        return None if given is None else head.scale.new_tensor(given)

    def as_seen(self, index: int) -> Memory:
        """A task's memory with its samples scaled for the network."""
        memory, (_, view) = self.stack.memory_kept(self.run, index), self.stack.kept[index]
        return memory | {"inputs": view.scale(memory["inputs"])}

    @torch.inference_mode()
    def plain_features(self, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
        """Features that are the same for all tasks: with BatchNorm's running averages, and without copies."""
        return torch.cat([self.method.features(self.model, part) for part in self.batches(inputs)])

    def batches(self, inputs: Tensor) -> Sequence[Tensor]:
        """Inputs that pass the network together, with their copies."""
        size = min(BATCH, LARGEST_BATCH // max(1, inputs.shape[1:].numel())) // self._copies
        return [inputs] if len(inputs) <= size else inputs.split(max(1, size))

    @torch.inference_mode()
    def features(self, inputs: Float[Tensor, "n ..."], index: int) -> Float[Tensor, "v d"]:
        """Kernel inputs of all copies of the queries (`methods.views`), the same for all tasks unless `by_task`."""
        parts = [self._features(part, index).unflatten(0, (self._copies, -1)) for part in self.batches(inputs)]
        return torch.cat(parts, dim=1).flatten(0, 1)

    def _features(self, inputs: Tensor, index: int) -> Tensor:
        moments = self.head(index).moments if self.by_task else None
        return self.method.features(self.model, views.copies(inputs, self._turns, self._mirrors), moments)

    @torch.inference_mode()
    def logits(self, inputs: Float[Tensor, "n ..."], index: int) -> Float[Tensor, "n c"]:
        """Scores of a task's classes for scaled inputs, without variances: the fast way."""
        head, kernel = self.head(index), self.method.kernel
        scores = [
            self._vote(ridge_head.scores(head, kernel, self.model, self._features(part, index)))
            for part in self.batches(inputs)
        ]
        return ridge_head.calibrated(head, scores[0] if len(scores) == 1 else torch.cat(scores))

    def _vote(self, scores: Tensor) -> Tensor:
        return views.vote(scores, self._turns, self._mirrors)

    @torch.inference_mode()
    def evidence(self, features: Float[Tensor, "v d"], index: int) -> Evidence:
        """Evidence from the `features` of queries: copies vote, their variances are averaged."""
        head = self.head(index)
        assert head.usual is not None  # noqa: S101 - `head` folds the variance in
        scores, variance = ridge_head.scores_and_variance(head, self.method.kernel, self.model, features)
        scores, variance = self._vote(scores), views.mean_over_copies(variance, self._copies)
        mean, deviation = head.usual.mean(0)
        logits, responses = ridge_head.calibrated(head, scores), (scores - head.shift) / head.scale
        return Evidence(logits, responses, variance, (variance - mean) / deviation.clamp_min(1e-6))

    @torch.inference_mode()
    def answer(
        self,
        inputs: Float[Tensor, "n ..."],
        index: int | None = None,
        score: str = DEFAULT_SCORE,
        abstain_below: float = 0.0,
    ) -> Answers:
        """Task, class and confidence for scaled inputs.

        Without a task, the heads of all tasks are evaluated and each query goes to the task with the best `score`: for
        "variance" the lowest k(x, x) − k_xᵀ(K + λI)⁻¹k_x, for "typicality" the lowest relative to the variances of the
        task's own coreset. The model abstains where the confidence is below `abstain_below`.
        """
        if score not in TASK_SCORES:
            raise KclError(f"unknown score {score!r}; {nearest(score, list(TASK_SCORES))}")
        candidates = sorted(self.stack.kept) if index is None else [index]
        if not candidates:
            raise KclError(NOTHING_LEARNED)
        parts = [self._best(part, candidates, score) for part in self.batches(inputs)]
        joined = Answers(*(torch.cat(column) for column in zip(*parts, strict=True)))
        sure = (joined.confidence >= abstain_below) & joined.variance.isfinite()  # false where one is not a number
        return joined._replace(label=joined.label.masked_fill(~sure, -1))

    def _best(self, inputs: Tensor, candidates: Sequence[int], score: str) -> Answers:
        """The answers of the task with the best score."""
        features = self._features(inputs, candidates[0])
        best = self._scored(features, candidates[0], score)
        second = torch.full_like(best.task_margin, -torch.inf)
        for index in candidates[1:]:
            features = self._features(inputs, index) if self.by_task else features
            answers = self._scored(features, index, score)
            better = answers.task_margin > best.task_margin
            second = torch.where(better, best.task_margin, torch.maximum(second, answers.task_margin))
            best = Answers(*(torch.where(better, new, old) for new, old in zip(answers, best, strict=True)))
        return best._replace(task_margin=best.task_margin - second)

    def _scored(self, features: Tensor, index: int, score: str) -> Answers:
        """The answers of one task, with its score in place of the margin."""
        evidence = self.evidence(features, index)
        confidence, label = evidence.logits.softmax(-1).max(-1)
        fit = TASK_SCORES[score](evidence)
        fit = fit.masked_fill(fit.isnan(), -torch.inf)  # never the best
        task, known = torch.full_like(label, index), torch.full_like(fit, torch.nan)
        return Answers(task, label, confidence, evidence.variance, fit, known)


def finite(scores: Float[Tensor, "n c"], rows: Sequence[int] | None = None) -> Float[Tensor, "n c"]:
    """The scores of queries. Raises where they are not finite; `rows`: the numbers by which the queries are known."""
    lost = (~scores.isfinite().all(-1)).nonzero().flatten().tolist()
    if lost:
        row = lost[0] if rows is None else rows[lost[0]]
        raise KclError(f"row {row} is so far from everything learned that its scores are not finite")
    return scores


def name_or_module(backbone: nn.Module | str | None) -> tuple[dict[str, str], nn.Module | None]:
    """A backbone that a user gives: a setting if it is a name, or else a module."""
    if isinstance(backbone, str):
        return {"backbone": backbone}, None
    if backbone is not None and not isinstance(backbone, nn.Module):
        raise KclError(f"backbone must be the name of a network or a torch module, not {backbone!r}")
    return {}, backbone


def start_run(
    method: KernelContinualLearning,
    input_shape: Sequence[int],
    module: nn.Module | None,
    seed: int,
    device: str | torch.device,
) -> RunStack:
    """One untrained run. `module`: the user's own backbone, if any."""
    backbone = partial(make_backbone, input_shape, method.settings, module)
    return RunStack([method], [backbone], [seed], device, precision="float32", plain=True)
