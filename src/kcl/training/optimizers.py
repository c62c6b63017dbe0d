"""Update rules for the weights of s runs, which lie in one flat tensor (s × p).

To add an optimiser, write a subclass of `Optimizer`, add it to `OPTIMIZERS`, and to the choices of the setting
`optimizer`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from kcl import ops
from kcl.core.settings import Settings
from kcl.core.shapes import Float
from kcl.functional import orthogonal
from kcl.nets.flat import Layout, matrix_names
from kcl.ops.operation import traced
from kcl.ops.streams import side_by_side


class OptimizerState(NamedTuple):
    """What an optimiser reads and changes. The first dimension of all tensors is the runs."""

    weights: Any
    """The weights of all runs in one tensor, or in parts, parameter by parameter."""
    moments: list[Any]
    """Tensors like the weights that the optimiser carries from step to step; zero when a task begins."""
    alive: Float[Tensor, "s 1"]
    """Runs whose losses have all been finite. The others are no longer updated."""
    numbers: dict[str, Float[Tensor, "s 1"]]
    """The values of `Optimizer.numbers` for the task."""


class Optimizer(ABC):
    """An update rule. It holds no state, so that a step can be traced, captured and resumed."""

    moments: ClassVar[int] = 1
    """How many tensors like the weights it carries from step to step."""

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        """`model`: one of the runs' models, all alike; `layout`: where its parameters lie in the flat tensor."""
        del model, layout  # for rules that treat some parameters differently

    @staticmethod
    @abstractmethod
    def numbers(settings: Settings, task_index: int) -> dict[str, float]:
        """Learning rates and the like for a task; they may differ between stacked runs."""

    @abstractmethod
    def displacement(self, state: OptimizerState, gradient: Float[Tensor, "s p"]) -> Float[Tensor, "s p"]:
        """What to subtract from the weights. Updates the moments in place."""

    def step(self, state: OptimizerState, gradient: Float[Tensor, "s p"]) -> None:
        """Update the runs that are alive, in place."""
        state.weights.sub_(torch.where(state.alive, self.displacement(state, gradient), 0.0))


class SGD(Optimizer):
    """v ← μv + g, x ← x − ηv."""

    @staticmethod
    def numbers(settings: Settings, task_index: int) -> dict[str, float]:
        return {"rate": learning_rate(settings, task_index), "momentum": settings.momentum}

    def displacement(self, state: OptimizerState, gradient: Float[Tensor, "s p"]) -> Float[Tensor, "s p"]:
        return state.numbers["rate"] * state.moments[0].mul_(state.numbers["momentum"]).add_(gradient)

    def step(self, state: OptimizerState, gradient: Float[Tensor, "s p"]) -> None:
        numbers = state.numbers["rate"], state.numbers["momentum"]
        ops.descend(state.weights, state.moments[0], gradient, state.alive, *numbers)


