"""DER++: replayed samples keep the logits that they had, and their labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kcl.benchmarks.task import Task
from kcl.core.settings import setting
from kcl.core.shapes import Float, Int
from kcl.functional.noise import Noise
from kcl.methods import views
from kcl.methods.episodic import SLOTTED, EpisodicSettings
from kcl.methods.method import Batch, Memory, ReplayPlan
from kcl.methods.replay import ReservoirReplay
from kcl.methods.sgd import LinearModel

PASS = 512
"""Samples whose logits are computed together."""


@dataclass(frozen=True)
class DarkSettings(EpisodicSettings):
    logits_weight: float = setting(0.1, "α of DER++: weight of the replayed logits", 0.0, since=5)
    labels_weight: float = setting(0.5, "β of DER++: weight of the replayed labels", 0.0, since=5)


class DarkReplay(ReservoirReplay):
    """Buzzega, Boschini, Porrello, Abati and Calderara, "Dark experience for general continual learning: a strong,
    simple baseline", 2020, Eq. 6:

        L_ce(batch) + α ‖z' − h(x')‖² + β L_ce(h(x''), y'')

    over all classes of the stream, with (x', z') and (x'', y'') two independent draws of `recalled_per_step` samples
    from the reservoir. As in the authors' code the square is a mean over classes too.

    The paper stores the logits z of a sample when it enters the reservoir. Here they are stored when its task ends,
    because a captured step only reads the memory: within its own task a sample is replayed with its label alone. With
    rotation labels the logits of every copy are stored. All parts share one pass, as in ER-Reservoir.
    """

    settings: DarkSettings
    settings_type = DarkSettings
    name = "der++"
    summary = "DER++: replayed samples keep their logits and labels"
    keeps = "memory_per_class samples per class and task, from everything seen, and their logits"
    slotted = (*SLOTTED, "logits")
    draws = 2

    def initial_state(self, model: LinearModel, task: Task) -> Memory:
        width = views.rotations(self.settings) * self.outputs
        return super().initial_state(model, task) | {"logits": torch.zeros(self.slots, width)}

    def beside(
        self, method_state: Memory, places: Int[Tensor, " m"], weights: Float[Tensor, " m"], classes: Int[Tensor, " w"]
    ) -> Memory:
        slots = len(method_state["logits"])
        logits = method_state["logits"].index_select(0, places.clamp(0, slots - 1))
        return {"logits": logits, "stored": weights * (places < slots)}

    def losses(self, model: LinearModel, memory: Memory, batch: Batch, noise: Noise) -> tuple[Float[Tensor, ""], ...]:
        inputs, labels, replayed = batch
        assert replayed is not None  # noqa: S101 - every step is planned
        scores = model.output(model.backbone(torch.cat([inputs, replayed.inputs]), noise))
        present, past = scores.split([len(inputs), len(replayed.inputs)])
        first = self._first_draw(len(past), past.device)
        distances = (past - replayed.beside["logits"]).square().mean(1)
        entropies = F.cross_entropy(past, replayed.classes, reduction="none")
        return (
            F.cross_entropy(present, memory["classes"][labels])
            + self.settings.logits_weight * _mean(distances, replayed.beside["stored"] * first)
            + self.settings.labels_weight * _mean(entropies, replayed.weights * ~first),
        )

    def _first_draw(self, count: int, device: torch.device) -> Tensor:
        """Which replayed samples belong to the first of the two draws; copies lie a block of samples apart."""
        samples = count // views.rotations(self.settings)
        return (torch.arange(samples, device=device) < samples // 2).repeat(views.rotations(self.settings))

    def consolidate(
        self, model: LinearModel, method_state: Memory, task: Task, plan: ReplayPlan | None, rng: np.random.Generator
    ) -> Memory:
        """Fill the slots, and store the logits of the samples of this task."""
        assert plan is not None  # noqa: S101 - these methods plan every task
        before, places = method_state["logits"], torch.from_numpy(plan.kept).to(method_state["logits"].device)
        after = super().consolidate(model, method_state, task, plan, rng)
        logits = before.index_select(0, places.clamp(0, self.slots - 1))
        rows = (places >= self.slots).nonzero().flatten()
        for part in rows.split(PASS):
            logits[part] = self._logits(model, task.view.scale(after["inputs"][part]))
        return after | {"logits": logits}

    def _logits(self, model: LinearModel, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n k"]:
        """The logits of all copies of samples, side by side."""
        turns = views.rotations(self.settings)
        scores = model.output(model.backbone(views.copies(inputs, turns)))
        return scores.unflatten(0, (turns, -1)).transpose(0, 1).flatten(1)


def _mean(values: Float[Tensor, " m"], weights: Float[Tensor, " m"]) -> Float[Tensor, ""]:
    """The mean of weighted values; zero if nothing weighs."""
    return (weights * values).sum() / weights.sum().clamp_min(1.0)
