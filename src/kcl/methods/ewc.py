"""EWC: a quadratic penalty keeps weights that are important for earlier tasks near their old values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from kcl.benchmarks.task import Task
from kcl.core.settings import setting
from kcl.core.shapes import Float
from kcl.functional.fisher import diagonal_fisher
from kcl.methods import views
from kcl.methods.method import Memory, ReplayPlan
from kcl.methods.sgd import LinearMethod, LinearModel, LinearSettings
from kcl.nets.flat import Layout

FISHERS = {
    "running": "running average of squared batch gradients, rescaled to [0, 1], behind the published numbers",
    "classic": "each task's own Fisher information at its end, the penalties of all tasks added up",
}


@dataclass(frozen=True)
class EwcSettings(LinearSettings):
    ewc_fisher: str = setting("running", "how the importance of weights is estimated", choices=FISHERS, since=2)
    ewc_strength: float = setting(10.0, "λ of the penalty λ Σ F (θ − θ*)²", 0.0, stackable=True, since=2)
    ewc_decay: float = setting(
        0.9, "weight of the newest gradients in the running Fisher", 0.0, 1.0, stackable=True, since=2
    )
    ewc_window: int = setting(10, "steps per update of the running Fisher", 1, 1_000_000, since=2)
    ewc_fisher_samples: int = setting(200, "training samples for a classic Fisher", 1, 10_000_000, since=2)


class ElasticWeightConsolidation(LinearMethod):
    """Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", 2017, Eq. 3: the loss of a task plus

        λ Σ_t Σ_j F_t,j (θ_j − θ*_t,j)²,

    θ*_t the weights after task t and F_t a diagonal Fisher information. λ is `ewc_strength`; Kirkpatrick et al. write
    λ/2, so that their λ is twice this one. Two kinds of F, by `ewc_fisher`:

    classic: the Fisher of each task at its end, F_j = E_x E_{y ~ p(y|x)} (∂ log p(y|x) / ∂θ_j)², over
    `ewc_fisher_samples` training samples of the task drawn uniformly, y over the classes of training's softmax with the
    model's own probabilities (the expectation is exact, not sampled), dropout off, running BatchNorm statistics. The
    penalties of all tasks add up; for a sum of parabolas it suffices to keep ΣF_t, ΣF_t θ*_t and Σ_jΣF_t θ*_t².

    running: the variant behind the published numbers, of Chaudhry, Dokania, Ajanthan and Torr, "Riemannian walk for
    incremental learning", 2018, as their code (in facebookresearch/agem, and with it in
    imirzadeh/stable-continual-learning) computes it. g² of the batch's mean cross-entropy, without the penalty, is
    averaged over `ewc_window` steps (ten on MNIST, 50 on CIFAR-100), and F ← (1 − a) F + a · average with a =
    `ewc_decay` = 0.9, so that F follows the last windows closely and continues from task to task. After each task there
    is only one penalty, with F̂ = (F − min F) / (max F − min F) over all weights and the current weights; the previous
    penalty is dropped. λ = 10 belongs to this scale. In that code the last g² of a window counts for the next window;
    here it counts for its own.

    With learning rate η a weight follows θ ← θ − 2ηλF(θ − θ*). At ηλF = 1 it oscillates around θ* instead of
    approaching it, and above that it diverges. The published ηλ on MNIST, 0.1 · 10 with F̂ ≤ 1, is just at this limit.
    A classic F has no such bound and adds up over tasks: choose λ accordingly.

    The reported loss is the cross-entropy; the penalty enters only through its gradient.
    """

    settings: EwcSettings
    settings_type = EwcSettings
    name = "ewc"
    summary = "EWC: a quadratic penalty on changes of weights that are important for earlier tasks"
    keeps = "the importance of every weight and its old value"
    modifies_gradient = True

    def initial_state(self, model: LinearModel, task: Task) -> Memory:
        weights = Layout(model).weights(model)
        method_state = {
            "importance": torch.zeros_like(weights),
            "pull": torch.zeros_like(weights),
            "offset": weights.new_zeros(()),
            "strength": weights.new_tensor(self.settings.ewc_strength),
        }
        if self.settings.ewc_fisher == "running":
            method_state |= {
                "fisher": torch.zeros_like(weights),
                "window": torch.zeros_like(weights),
                "steps": torch.zeros((), dtype=torch.int64, device=weights.device),
                "decay": weights.new_tensor(self.settings.ewc_decay),
            }
        return method_state

    def direction(
        self, weights: Float[Tensor, " p"], gradients: Float[Tensor, "l p"], method_state: Memory
    ) -> tuple[Float[Tensor, " p"], Memory]:
        gradient = gradients[0]
        pull = 2.0 * method_state["strength"] * (method_state["importance"] * weights - method_state["pull"])
        if self.settings.ewc_fisher == "classic":
            return gradient + pull, {}
        window, steps = method_state["window"] + gradient.square(), method_state["steps"] + 1
        old, decay, size = method_state["fisher"], method_state["decay"], self.settings.ewc_window
        full = steps % size == 0
        fisher = torch.where(full, (1.0 - decay) * old + decay * window / size, old)
        return gradient + pull, {"fisher": fisher, "window": window * ~full, "steps": steps}

    def consolidate(
        self, model: LinearModel, method_state: Memory, task: Task, plan: ReplayPlan | None, rng: np.random.Generator
    ) -> Memory:
        layout = Layout(model)
        weights = layout.weights(model)
        if self.settings.ewc_fisher == "classic":
            fisher = layout.flatten(self.fisher(model, task, rng))
            return anchored(method_state, fisher, weights, add=True)
        empty_window = {"window": torch.zeros_like(weights), "steps": torch.zeros_like(method_state["steps"])}
        return anchored(method_state | empty_window, rescaled(method_state["fisher"], layout), weights, add=False)

    def penalty(self, weights: Float[Tensor, " p"], method_state: Memory) -> Float[Tensor, ""]:
        """λ Σ_t Σ_j F_t,j (θ_j − θ*_t,j)²."""
        linear = method_state["importance"] * weights - 2.0 * method_state["pull"]
        return method_state["strength"] * (linear @ weights + method_state["offset"])

    def fisher(self, model: LinearModel, task: Task, rng: np.random.Generator) -> dict[str, Tensor]:
        """The diagonal Fisher information of a task at the current weights."""
        size = min(self.settings.ewc_fisher_samples, len(task.train))
        samples = torch.from_numpy(rng.choice(len(task.train), size, replace=False)).to(task.train.rows.device)
        turns = views.rotations(self.settings)
        chosen = range(self.class_count) if self.among_all else task.classes
        classes = views.pairs(torch.tensor(chosen, device=samples.device), turns)
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

        def log_probabilities(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(model, parameters, (x[None], classes)).log_softmax(-1)[0]

        return diagonal_fisher(log_probabilities, parameters, views.copies(task.view.scale(task.moved(samples)), turns))


def anchored(method_state: Memory, fisher: Float[Tensor, " p"], weights: Float[Tensor, " p"], add: bool) -> Memory:
    """The state with the penalty λ Σ F (θ − weights)², which replaces the old one or, with `add`, is added to it."""
    new = {"importance": fisher, "pull": fisher * weights, "offset": fisher @ weights.square()}
    return method_state | {name: method_state[name] + value if add else value for name, value in new.items()}


def rescaled(fisher: Float[Tensor, " p"], layout: Layout) -> Float[Tensor, " p"]:
    """(F − min F) / (max F − min F) over all weights."""
    parts = [part.flatten() for part in layout.split(fisher).values()]
    low, high = torch.cat(parts).aminmax()
    scaled = (fisher - low) / (high - low).clamp_min(torch.finfo(fisher.dtype).tiny)
    return scaled.clamp_min(0.0)  # the padding is no weight and may lie below the minimum
