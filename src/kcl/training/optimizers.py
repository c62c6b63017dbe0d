"""Muon for the backbone's matrices and SGD for all other parameters, of one run and of many.

With the velocity v ← μv + g, SGD moves a parameter by −η·v; a matrix follows instead −η_M times what
`functional.orthogonal` makes of g + μv (Nesterov's momentum, as in PyTorch's own Muon, which averages where this sums:
the length of a momentum does not matter to its direction). A convolution is the matrix (out, in · k · k).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from kcl.core.settings import Settings
from kcl.core.shapes import Float
from kcl.functional import orthogonal
from kcl.nets.flat import Layout, matrix_names
from kcl.ops.streams import side_by_side


def rate(settings: Settings, task_index: int) -> float:
    """η_M · decay^t, t from 0."""
    return settings.muon_lr * settings.muon_lr_decay**task_index


def moved_by_muon(model: nn.Module) -> set[str]:
    """The names of the parameters that Muon moves: the backbone's matrices."""
    return {f"backbone.{name}" for name in matrix_names(model.get_submodule("backbone"))}


class Muon(torch.optim.Optimizer):
    """For one run."""

    def __init__(
        self, model: nn.Module, lr: float, muon_lr: float, momentum: float, others: Iterable[nn.Parameter] = ()
    ) -> None:
        """`others`: what is trained and no parameter of the model."""
        names, parts = moved_by_muon(model), dict[bool, list[nn.Parameter]]({True: [], False: []})
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parts[name in names].append(parameter)
        parts[False] += others
        groups = [
            {"params": parts[True], "matrices": True, "lr": muon_lr},
            {"params": parts[False], "matrices": False, "lr": lr},
        ]
        super().__init__([group for group in groups if group["params"]], {"momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for group in self.param_groups:
            momentum = group["momentum"]
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                velocity = gradient
                if momentum:
                    state = self.state[parameter]
                    if "momentum_buffer" not in state:
                        state["momentum_buffer"] = torch.zeros_like(parameter)
                    velocity = state["momentum_buffer"].mul_(momentum).add_(gradient)
                if group["matrices"]:
                    velocity = orthogonal.update((gradient + momentum * velocity).flatten(1)[None]).view_as(parameter)
                parameter.sub_(group["lr"] * velocity)


class StackedMuon:
    """For many runs, whose parameters are one flat tensor. Matrices of one shape, of all runs, are updated together; on
    a GPU, which a few small matrices leave idle, several shapes at a time.
    """

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        names = moved_by_muon(model)
        begins: dict[tuple[int, int], list[int]] = {}
        begin = 0
        for (name, shape), size in zip(layout.shapes.items(), layout.sizes, strict=True):
            if name in names:
                begins.setdefault((shape[0], size // shape[0]), []).append(begin)
            begin += size
        self.groups = list(begins.items())
        """Shapes of matrices, large ones first, and where those of each shape begin."""

    def descend(
        self,
        optimiser: Sequence[Tensor],
        losses: Float[Tensor, " s"],
        gradient: Float[Tensor, "s p"],
        compiled: bool = False,
    ) -> None:
        """As `state.descend`: one step in place; a run whose loss is not finite stops for good, as it was before."""
        flat, velocity, alive, rate, momentum, muon_rate = optimiser
        alive.logical_and_(torch.isfinite(losses)[:, None])
        velocity.mul_(momentum).add_(gradient)
        step, ahead = rate * velocity, torch.addcmul(gradient, momentum, velocity)

        def one(number: int) -> None:
            (out, into), begins = self.groups[number]
            size = out * into
            stacked = torch.stack([ahead[:, begin : begin + size] for begin in begins], dim=1)
            found = orthogonal.update(stacked.view(-1, out, into)).reshape(len(flat), len(begins), size)
            for begin, own in zip(begins, (muon_rate[:, None] * found).unbind(1), strict=True):
                step[:, begin : begin + size] = own

        if flat.is_cuda and not compiled:
            side_by_side(flat.device, "matrices", len(self.groups), one)
        else:
            for number in range(len(self.groups)):
                one(number)
        flat.sub_(torch.where(alive, step, 0.0))


def optimizer_of(
    model: nn.Module, parameters: Iterable[nn.Parameter], settings: Settings, lr: float, task_index: int
) -> torch.optim.Optimizer:
    """A run's optimiser for a task."""
    if settings.optimizer == "muon":
        own = {id(parameter) for parameter in model.parameters()}
        others = [parameter for parameter in parameters if id(parameter) not in own]
        return Muon(model, lr, rate(settings, task_index), settings.momentum, others)
    return torch.optim.SGD(parameters, lr=lr, momentum=settings.momentum, fused=True)
