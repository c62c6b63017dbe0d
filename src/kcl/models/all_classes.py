"""Answers from solved sums: the class with the highest score, of one task or of all tasks together."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from functools import cached_property

import torch
from torch import Tensor

from kcl.core.shapes import Float
from kcl.models.inference import Answers
from kcl.models.lessons import LearnedTask, places_among_all
from kcl.models.streaming_ridge import Solution, StreamingRidge
from kcl.models.unknowns import SCORES, KnownScores


class ClassAnswers:
    """The classifier of a task, or of all classes if `task` is None; what does not depend on queries is made once.

    Over all classes, equal labels of several tasks are one class. Its score is the sum of the scores of these tasks'
    classes, because ridge regression is linear in its targets; the answer belongs to the task with the highest of them.
    """

    def __init__(self, ridge: StreamingRidge, tasks: Mapping[str, LearnedTask], task: str | None = None) -> None:
        self.ridge, self.named = ridge, task is not None
        places = places_among_all(tasks) if task is None else {task: list(range(len(tasks[task].labels)))}
        self.solution: Solution = ridge.solution(places, task)
        owners = [(tasks[name].lesson, position, place) for name, of_task in places.items()
                  for position, place in enumerate(of_task)]  # fmt: skip
        device = self.solution.weights.device
        self._lessons, self._positions, self._labels = torch.tensor(owners, device=device).unbind(1)
        self._apart = self.solution.weights
        """One column for each class of each task."""
        if len(owners) > self._apart.shape[1]:
            counts = [0, *itertools.accumulate(map(len, places.values()))]
            apart = {
                name: range(first, last) for name, (first, last) in zip(places, itertools.pairwise(counts), strict=True)
            }
            self._apart = ridge.weights_apart(self.solution, places, apart)

    @torch.inference_mode()
    def logits(self, batches: Iterable[Float[Tensor, "n ..."]]) -> Float[Tensor, "n c"]:
        """Calibrated scores of inputs of the feature map."""
        return torch.cat([self.ridge.features(batch).float() @ self._calibrated for batch in batches])

    @cached_property
    def _calibrated(self) -> Float[Tensor, "D c"]:
        """In single precision: one query among many classes takes as long as it takes to read these weights."""
        return (self.solution.weights / self.solution.temperature).float()

    @torch.inference_mode()
    def known_scores(self, batches: Iterable[Float[Tensor, "n ..."]], score: str) -> Float[Tensor, " n"]:
        """How well queries are known, by a score of `unknowns.SCORES`."""
        parts = [self.ridge.features(batch) for batch in batches]
        solution = self.solution
        return torch.cat([SCORES[score](solution, x @ solution.weights, solution.variance(x)) for x in parts])

    @torch.inference_mode()
    def answer(
        self,
        batches: Iterable[Float[Tensor, "n ..."]],
        abstain_below: float = 0.0,
        known_scores: KnownScores | None = None,
    ) -> Answers:
        """With `known_scores`, no answer is given to queries that are less known."""
        parts = [self._answer(self.ridge.features(batch), abstain_below, known_scores) for batch in batches]
        return Answers(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def _answer(
        self, features: Float[Tensor, "n D"], abstain_below: float, known_scores: KnownScores | None
    ) -> Answers:
        solution = self.solution
        responses, variance = features @ solution.weights, solution.variance(features)
        probabilities = (responses / solution.temperature).softmax(-1).float()
        best = probabilities.topk(min(2, probabilities.shape[1]), dim=-1)
        confidence, label = best.values[:, 0], best.indices[:, 0]
        alone = self.named or probabilities.shape[1] == 1
        margin = torch.full_like(confidence, torch.inf) if alone else confidence - best.values[:, 1]
        owner = (features @ self._apart).masked_fill(self._labels != label[:, None], -torch.inf).argmax(-1)
        answered = (confidence >= abstain_below) & variance.float().isfinite()  # false where one is not a number
        known = torch.full_like(confidence, torch.nan)
        if known_scores is not None:
            scores = SCORES[known_scores.score](solution, responses, variance)
            answered, known = answered & known_scores.accepts(scores), known_scores.share_below(scores).float()
        position = torch.where(answered, self._positions[owner], -1)
        return Answers(self._lessons[owner], position, confidence, variance.float(), margin, known)
