"""Answers for a named task, or for the task that the kernels themselves infer; with probabilities and uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kcl.benchmarks.task import View
from kcl.core.settings import nearest
from kcl.core.shapes import Bool, Float, Int
from kcl.errors import KclError
from kcl.methods import ridge_head, views
from kcl.methods.kcl import KernelContinualLearning, KernelModel
from kcl.methods.method import Memory
from kcl.methods.ridge_head import Head
from kcl.training.draws import RunNoise

BATCH = 2048
NUMBERS = 2**22
"""Input values whose features are computed at once, at most."""


class Evidence(NamedTuple):
    """What one task's head says about n queries."""

    logits: Float[Tensor, "n c"]
    """Divided by the task's temperature. With several draws of ω: of their averaged probabilities."""
    responses: Float[Tensor, "n c"]
    """The same before temperature, scale and shift: the ridge regression's guess at the one-hot target."""
    variance: Float[Tensor, " n"]
    surprise: Float[Tensor, " n"]
    """By how many standard deviations the variance exceeds the leave-one-out variances of the coreset. Tasks differ in
    λ and in the width of their kernels; this can be compared between them."""


def _residual(evidence: Evidence) -> Float[Tensor, " n"]:
    """How far the ridge responses lie from the nearest one-hot target, ‖r − e_best‖², negated."""
    best = torch.nn.functional.one_hot(evidence.responses.argmax(-1), evidence.responses.shape[-1])
    return -(evidence.responses - best).square().sum(-1)


TASK_SCORES: dict[str, Callable[[Evidence], Float[Tensor, " n"]]] = {
    "typicality": lambda evidence: -evidence.surprise,
    "variance": lambda evidence: -evidence.variance,
    "probability": lambda evidence: evidence.logits.softmax(-1).amax(-1),
    "entropy": lambda evidence: (evidence.logits.softmax(-1) * evidence.logits.log_softmax(-1)).sum(-1),
    "response": lambda evidence: evidence.responses.amax(-1),
    "residual": _residual,
}
"""How well a task fits a query; the higher the better."""
DEFAULT_SCORE = "typicality"


class Answers(NamedTuple):
    """The answers to n queries."""

    task: Int[Tensor, " n"]
    """The place of the task answered for, in the order the tasks were learned."""
    label: Int[Tensor, " n"]
    """The place of the class among that task's classes; −1 where the answer is withheld."""
    confidence: Float[Tensor, " n"]
    """The probability of that class among the classes of the task."""
    variance: Float[Tensor, " n"]
    """The task's predictive variance: near zero close to its coreset, near k(x, x) far from it."""
    task_margin: Float[Tensor, " n"]
    """By how much the task's score exceeds the second best; infinite where the task was named or there is only one."""

    @property
    def withheld(self) -> Bool[Tensor, " n"]:
        return self.label < 0


class KnownTask(NamedTuple):
    """A learned task as inference needs it."""

    memory: Memory
    view: View
    temperature: float = 1.0

    def as_seen(self) -> Memory:
        """What is kept of the task, with its samples as the network sees them."""
        return self.memory | {"inputs": self.view.scale(self.memory["inputs"])}


