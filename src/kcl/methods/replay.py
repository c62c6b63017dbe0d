"""ER-Reservoir: samples from a reservoir of everything seen so far are added to every batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from kcl.benchmarks.task import Task
from kcl.core.settings import Settings
from kcl.core.shapes import Float
from kcl.functional.noise import Noise
from kcl.methods.episodic import EpisodicMethod, ReplaySettings, random_subsets
from kcl.methods.method import Batch, Memory, Orders, ReplayPlan
from kcl.methods.sgd import LinearModel, among, sliced_cross_entropy


class ReservoirReplay(EpisodicMethod):
    """Chaudhry et al., "On tiny episodic memories in continual learning", 2019: experience replay with reservoir
    sampling (Vitter, "Random sampling with a reservoir", 1985, algorithm R).

    The reservoir has `memory_per_class` slots for every class of every task. Sample number i of the stream, from 0,
    takes slot i while slots are free. Later, j is drawn uniformly from 0 … i: the sample takes slot j if there is one,
    and is skipped otherwise. Thus every sample seen so far is in the reservoir with the same probability. (The code
    behind the published numbers draws j from 0 … i − 1, which slightly favours later samples.) Samples are offered
    once, in the first epoch, after the step that learned from them.

    A step minimises the mean cross-entropy over its batch and `recalled_per_step` samples of the reservoir, drawn
    without repetition, or all if there are fewer; in the first step of the stream there are none. Batch and replayed
    samples share one pass, as in that code: BatchNorm's statistics are over both.
    """

    settings_type: ClassVar[type[Settings]] = ReplaySettings
    name = "er-reservoir"
    summary = "experience replay: samples from a reservoir of everything seen are added to every batch"
    keeps = "memory_per_class samples per class and task, from everything seen"

    def plan(
        self, method_state: Memory, task: Task, orders: Orders, sizes: Sequence[int], rng: np.random.Generator
    ) -> ReplayPlan:
        self.check_stored(method_state, task)
        slots, seen, offered = self.slots, int(method_state["seen"]), orders[0]
        targets = reservoir_slots(slots, seen, len(offered), rng)
        ends = np.cumsum(sizes)
        before = np.concatenate([ends - sizes, np.full((len(orders) - 1) * len(sizes), len(offered))])
        held = np.minimum(seen + before, slots)
        drawn = [random_subsets(held, min(self.settings.recalled_per_step, slots), rng) for _ in range(self.draws)]
        chosen, weights = (np.concatenate(parts, axis=1) for parts in zip(*drawn, strict=True))
        places, holder = np.empty_like(chosen), np.arange(slots)
        for step, start in enumerate(before):
            places[step] = (
                holder[chosen[step]] if held[step] else slots + np.resize(offered[: sizes[0]], chosen.shape[1])
            )
            if step < len(sizes):
                end = ends[step]
                taken = np.flatnonzero(targets[start:end] < slots) + start
                holder[targets[taken]] = slots + offered[taken]  # the later of two samples for one slot stays
        holder[min(seen + len(offered), slots) :] = -1
        return ReplayPlan(places, weights, holder)

    def losses(self, model: LinearModel, memory: Memory, batch: Batch, noise: Noise) -> tuple[Float[Tensor, ""], ...]:
        inputs, labels, replayed = batch
        assert replayed is not None  # noqa: S101 - every step is planned
        classes = memory["classes"]
        allowed = among(classes, self.outputs).expand(len(inputs), -1)
        scores = model.output(model.backbone(torch.cat([inputs, replayed.inputs]), noise))
        losses = sliced_cross_entropy(
            scores,
            torch.cat([classes[labels], replayed.classes]),
            self.allowed(torch.cat([allowed, replayed.allowed])),
        )
        weights = torch.cat([losses.new_ones(len(inputs)), replayed.weights])
        return ((weights * losses).sum() / weights.sum(),)


def reservoir_slots(slots: int, seen: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """The slots that algorithm R gives to the next `count` samples after `seen`; numbers ≥ `slots` mean none."""
    number = seen + np.arange(count)
    return np.where(number < slots, number, rng.integers(0, number + 1))
