"""Answers from solved sums: the class with the highest score, of one task or of all tasks together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from kcl.core.shapes import Float
from kcl.models.inference import Answers
from kcl.models.lessons import LearnedTask, places_among_all
from kcl.models.streaming_ridge import Solution, StreamingRidge


class ClassAnswers:
    """The classifier of a task, or of all classes if `task` is None; what does not depend on queries is made once.

    Over all classes, the answer belongs to the last learned task that has the class.
    """

    def __init__(self, ridge: StreamingRidge, tasks: Mapping[str, LearnedTask], task: str | None = None) -> None:
        self.ridge, self.named = ridge, task is not None
        places = places_among_all(tasks) if task is None else {task: list(range(len(tasks[task].labels)))}
        self.solution: Solution = ridge.solution(places, task)
        owner = {
            place: (tasks[name].lesson, position)
            for name, several in places.items()
            for position, place in enumerate(several)
        }
        pairs = torch.tensor([owner[place] for place in range(len(owner))], device=self.solution.weights.device)
        self._lessons, self._positions = pairs.unbind(1)

    @torch.inference_mode()
    def logits(self, batches: Iterable[Float[Tensor, "n ..."]]) -> Float[Tensor, "n c"]:
        """Calibrated scores of inputs of the feature map."""
        scores = [self.ridge.features(batch) @ self.solution.weights for batch in batches]
        return torch.cat(scores).float() / self.solution.temperature

    @torch.inference_mode()
    def answer(self, batches: Iterable[Float[Tensor, "n ..."]], abstain_below: float = 0.0) -> Answers:
        parts = [self._answer(self.ridge.features(batch), abstain_below) for batch in batches]
        return Answers(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def _answer(self, features: Float[Tensor, "n D"], abstain_below: float) -> Answers:
        probabilities = (features @ self.solution.weights / self.solution.temperature).softmax(-1).float()
        best = probabilities.topk(min(2, probabilities.shape[1]), dim=-1)
        confidence, label = best.values[:, 0], best.indices[:, 0]
        alone = self.named or probabilities.shape[1] == 1
        margin = torch.full_like(confidence, torch.inf) if alone else confidence - best.values[:, 1]
        position = torch.where(confidence >= abstain_below, self._positions[label], -1)  # -1 also where not a number
        return Answers(self._lessons[label], position, confidence, self.solution.variance(features).float(), margin)
