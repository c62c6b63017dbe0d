"""Predictions for a named task, or for the task inferred from the kernels, with probabilities and uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from kcl.benchmarks.task import View
from kcl.core.settings import nearest
from kcl.core.shapes import Bool, Float, Int
from kcl.errors import KclError
from kcl.functional.noise import RunNoise
from kcl.methods import ridge_head, views
from kcl.methods.kcl import KernelContinualLearning, KernelModel
from kcl.methods.method import Memory
from kcl.methods.recipes import make_backbone
from kcl.methods.ridge_head import Head
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


def _residual(evidence: Evidence) -> Float[Tensor, " n"]:
    """−‖r − e_best‖², the negative squared distance of the ridge responses from the nearest one-hot target."""
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
"""Scores of how well a task fits a query; higher is better."""
DEFAULT_SCORE = "typicality"
NOTHING_LEARNED = "the model has not learned any task yet: learn a task first"


class Answers(NamedTuple):
    """The answers to n queries."""

    task: Int[Tensor, " n"]
    """The position of the task, in the order in which the tasks were learned."""
    label: Int[Tensor, " n"]
    """The position of the class among that task's classes; −1 where the model abstains."""
    confidence: Float[Tensor, " n"]
    """The probability of that class, given the task."""
    variance: Float[Tensor, " n"]
    """The task's predictive variance: near zero close to its coreset, near k(x, x) far from it."""
    task_margin: Float[Tensor, " n"]
    """Difference between the best and second-best task score; infinite if the task was named or is the only one."""

    @property
    def withheld(self) -> Bool[Tensor, " n"]:
        return self.label < 0


class KnownTask(NamedTuple):
    """What inference needs of a learned task."""

    memory: Memory
    view: View
    temperature: float = 1.0

    def as_seen(self) -> Memory:
        """The task's memory with its samples scaled for the network."""
        return self.memory | {"inputs": self.view.scale(self.memory["inputs"])}