class Muon(SGD):
    """Muon for the backbone's matrices, SGD for all other parameters.

    With the velocity v ← μv + g, a matrix moves by −η_M times the `functional.orthogonal` update of g + μv (Nesterov
    momentum as in PyTorch's Muon, except that PyTorch averages where this sums; the update depends only on the
    direction, so the scale does not matter). A convolution is the matrix (out, in · k · k). On a GPU, all matrices of
    one shape are updated together for all runs, and several shapes in parallel; on a CPU one matrix after another.
    """

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        super().__init__(model, layout)
        matrices = {f"backbone.{name}" for name in matrix_names(model.get_submodule("backbone"))}
        starts: dict[tuple[int, int], list[int]] = {}
        start = 0
        for (name, shape), size in zip(layout.shapes.items(), layout.sizes, strict=True):
            if name in matrices:
                starts.setdefault((shape[0], size // shape[0]), []).append(start)
            start += size
        self.groups = list(starts.items())
        """The shapes of the matrices, each with the offsets of its matrices in the flat tensor."""

    @staticmethod
    def numbers(settings: Settings, task_index: int) -> dict[str, float]:
        rate = settings.muon_lr * settings.muon_lr_decay**task_index
        return SGD.numbers(settings, task_index) | {"muon_rate": rate}

    def displacement(self, state: OptimizerState, gradient: Float[Tensor, "s p"]) -> Float[Tensor, "s p"]:
        step = super().displacement(state, gradient)
        ahead = gradient + state.numbers["momentum"] * state.moments[0]

        def move(shape: tuple[int, int], starts: Sequence[int]) -> None:
            size = shape[0] * shape[1]
            matrices = torch.stack([ahead[:, start : start + size] for start in starts], dim=1)
            updates = orthogonal.update(matrices.view(-1, *shape)).reshape(len(ahead), len(starts), size)
            for start, update in zip(starts, (state.numbers["muon_rate"][:, None] * updates).unbind(1), strict=True):
                step[:, start : start + size] = update

        if ahead.is_cuda and not traced():  # a few small matrices do not fill a GPU
            side_by_side(ahead.device, "matrices", len(self.groups), lambda number: move(*self.groups[number]))
        else:
            for shape, starts in self.groups:
                for together in [starts] if ahead.is_cuda else [[start] for start in starts]:
                    move(shape, together)
        return step

    def step(self, state: OptimizerState, gradient: Float[Tensor, "s p"]) -> None:
        Optimizer.step(self, state, gradient)


def zeros_beside(flat: Float[Tensor, "s p"], place: int) -> Float[Tensor, "s p"]:
    """Zeros like the weights, offset by 256 bytes per `place`. Large tensors are aligned to memory pages, and a CPU
    that reads and writes several of them at equal offsets is up to three times slower.
    """
    shift = 64 * place
    return torch.zeros(shift + flat.numel(), dtype=flat.dtype, device=flat.device)[shift:].view(flat.shape)


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "muon": Muon}


def learning_rate(settings: Settings, task_index: int) -> float:
    """η · decay^(t + 1), t from 0, but never below the floor. As published, the first task is already decayed."""
    return max(settings.lr * settings.lr_decay ** (task_index + 1), settings.lr_floor)


def descend_in_parts(state: OptimizerState, gradients: Sequence[Float[Tensor, "s ..."] | None]) -> None:
    """SGD parameter by parameter, so that a compiler fuses each gradient with its update and stores none.

    The parts are flat (s × n): PyTorch 2.13's compiler can fail where the same loops read and update a matrix.
    """
    for weights, velocity, gradient in zip(state.weights, state.moments[0], gradients, strict=True):
        if gradient is not None:
            move(weights, velocity, gradient.reshape(weights.shape), state)


def move(
    weights: Float[Tensor, "s ..."],
    velocity: Float[Tensor, "s ..."],
    gradient: Float[Tensor, "s ..."],
    state: OptimizerState,
) -> None:
    """v ← momentum · v + g, and x ← x − rate · v for the runs that are alive."""
    rate, momentum = (per_run(state.numbers[name], velocity) for name in ("rate", "momentum"))
    velocity.mul_(momentum).add_(gradient)
    weights.sub_(torch.where(per_run(state.alive, velocity), rate * velocity, 0.0))


def per_run(numbers: Float[Tensor, "s 1"], like: Float[Tensor, "s ..."]) -> Float[Tensor, "s ..."]:
    """One number per run, reshaped to broadcast with `like`."""
    return numbers.view(-1, *[1] * (like.ndim - 1))


def fused_sgd(
    weights: list[Tensor], gradients: Sequence[Tensor], velocities: list[Tensor], numbers: dict[str, float]
) -> None:
    """SGD for a single run with PyTorch's fused kernel, which reads every tensor once."""
    buffers: list[Tensor | None] = [*velocities] if numbers["momentum"] else [None] * len(weights)
    in_order = [gradient.contiguous() for gradient in gradients]  # the kernel ignores strides
    sgd(
        weights, in_order, buffers, fused=True, lr=numbers["rate"], momentum=numbers["momentum"],
        weight_decay=0.0, dampening=0.0, nesterov=False, maximize=False,
    )  # fmt: skip
