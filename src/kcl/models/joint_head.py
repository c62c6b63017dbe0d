"""One classifier over the classes of all tasks, for a network that learns: `methods.class_heads` on the union of all
coresets, at the present weights. Nothing but the coresets is kept, and nothing goes stale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kcl.core.randomness import numpy_generator
from kcl.core.shapes import Float
from kcl.functional.class_ridge import ClassRidge
from kcl.methods import class_heads, views
from kcl.methods.method import Memory
from kcl.models.all_classes import ClassAnswers
from kcl.models.calibration import fit_temperature, usual_temperature
from kcl.models.inference import Answerer
from kcl.models.lessons import LearnedTask

MOST_TO_CALIBRATE = 1000
"""Left-out samples that a temperature is fitted to."""


class JointAnswers(ClassAnswers):
    """Answers of scaled queries, whose copies vote. Equal labels of several tasks are one class; a head of its own, in
    which every task has its classes for itself, says which of these tasks the answer belongs to.
    """

    @torch.no_grad()
    def __init__(self, answerer: Answerer, tasks: Mapping[str, LearnedTask]) -> None:
        super().__init__(tasks, answerer.stack.device)
        self.answerer, self.settings = answerer, answerer.method.settings
        self._turns, self._mirrors = views.rotations(self.settings), views.mirrors(self.settings)
        lessons = [task.lesson for task in tasks.values()]
        self.tensors, ridge, memory = self._head(lessons, list(self.places.values()))
        self.temperature, self.tells_variance = 1.0, ridge is not None
        self.explaining: Tensor | None = None
        """What explains the variance of queries: known as far as coresets resemble them."""
        if ridge is not None:
            self.temperature = self._fitted_temperature(ridge, memory)
            shrunk = ridge.spectrum.values / (ridge.spectrum.values + ridge.strength)
            self.explaining = (ridge.spectrum.vectors * shrunk.sqrt()).float()
        self.apart = self.tensors
        if self.classes_are_shared:
            self.apart, _, _ = self._head(lessons, list(self.places_apart.values()))

    def _head(
        self, lessons: Sequence[int], places: Sequence[Sequence[int]]
    ) -> tuple[Memory, ClassRidge | None, Memory]:
        """The head's tensors, its ridge regression if it is one, and the coresets as it sees them."""
        answerer, method = self.answerer, self.answerer.method
        memory = method.show(method.united([answerer.as_seen(lesson) for lesson in lessons], places))
        rng = numpy_generator(answerer.stack.seeds[answerer.run], "classes of all tasks")
        head = method.class_head(answerer.model, memory, rng)
        return head.tensors(), head.solved.ridge, memory

    def _fitted_temperature(self, ridge: ClassRidge, memory: Memory) -> float:
        """The usual one times what fits the samples left out. Of a class with one sample, the others know nothing."""
        copies = self._turns * self._mirrors
        labels = memory["labels"][ridge.rows[: len(ridge.rows) // copies]] // self._turns
        votes = views.vote(ridge.left_out, self._turns, self._mirrors)
        several = (torch.bincount(labels)[labels] > 1).nonzero().flatten()[:: 1 + len(labels) // MOST_TO_CALIBRATE]
        usual = usual_temperature(ridge.error, len(memory["classes"]) // self._turns)
        return usual * fit_temperature(votes[several] / usual, labels[several])

    def responses(self, batch: Float[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        return self.answerer.method.answer(self.answerer.model, self.tensors, batch, of_all=True)

    def judged(
        self, batch: Float[Tensor, "n ..."]
    ) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n p"], Float[Tensor, " n"]]:
        x = self.answerer.plain_features(views.copies(batch, self._turns, self._mirrors))
        features = class_heads.features_of(self.settings, self.tensors, x)

        def votes(head: Memory) -> Float[Tensor, "n p"]:
            return views.vote(torch.addmm(head["shift"], features, head["weights"]), self._turns, self._mirrors)

        responses = votes(self.tensors)
        variance = responses.new_full((len(features),), torch.nan)
        if self.explaining is not None:
            explained = (features @ self.explaining).square().sum(-1)
            variance = (features.square().sum(-1) - explained).clamp_min(0.0)
        apart = responses if self.apart is self.tensors else votes(self.apart)
        return responses, apart, views.mean_over_copies(variance, self._turns * self._mirrors)
