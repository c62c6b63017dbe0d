"""Frozen features with an exact classifier: what a `ContinualModel` asks of its heads, with sums behind it.

No passes, no learning rate, nothing that could diverge: a lesson adds its statistics, and the answers are those of
ridge regression on everything learned so far.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kcl.benchmarks.task import View
from kcl.core.randomness import numpy_generator
from kcl.core.settings import CheckedSettings, setting
from kcl.core.shapes import Bool, Float
from kcl.errors import KclError, KclWarning
from kcl.methods.feature_maps import FEATURE_MAPS, median_distance
from kcl.models import unlearning
from kcl.models.all_classes import SumAnswers
from kcl.models.features import Features
from kcl.models.inference import JOINT, Answers
from kcl.models.inputs import Label
from kcl.models.lessons import LearnedTask, Samples
from kcl.models.streaming_ridge import HELD_OUT, KEPT, RULES, StreamingRidge, Units
from kcl.models.unknowns import KnownScores, checked_score
from kcl.models.unlearning import Receipt
from kcl.training.step_progress import OnStep

BATCH = 2048
ONE_IN = 10
"""Samples of which one is held out by the rule `HELD_OUT`."""
FEW_INPUTS, FEW_BASES, MANY_BASES = 128, 1024, 2048
"""Random features by default: fewer for up to `FEW_INPUTS` columns, where fewer approximate the kernel as well."""


@dataclass(frozen=True)
class StreamingSettings(CheckedSettings):
    """Settings of a streaming head. Zero means: chosen from the data, as the help says."""

    features: str = setting("rbf", "features ψ of the kernel", choices=FEATURE_MAPS)
    bases: int = setting(
        0, f"random features; 0: {FEW_BASES}, or {MANY_BASES} from {FEW_INPUTS + 1} columns on", 0, 65_536
    )
    width: float = setting(0.0, "width of the kernel; 0: the median distance of the first samples", 0.0)
    unit_length: bool = setting(False, "divide every sample by its length first")
    keep: str = setting("task", "what can be forgotten without its samples", choices={name: name for name in KEPT})
    strength_rule: str = setting("evidence", "how λ is chosen", choices={name: name for name in RULES})
    ridge_strength: float = setting(0.0, "λ relative to the mean of ‖ψ‖²; 0: chosen anew after every lesson", 0.0)
    balanced: bool = setting(False, "classes weigh the same, however many samples they have (needs keep=class)")


class StreamingHeads:
    """The heads of a model whose features do not change."""

    def __init__(
        self,
        settings: StreamingSettings,
        features: Features,
        view: View,
        device: str | torch.device,
        numbers: bool = False,
    ) -> None:
        """`numbers`: of `StreamingRidge`."""
        self.settings, self.view, self.device = settings, view, torch.device(device)
        self.tasks: dict[str, LearnedTask] = {}
        self.ridge = StreamingRidge(features.to(self.device), settings, numbers)
        self.known: dict[str | None, KnownScores] = {}
        """By task, or None for all classes together: what decides which queries are not answered."""

    def blank(self) -> StreamingHeads:
        """Heads that have learned nothing, with the same features and scaling."""
        return StreamingHeads(self.settings, self.ridge.features, self.view, self.device, self.ridge.numbers)

    def describe(self) -> str:
        features = self.ridge.features
        return (
            f"exact kernel ridge regression on {features.bases} {features.kind} features of width {features.width:.3g}"
        )

    # Learning

    def learn(
        self,
        samples: Samples,
        task: LearnedTask,
        rng: np.random.Generator | None = None,  # noqa: ARG002
        on_step: OnStep | None = None,  # noqa: ARG002
    ) -> dict[str, Any]:
        """Learn more of a task, or a new one. `task`: as it is afterwards."""
        name, x, y, weights = samples
        for rows in torch.arange(len(x)).split(BATCH):
            part = Samples(name, x[rows], y[rows], None if weights is None else weights[rows])
            self.ridge.learn(self._statistics(part, task))
        touched = {key: replace(scores, stale=True) for key, scores in self.known.items() if key in (None, name)}
        self.known, self.tasks[name] = self.known | touched, task
        return {}

    def _statistics(self, samples: Samples, task: LearnedTask) -> Units:
        name, x, y, weights = samples
        weights = None if weights is None else weights.to(self.device)
        return self.ridge.parts(name, self.features(x), y.to(self.device), len(task.labels), weights, self.held_out(x))

    def features(self, x: Tensor) -> Float[Tensor, "n D"]:
        """ψ of samples as stored."""
        return self.ridge.features(self.view.scale(x.to(self.device)))

    def held_out(self, x: Tensor) -> Bool[Tensor, " n"] | None:
        """Which samples choose λ: by their content, so that neither order nor portions matter and a sample that is
        forgotten is found again.
        """
        if self.settings.strength_rule != HELD_OUT:
            return None
        digests = (hashlib.blake2b(row.tobytes(), digest_size=2).digest() for row in x.cpu().contiguous().numpy())
        return torch.tensor([digest[0] * 256 + digest[1] < 65536 // ONE_IN for digest in digests], device=self.device)

    def forget(self, task: str, classes: Sequence[Label] | None, samples: Samples | None) -> Receipt:
        """Forget a task, some of its classes or some of its samples."""
        tasks, what = self.tasks, f"task {task!r}"
        if samples is not None:
            forgotten = self._statistics(samples, tasks[task])
            remaining = unlearning.without_samples(self.ridge, tasks, task, samples.targets)
            what = f"{len(samples.targets)} samples of {what}"
        else:
            forgotten, remaining = unlearning.of_classes(self.ridge, tasks, task, classes)
            if classes is not None:
                what = f"classes {', '.join(map(str, classes))} of {what}"
        receipt = unlearning.carry_out(self.ridge, tasks, forgotten, remaining, what)
        self.tasks = remaining
        # Scores by a model that knew what is forgotten would tell of it.
        self.known = {key: scores for key, scores in self.known.items() if key not in (None, task)}
        return receipt

    # Answering

    def logits(self, queries: Tensor, task: str | None) -> Tensor:
        """Calibrated scores of a task's classes; without a task, those of all classes, each once."""
        return self.classifier(task).logits(queries.split(BATCH))

    def answer(self, queries: Tensor, task: str | None, score: str = JOINT, abstain_below: float = 0.0) -> Answers:
        """Without a task, all classes compete."""
        if score != JOINT:
            raise KclError("this model compares all classes at once: it has no scores to infer a task by")
        known = self.known_for(task)
        if known is not None and known.stale:
            warnings.warn(
                "the model has learned more since reject_unknown was called: call it again, or the share of known "
                "queries that it rejects may differ",
                KclWarning,
                stacklevel=3,
            )
        return self.classifier(task).answer(queries.split(BATCH), abstain_below, known)

    # Unknown queries

    def known_scores(self, queries: Tensor, task: str | None, score: str) -> Float[Tensor, " n"]:
        """How well queries are known, by a score of `unknowns.SCORES`."""
        return self.classifier(task).known_scores(queries.split(BATCH), checked_score(score))

    def known_for(self, task: str | None) -> KnownScores | None:
        """What decides for a task, or for all classes, which are the same if there is only one task."""
        keys = (task, None, *self.tasks) if len(self.tasks) == 1 else (task,)
        return next((self.known[key] for key in keys if key in self.known), None)

    def classifier(self, task: str | None = None) -> SumAnswers:
        """The classifier of a task, or of all classes; made when it is first needed after a lesson."""
        classifiers = self.ridge.classifiers
        if task not in classifiers:
            classifiers[task] = SumAnswers(self.ridge, self.tasks, task)
        return classifiers[task]

    def fork(self) -> StreamingHeads:
        """Heads of their own for a lesson, which leaves these as they are. Sums are replaced, never changed."""
        heads = copy.copy(self)
        heads.ridge, heads.tasks = copy.copy(self.ridge), dict(self.tasks)
        return heads


def chosen_features(
    settings: StreamingSettings, x: Float[Tensor, "n ..."], seed: int, given: Mapping[str, Tensor]
) -> Features:
    """What the settings leave open is chosen from the first samples, scaled as the model sees them."""
    kind, inputs = FEATURE_MAPS[settings.features], x.shape[1:].numel()
    bases = settings.bases or (FEW_BASES if inputs <= FEW_INPUTS else MANY_BASES)
    features = Features(settings.features, inputs, bases, 1.0, settings.unit_length, seed)
    width = settings.width
    if not width:  # the median distance as the kernel measures it: the Laplacian one adds up differences
        rng = numpy_generator(seed, "kernel width")
        width = median_distance(features.scaled(x), rng, kind.norm) if kind.local else 1.0
    return replace(features, width=width).filled(given)