class Answerer:
    """Answers from a model and the tasks it has learned, which whoever owns the model keeps in `tasks`.

    A head is solved when it is first needed, and again only after `weights_changed`: a prediction for a named task
    costs the same however many tasks there are.
    """

    def __init__(self, method: KernelContinualLearning, model: KernelModel, seed: int) -> None:
        self.method, self.model, self.seed = method, model, seed
        self.tasks: dict[int, KnownTask] = {}
        self._turns, self._mirrors = views.rotations(method.settings), views.mirrors(method.settings)
        self._copies = self._turns * self._mirrors
        self._batch = max(1, BATCH // self._copies)
        self.by_task = method.settings.batch_norm == "coreset"
        """Whether a query has different features for every task."""
        self._heads: dict[int, Head] = {}
        self._shared: Memory | None = None

    def weights_changed(self) -> None:
        """No head solved before holds any longer."""
        self._heads, self._shared = {}, None

    @torch.no_grad()
    def head(self, index: int) -> Head:
        """The task's head at the model's present weights, with the draws of ω that are used everywhere else."""
        if index not in self._heads:
            task = self.tasks[index]
            noise = RunNoise(task.memory["inputs"].device, self.seed, "test noise", index)
            memory = self.method.show(task.as_seen() | self._common())
            self._heads[index] = self.method.head(self.model, memory, noise)
        return self._heads[index]

    def _common(self) -> Memory:
        """What the heads of all tasks have in common."""
        if self._shared is None:
            self._shared = self.method.in_common(self.model, (task.as_seen() for task in self.tasks.values()))
        return self._shared

    def install(self, heads: dict[int, Head]) -> None:
        """Take heads solved before at these very weights, such as those of a saved model."""
        self._heads = dict(heads)

    @torch.inference_mode()
    def features(self, inputs: Float[Tensor, "n ..."], index: int) -> Float[Tensor, "v d"]:
        """What the kernel acts on, for every copy in which queries are shown; for any task, unless `by_task`."""
        batch = max(1, min(self._batch, NUMBERS // (self._copies * inputs[0].numel()))) if len(inputs) else 1
        parts = [self._features(part, index).unflatten(0, (self._copies, -1)) for part in inputs.split(batch)]
        return torch.cat(parts, dim=1).flatten(0, 1)

    def _features(self, inputs: Tensor, index: int) -> Tensor:
        moments = self.head(index).moments if self.by_task else None
        return self.method.features(self.model, views.copies(inputs, self._turns, self._mirrors), moments)

    @torch.inference_mode()
    def logits(self, inputs: Float[Tensor, "n ..."], index: int) -> Float[Tensor, "n c"]:
        """Scores of a task's classes for inputs as the network sees them: the fast way."""
        head, temperature = self.head(index), self.tasks[index].temperature
        scores = [
            self._vote(ridge_head.scores(head, self.method.kernel, self.model, self._features(part, index)))
            for part in ([inputs] if len(inputs) <= self._batch else inputs.split(self._batch))
        ]
        joined = scores[0] if len(scores) == 1 else torch.cat(scores)
        return joined if temperature == 1.0 else joined / temperature

    def _vote(self, scores: Tensor) -> Tensor:
        return views.vote(scores, self._turns, self._mirrors)

    @torch.inference_mode()
    def evidence(self, features: Float[Tensor, "v d"], index: int) -> Evidence:
        """From `features` of queries for that task; copies vote, and their variances are averaged."""
        head = self.head(index)
        assert head.usual is not None  # noqa: S101 - `head` folds the variance in
        scores, variance = ridge_head.scores_and_variance(head, self.method.kernel, self.model, features)
        scores, variance = self._vote(scores), views.mean_over_copies(variance, self._copies)
        mean, deviation = head.usual.mean(0)
        logits, responses = scores / self.tasks[index].temperature, (scores - head.shift) / head.scale
        return Evidence(logits, responses, variance, (variance - mean) / deviation.clamp_min(1e-6))

    @torch.inference_mode()
    def answer(
        self,
        inputs: Float[Tensor, "n ..."],
        index: int | None = None,
        score: str = DEFAULT_SCORE,
        abstain_below: float = 0.0,
    ) -> Answers:
        """Task, class and confidence, for inputs as the network sees them.

        Without a task every task's head is asked and the one with the best `score` answers: for "variance" the one with
        the least k(x, x) − k_xᵀ(K + λI)⁻¹k_x, for "typicality" the same relative to the variance usual for the task.
        An answer whose confidence is below `abstain_below` is withheld.
        """
        if not abstain_below >= 0.0:
            raise KclError(f"abstain_below must be a probability, not {abstain_below}")
        if score not in TASK_SCORES:
            raise KclError(f"unknown score {score!r}; {nearest(score, list(TASK_SCORES))}")
        candidates = sorted(self.tasks) if index is None else [index]
        if not candidates:
            raise KclError("no task was learned yet, so there is nothing to answer from: learn a task first")
        parts = [self._answer(part, candidates, score, index is None) for part in inputs.split(self._batch)]
        joined = Answers(*(torch.cat(column) for column in zip(*parts, strict=True)))
        return joined._replace(label=joined.label.masked_fill(joined.confidence < abstain_below, -1))

    def _answer(self, inputs: Tensor, candidates: Sequence[int], score: str, inferred: bool) -> Answers:
        features = self._features(inputs, candidates[0])
        best = Answers(*([torch.empty(0)] * 5))
        first = second = inputs.new_full((len(inputs),), -torch.inf, dtype=features.dtype)
        for place, index in enumerate(candidates):
            features = self._features(inputs, index) if self.by_task and place else features
            evidence = self.evidence(features, index)
            confidence, label = evidence.logits.softmax(-1).max(-1)
            fit = TASK_SCORES[score](evidence)
            answers = Answers(torch.full_like(label, place), label, confidence, evidence.variance, fit)
            better = fit > first
            best = answers if place == 0 else Answers(
                *(torch.where(better, new, old) for new, old in zip(answers, best, strict=True))
            )  # fmt: skip
            second = torch.where(better, first, torch.maximum(second, fit))
            first = torch.where(better, fit, first)
        if inferred:
            return best._replace(task_margin=first - second)
        task = torch.full_like(best.label, sorted(self.tasks).index(candidates[0]))
        return best._replace(task=task, task_margin=torch.full_like(first, torch.inf))


def as_tensor(inputs: Any) -> Tensor:
    """Numbers in whatever holds them: a tensor, an array, lists, a pandas table."""
    try:
        if isinstance(inputs, Tensor):
            return inputs
        array = np.asarray(inputs)
        plain = array.flags.writeable and all(stride >= 0 for stride in array.strides)
        return torch.from_numpy(array if plain else array.copy())
    except (TypeError, ValueError, RuntimeError) as error:
        raise KclError(f"the inputs are not an array of numbers: {error}") from None


def checked(inputs: Any, shape: Sequence[int]) -> Tensor:
    """Queries as a tensor, refused unless each has the shape the model knows and finite values."""
    queries = as_tensor(inputs)
    if tuple(queries.shape[1:]) != tuple(shape) or queries.ndim < 2:
        raise KclError(
            f"inputs have shape {tuple(queries.shape)}; expected {tuple(shape)} for each query, "
            "one after another along the first dimension"
        )
    if queries.dtype != torch.uint8 and not bool(torch.isfinite(queries.float()).all()):
        raise KclError("the inputs contain values that are not finite in single precision")
    return queries
