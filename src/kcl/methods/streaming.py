"""Exact ridge regression on frozen features of the inputs: a task is learned by summing it up, without any training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kcl.benchmarks.task import Task
from kcl.core.randomness import numpy_generator
from kcl.core.settings import BACKBONES, Settings, setting
from kcl.core.shapes import Float
from kcl.errors import KclError
from kcl.functional import primal, statistics
from kcl.functional.kernels import unit_length
from kcl.functional.noise import Noise
from kcl.methods import views
from kcl.methods.feature_maps import FOR_MANY_RUNS
from kcl.methods.method import Batch, Learnable, Memory, Method, Places
from kcl.nets.backbone import Backbone

BATCH = 2048


@dataclass(frozen=True)
class StreamingRidgeSettings(Settings):
    backbone: str = setting(
        "identity", "network that turns inputs into features, untrained", choices=BACKBONES, since=2
    )
    features: str = setting("rbf", "features ψ of the kernel", choices=FOR_MANY_RUNS, since=4)
    bases: int = setting(1024, "random features D", 1, 65_536)
    kernel_width: float = setting(1.0, "width of the kernel, for samples of unit length", above=0.0, since=4)
    strength_rule: str = setting(
        "evidence", "how λ is chosen", choices={name: name for name in primal.STRENGTH_RULES}, since=4
    )

    @property
    def random_features(self) -> int:
        return self.bases


class FrozenModel(nn.Module):
    """The untrained backbone and random features ψ of what it gives, at unit length. Nothing of it is trained."""

    def __init__(self, backbone: Backbone, settings: StreamingRidgeSettings) -> None:
        super().__init__()
        self.backbone, self.map = backbone.requires_grad_(False), FOR_MANY_RUNS[settings.features]
        self.width = nn.Parameter(torch.tensor(settings.kernel_width), requires_grad=False)
        rng = numpy_generator(int(torch.randint(2**62, ())), "features")  # PyTorch's generator is seeded for the run
        drawn = self.map.draw(backbone.features, settings.bases, rng)
        self.drawn = list(drawn)
        for name, tensor in drawn.items():
            self.register_buffer(name, tensor)

    def forward(self, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n D"]:
        """ψ, in double precision."""
        x = unit_length(self.backbone(inputs).double()) / self.width
        return self.map.apply(x, {name: getattr(self, name) for name in self.drawn})


class StreamingRidge(Method):
    """The streaming head (`models.streaming_ridge`) as a method: the sums G and C of each task, and the solution
    W = (G + λI)⁻¹C, which answers. No samples are left for the engine to take a step with.
    """

    settings: StreamingRidgeSettings
    settings_type = StreamingRidgeSettings
    name = "streaming-ridge"
    summary = "exact kernel ridge regression on frozen random features, from sums: no training, nothing replayed"
    keeps = "the sums G and C of each task's features, and the solution"
    answers_unseen = False
    trains = False

    def __init__(self, settings: StreamingRidgeSettings, class_count: int, places: int | None = None) -> None:
        super().__init__(settings, class_count, places)
        if asked := views.asked(settings):
            raise KclError(f"streaming-ridge sums samples up as they are: it has no use for {asked}")

    def build(self, backbone: Backbone) -> FrozenModel:
        return FrozenModel(backbone, self.settings)

    def begin_task(self, model: FrozenModel, task: Task, rng: np.random.Generator) -> Learnable:
        """Sum the task up."""
        whole = statistics.add([self._summed(model, task, rows) for rows in torch.arange(len(task.train)).split(BATCH)])
        spectrum = primal.spectrum(whole)
        strength = primal.best_strength(spectrum, self.settings.strength_rule)
        moment = whole.moment.tensor
        if whole.moment.rows is None:  # a symmetric matrix
            upper = torch.triu_indices(*moment.shape, device=moment.device)
            moment = moment[upper[0], upper[1]]
        sums = {"moment": moment, "cross": whole.cross, "counts": whole.sums, "squares": whole.squares}
        memory = sums | {
            "solution": primal.weights(spectrum, strength),
            "strength": whole.cross.new_tensor(strength),
        }
        return Learnable(np.arange(0), memory)

    def _summed(self, model: FrozenModel, task: Task, rows: Tensor) -> statistics.Statistics:
        device = model.width.device
        features = model(task.view.scale(task.moved(rows).to(device)))
        return statistics.of_samples(features, F.one_hot(task.train.labels[rows].to(device), task.ways))

    def loss(self, model: FrozenModel, memory: Memory, batch: Batch, noise: Noise) -> Float[Tensor, ""]:
        """The squared error of the solution, which no step can lower."""
        targets = F.one_hot(batch.labels, memory["solution"].shape[1])
        return (model(batch.inputs) @ memory["solution"] - targets).square().sum(1).mean().float()

    def classifier(self, model: FrozenModel, memory: Memory, noise: Noise) -> Memory:
        return {"solution": memory["solution"]}

    def united(self, memories: Sequence[Memory], places: Places) -> Memory:
        """The solution of the sums of all tasks, in which equal classes are one."""
        outputs = 1 + max(max(several) for several in places)
        parts = [(_statistics(memory), several) for memory, several in zip(memories, places, strict=True)]
        spectrum = primal.spectrum(statistics.add_placed(parts, outputs))
        strength = primal.best_strength(spectrum, self.settings.strength_rule)
        return {"solution": primal.weights(spectrum, strength)}

    def logits(self, model: FrozenModel, classifier: Memory, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        return model(inputs) @ classifier["solution"]


def _statistics(memory: Memory) -> statistics.Statistics:
    """The sums of a task as `begin_task` keeps them."""
    moment, dimension = memory["moment"], len(memory["cross"])
    if moment.ndim == 2:
        kept = statistics.SecondMoment(rows=moment)
    else:
        whole = moment.new_zeros(dimension, dimension)
        upper = torch.triu_indices(dimension, dimension, device=moment.device)
        whole[upper[0], upper[1]] = moment
        kept = statistics.SecondMoment(matrix=whole)
    counts = memory["counts"]
    return statistics.Statistics(kept, memory["cross"], counts, memory["squares"], float(counts.sum()))
