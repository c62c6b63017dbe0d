"""ER-ACE: experience replay in which a batch does not push down the classes learned before it."""

from __future__ import annotations

import torch
from torch import Tensor

from kcl.core.shapes import Float, Int
from kcl.functional.noise import Noise
from kcl.methods.episodic import EpisodicSettings
from kcl.methods.method import Batch, Memory
from kcl.methods.replay import ReservoirReplay
from kcl.methods.sgd import LinearModel, among, sliced_cross_entropy


class AsymmetricReplay(ReservoirReplay):
    """Caccia, Aljundi, Asadi, Tuytelaars, Pineau and Belilovsky, "New insights on reducing abrupt representation change
    in online continual learning", 2022: the asymmetric cross-entropy

        L_ce(batch, C_batch) + L_ce(replayed, C_old ∪ C_curr).

    A sample of the batch is classified among the classes that the batch contains, a replayed one among all classes seen
    so far. (The authors' code also leaves classes that were never seen in both.) Reservoir and replay are those of
    ER-Reservoir; as there, both parts share one pass. In the first step of the stream nothing is replayed.
    """

    settings_type = EpisodicSettings
    name = "er-ace"
    summary = "ER-ACE: replay with a cross-entropy that spares the classes learned before the batch"

    def beside(
        self, method_state: Memory, places: Int[Tensor, " m"], weights: Float[Tensor, " m"], classes: Int[Tensor, " w"]
    ) -> Memory:
        seen = method_state["allowed"].any(0) | among(classes, self.class_count)
        return {"seen": seen}

    def losses(self, model: LinearModel, memory: Memory, batch: Batch, noise: Noise) -> tuple[Float[Tensor, ""], ...]:
        inputs, labels, replayed = batch
        assert replayed is not None  # noqa: S101 - every step is planned
        scores = model.output(model.backbone(torch.cat([inputs, replayed.inputs]), noise))
        present, past = scores.split([len(inputs), len(replayed.inputs)])
        classes = memory["classes"][labels]
        new = sliced_cross_entropy(present, classes, among(classes, self.outputs).expand(len(inputs), -1)).mean()
        old = sliced_cross_entropy(past, replayed.classes, replayed.beside["seen"].expand(len(past), -1))
        return (new + (replayed.weights * old).sum() / replayed.weights.sum().clamp_min(1.0),)
