"""Answers among the classes of one task or of all tasks together: the class with the highest score."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property

import torch
from torch import Tensor

from kcl.core.shapes import Float
from kcl.models.inference import Answers
from kcl.models.lessons import LearnedTask, places_among_all
from kcl.models.streaming_ridge import StreamingRidge
from kcl.models.unknowns import SCORES, KnownScores


class ClassAnswers(ABC):
    """A classifier among classes, each of which may belong to several tasks; what does not depend on queries is made
    once. The answer belongs to the task in which the class has the highest score.
    """

    temperature: float
    """By which responses are divided."""
    tells_variance = True
    """Whether the classifier has one, without which there is no answer."""

    def __init__(self, tasks: Mapping[str, LearnedTask], device: torch.device, task: str | None = None) -> None:
        """`task`: the only one whose classes compete; by default those of all tasks do."""
        self._task_named = task is not None
        self.places = places_among_all(tasks) if task is None else {task: list(range(len(tasks[task].labels)))}
        """For every task, the place of each of its classes."""
        bounds = itertools.pairwise([0, *itertools.accumulate(map(len, self.places.values()))])
        self.places_apart = {name: range(*bound) for name, bound in zip(self.places, bounds, strict=True)}
        """The same, as if no class belonged to several tasks."""
        owners = [
            (tasks[name].lesson, position, place)
            for name, of_task in self.places.items()
            for position, place in enumerate(of_task)
        ]
        self.classes_are_shared = len({place for *_, place in owners}) < len(owners)
        self._lessons, self._positions, self._labels = torch.tensor(owners, device=device).unbind(1)

    @abstractmethod
    def responses(self, batch: Float[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        """One for each class, in single precision."""

    @abstractmethod
    def judged(
        self, batch: Float[Tensor, "n ..."]
    ) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n p"], Float[Tensor, " n"]]:
        """Responses, the same for each class of each task, and the variance."""

    def known(self, score: str, responses: Float[Tensor, "n c"], variance: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """How well queries are known, by a score of `unknowns.SCORES`."""
        raise NotImplementedError

    @torch.inference_mode()
    def logits(self, batches: Iterable[Float[Tensor, "n ..."]]) -> Float[Tensor, "n c"]:
        """Calibrated scores."""
        return torch.cat([self.responses(batch) / self.temperature for batch in batches])

    @torch.inference_mode()
    def answer(
        self,
        batches: Iterable[Float[Tensor, "n ..."]],
        abstain_below: float = 0.0,
        known_scores: KnownScores | None = None,
    ) -> Answers:
        """With `known_scores`, no answer is given to queries that are less known."""
        parts = [self._answer(batch, abstain_below, known_scores) for batch in batches]
        return Answers(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def _answer(self, batch: Float[Tensor, "n ..."], abstain_below: float, known_scores: KnownScores | None) -> Answers:
        responses, apart, variance = self.judged(batch)
        probabilities = (responses / self.temperature).softmax(-1).float()
        best = probabilities.topk(min(2, probabilities.shape[1]), dim=-1)
        confidence, label = best.values[:, 0], best.indices[:, 0]
        alone = self._task_named or probabilities.shape[1] == 1
        margin = torch.full_like(confidence, torch.inf) if alone else confidence - best.values[:, 1]
        owner = apart.masked_fill(self._labels != label[:, None], -torch.inf).argmax(-1)
        answered, known = confidence >= abstain_below, torch.full_like(confidence, torch.nan)
        if self.tells_variance:
            answered = answered & variance.float().isfinite()  # false where one is not a number
        if known_scores is not None:
            scores = self.known(known_scores.score, responses, variance)
            answered, known = answered & known_scores.accepts(scores), known_scores.share_below(scores).float()
        position = torch.where(answered, self._positions[owner], -1)
        return Answers(self._lessons[owner], position, confidence, variance.float(), margin, known)


class SumAnswers(ClassAnswers):
    """From solved sums: the classifier of a task, or of all classes if `task` is None.

    Equal labels of several tasks are one class, whose score is the sum of the scores of these tasks' classes, because
    ridge regression is linear in its targets.
    """

    def __init__(self, ridge: StreamingRidge, tasks: Mapping[str, LearnedTask], task: str | None = None) -> None:
        self.ridge = ridge
        super().__init__(tasks, next(iter(ridge.units.values())).cross.device, task)
        self.solution = ridge.solution(self.places, task)
        self.temperature = self.solution.temperature

    def responses(self, batch: Float[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        return self.ridge.features(batch).float() @ self._single

    @cached_property
    def _single(self) -> Float[Tensor, "D c"]:
        """In single precision: one query among many classes takes as long as it takes to read these weights."""
        return self.solution.weights.float()

    @cached_property
    def _apart(self) -> Float[Tensor, "D p"]:
        """One column for each class of each task."""
        if not self.classes_are_shared:
            return self.solution.weights
        return self.ridge.weights_apart(self.solution, self.places, self.places_apart)

    def judged(
        self, batch: Float[Tensor, "n ..."]
    ) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n p"], Float[Tensor, " n"]]:
        features = self.ridge.features(batch)
        return features @ self.solution.weights, features @ self._apart, self.solution.variance(features)

    def known(self, score: str, responses: Float[Tensor, "n c"], variance: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return SCORES[score](self.solution, responses, variance)

    @torch.inference_mode()
    def known_scores(self, batches: Iterable[Float[Tensor, "n ..."]], score: str) -> Float[Tensor, " n"]:
        """The same for queries."""
        judged = (self.judged(batch) for batch in batches)
        return torch.cat([self.known(score, responses, variance) for responses, _, variance in judged])