class Answerer:
    """Predicts with a model. Its owner keeps `tasks` up to date and calls `weights_changed` after training.

    A task's head is solved when first needed and then cached, so that the cost of a prediction for a named task does
    not depend on the number of tasks.
    """

    def __init__(self, method: KernelContinualLearning, model: KernelModel, seed: int) -> None:
        self.method, self.model, self.seed = method, model, seed
        self.tasks: dict[int, KnownTask] = {}
        self._turns, self._mirrors = views.rotations(method.settings), views.mirrors(method.settings)
        self._copies = self._turns * self._mirrors
        self._batch = max(1, BATCH // self._copies)
        self.by_task = method.settings.batch_norm == "coreset"
        """Whether the features of a query depend on the task."""
        self._heads: dict[int, Head] = {}
        self._shared: Memory | None = None

    def weights_changed(self) -> None:
        """Discard all cached heads."""
        self._heads, self._shared = {}, None

    @torch.no_grad()
    def head(self, index: int) -> Head:
        """The task's head at the current weights. The draws of ω are the same as in every other evaluation."""
        if index not in self._heads:
            task = self.tasks[index]
            noise = RunNoise(task.memory["inputs"].device, self.seed, "test noise", index)
            memory = self.method.show(task.as_seen() | self._common())
            self._heads[index] = self.method.head(self.model, memory, noise)
        return self._heads[index]

    def _common(self) -> Memory:
        """What all heads share (`Method.in_common`)."""
        if self._shared is None:
            self._shared = self.method.in_common(self.model, (task.as_seen() for task in self.tasks.values()))
        return self._shared

    def install(self, heads: dict[int, Head]) -> None:
        """Use heads that were solved earlier at the current weights, such as those of a saved model."""
        self._heads = dict(heads)

    @torch.inference_mode()
    def features(self, inputs: Float[Tensor, "n ..."], index: int) -> Float[Tensor, "v d"]:
        """Kernel inputs of all copies of the queries (`methods.views`), the same for all tasks unless `by_task`."""
        batch = max(1, min(self._batch, LARGEST_BATCH // (self._copies * inputs[0].numel()))) if len(inputs) else 1
        parts = [self._features(part, index).unflatten(0, (self._copies, -1)) for part in inputs.split(batch)]
        return torch.cat(parts, dim=1).flatten(0, 1)

    def _features(self, inputs: Tensor, index: int) -> Tensor:
        moments = self.head(index).moments if self.by_task else None
        return self.method.features(self.model, views.copies(inputs, self._turns, self._mirrors), moments)

    @torch.inference_mode()
    def logits(self, inputs: Float[Tensor, "n ..."], index: int) -> Float[Tensor, "n c"]:
        """Scores of a task's classes for scaled inputs, without variances: the fast way."""
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
        """Evidence from the `features` of queries: copies vote, their variances are averaged."""
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
        """Task, class and confidence for scaled inputs.

        Without a task, the heads of all tasks are evaluated and each query goes to the task with the best `score`: for
        "variance" the lowest k(x, x) − k_xᵀ(K + λI)⁻¹k_x, for "typicality" the lowest relative to the variances of the
        task's own coreset. The model abstains where the confidence is below `abstain_below`.
        """
        if not abstain_below >= 0.0:
            raise KclError(f"abstain_below must be a probability, not {abstain_below}")
        if score not in TASK_SCORES:
            raise KclError(f"unknown score {score!r}; {nearest(score, list(TASK_SCORES))}")
        candidates = sorted(self.tasks) if index is None else [index]
        if not candidates:
            raise KclError(NOTHING_LEARNED)
        parts = [self._answer(part, candidates, score, index is None) for part in inputs.split(self._batch)]
        joined = Answers(*(torch.cat(column) for column in zip(*parts, strict=True)))
        return joined._replace(label=joined.label.masked_fill(joined.confidence < abstain_below, -1))

    def _answer(self, inputs: Tensor, candidates: Sequence[int], score: str, inferred: bool) -> Answers:
        features = self._features(inputs, candidates[0])
        best = Answers(*([torch.empty(0)] * 5))
        first = second = inputs.new_full((len(inputs),), -torch.inf, dtype=features.dtype)
        for position, index in enumerate(candidates):
            features = self._features(inputs, index) if self.by_task and position else features
            evidence = self.evidence(features, index)
            confidence, label = evidence.logits.softmax(-1).max(-1)
            fit = TASK_SCORES[score](evidence)
            answers = Answers(torch.full_like(label, position), label, confidence, evidence.variance, fit)
            better = fit > first
            best = answers if position == 0 else Answers(
                *(torch.where(better, new, old) for new, old in zip(answers, best, strict=True))
            )  # fmt: skip
            second = torch.where(better, first, torch.maximum(second, fit))
            first = torch.where(better, fit, first)
        if inferred:
            return best._replace(task_margin=first - second)
        task = torch.full_like(best.label, sorted(self.tasks).index(candidates[0]))
        return best._replace(task=task, task_margin=torch.full_like(first, torch.inf))


def as_tensor(inputs: Any) -> Tensor:
    """A tensor from a tensor, an array, nested lists or a pandas table."""
    try:
        if isinstance(inputs, Tensor):
            return inputs
        array = np.asarray(inputs)
        shareable = array.flags.writeable and all(stride >= 0 for stride in array.strides)
        return torch.from_numpy(array if shareable else array.copy())
    except (TypeError, ValueError, RuntimeError) as error:
        raise KclError(f"the inputs are not an array of numbers: {error}") from None


def checked(inputs: Any, shape: Sequence[int]) -> Tensor:
    """Queries as a tensor. Raises unless each has the shape that the model expects and finite values."""
    queries = as_tensor(inputs)
    if tuple(queries.shape[1:]) != tuple(shape) or queries.ndim < 2:
        raise KclError(
            f"inputs have shape {tuple(queries.shape)}; expected {tuple(shape)} for each query, with the queries along "
            "the first dimension"
        )
    if queries.dtype != torch.uint8 and not bool(torch.isfinite(queries.float()).all()):
        raise KclError("the inputs contain values that are not finite in single precision: remove or replace them")
    return queries


def start_run(
    method: KernelContinualLearning,
    input_shape: Sequence[int],
    module: nn.Module | None,
    seed: int,
    device: str | torch.device,
) -> tuple[RunStack, Answerer]:
    """One untrained run, and an answerer for its model. `module`: the user's own backbone, if any."""
    backbone = partial(make_backbone, input_shape, method.settings, module)
    stack = RunStack([method], [backbone], [seed], device, precision="float32", plain=True)
    model = stack.model_at_test(0)
    assert isinstance(model, KernelModel)  # noqa: S101 - what the method builds
    return stack, Answerer(method, model, seed)
