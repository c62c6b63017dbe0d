"""The parameters and the optimiser of many runs, as one tensor each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from kcl.core.shapes import Float
from kcl.methods.method import Memory
from kcl.nets.flat import Layout
from kcl.ops import descent, triton_available
from kcl.ops.torch_private import tree_map
from kcl.training.checkpoint import Tree, branch, fit, fit_all
from kcl.training.single_run import running_statistics
from kcl.training.weight_average import Reach, StackedAverage, named


class CannotStack(Exception):
    """These runs cannot be trained together; they can be trained one after another."""


class StackedState:
    """All parameters of all runs in one tensor, of which the models' own parameters become views.

    So whatever a method does to one run's model is done to the stack, and one update moves everything.
    """

    def __init__(self, models: Sequence[nn.Module], averages: Sequence[Sequence[Reach]] = ()) -> None:
        """`averages`: of each run, how far back every average of its weights reaches, which need not have any.
        Where one has more than another, the other's are nothing but its present weights.
        """
        template, runs = models[0], len(models)
        self.layout = Layout(template)
        device = next(template.parameters()).device
        self.flat = torch.zeros(runs, self.layout.size, device=device)
        self.velocity = torch.zeros_like(self.flat)
        self.alive = torch.ones(runs, 1, dtype=torch.bool, device=device)
        self.momentum, self.rate, self.muon_rate = (torch.zeros(runs, 1, device=device) for _ in range(3))
        for name, stacked in self.parameters().items():
            for run, model in enumerate(models):
                own = model.get_parameter(name)
                stacked[run].copy_(own.detach())
                own.data = stacked[run]
        self._stack_buffers(models)
        self.averages = [
            StackedAverage(self.flat, self.running, own)
            for own in itertools.zip_longest(*averages, fillvalue=Reach(0.0, 1.0))
        ]

    def _stack_buffers(self, models: Sequence[nn.Module]) -> None:
        """Buffers of all runs by name. Those a step changes lie in one tensor for each data type, `running`;
        `owners` says whose an entry of it is.
        """
        template = models[0]
        changing = {id(buffer) for buffer in running_statistics(template)}
        self._statistics: dict[torch.dtype, dict[str, torch.Size]] = {}
        self.buffers: dict[str, Tensor] = {}
        for name, buffer in template.named_buffers():
            if id(buffer) in changing:
                self._statistics.setdefault(buffer.dtype, {})[name] = buffer.shape
            else:
                self.buffers[name] = torch.stack([model.get_buffer(name) for model in models])
        self.running, self.owners = [], []
        for names in self._statistics.values():
            stacked = [torch.stack([model.get_buffer(name) for model in models]) for name in names]
            self.running.append(torch.cat([tensor.flatten() for tensor in stacked]))
            runs = torch.arange(len(models), device=stacked[0].device)
            self.owners.append(torch.cat([runs.repeat_interleave(tensor[0].numel()) for tensor in stacked]))
        for name, own in (self.buffers | self.statistics()).items():
            for run, model in enumerate(models):
                model.get_buffer(name).data = own[run]

    def statistics(self, running: Sequence[Tensor] | None = None) -> dict[str, Float[Tensor, "s ..."]]:
        """BatchNorm's running statistics by name, as views; each must be dense to be changed where it is."""
        found, runs = {}, len(self.flat)
        for flat, shapes in zip(self.running if running is None else running, self._statistics.values(), strict=True):
            parts = flat.split([runs * shape.numel() for shape in shapes.values()])
            for part, (name, shape) in zip(parts, shapes.items(), strict=True):
                found[name] = part.view(runs, *shape)
        return found

    def parameters(self, flat: Tensor | Sequence[Tensor] | None = None) -> dict[str, Float[Tensor, "s ..."]]:
        """The parameters by name, as views of the one tensor, or of its parts."""
        if isinstance(flat, Sequence):
            return self.layout.named([part.detach() for part in flat])
        return self.layout.split((self.flat if flat is None else flat).detach())

    def answering(self, average: int | None) -> dict[str, Float[Tensor, "s ..."]]:
        """Parameters and buffers by name as the runs answer with them: their last ones, or one of their averages."""
        own = self if average is None else self.averages[average]
        return self.parameters(own.flat) | self.buffers | self.statistics(own.running)

    def restart(self, rates: Sequence[float], momenta: Sequence[float], muon_rates: Sequence[float]) -> None:
        """Begin the optimiser anew for a task."""
        self.velocity.zero_()
        self.rate.copy_(torch.tensor(rates)[:, None])
        self.momentum.copy_(torch.tensor(momenta)[:, None])
        self.muon_rate.copy_(torch.tensor(muon_rates)[:, None])

    def optimiser(self, apart: bool = False) -> list[Any]:
        """What `descend` works on, and Muon's rate. `apart`: weights and velocities parameter by parameter, for
        `descend_apart`.
        """
        moved: list[Any] = [self.flat, self.velocity]
        if apart:
            moved = [self.layout.parts(flat) for flat in moved]
        return [*moved, self.alive, self.rate, self.momentum, self.muon_rate]

    def saved(self) -> Tree:
        """What tasks leave behind in the runs."""
        running = {str(place): flat for place, flat in enumerate(self.running)}
        tree: Tree = {"weights": self.flat, "alive": self.alive, "running": running, "buffers": self.buffers}
        return tree | {named(place): average.saved() for place, average in enumerate(self.averages)}

    def load(self, tree: Tree) -> None:
        """The inverse of `saved`, in the tensors that are here already."""
        given, own = branch(tree, "stack"), self.saved()
        for name in ("weights", "alive"):
            own[name].copy_(fit(given.get(name), own[name], name))
        for name in ("running", "buffers"):
            for key, tensor in fit_all(given.get(name), own[name], name).items():
                own[name][key].copy_(tensor)
        for place, average in enumerate(self.averages):
            average.load(branch(given, named(place)))

    def changed(self) -> list[Tensor]:
        """What a step changes."""
        averages = [tensor for average in self.averages for tensor in average.tensors()]
        return [self.flat, self.velocity, self.alive, *self.running, *self.buffers.values(), *averages]


def descend(
    optimiser: Sequence[Tensor], losses: Float[Tensor, " s"], gradient: Float[Tensor, "s p"], compiled: bool = False
) -> None:
    """One step of SGD with momentum, in place. A run whose loss is not finite stops for good, as it was before.

    `compiled`: a compiler will fuse it.
    """
    flat, velocity, alive, rate, momentum, _ = optimiser
    alive.logical_and_(torch.isfinite(losses)[:, None])
    if flat.is_cuda and triton_available() and not compiled:
        descent.descend(flat, velocity, gradient, alive, rate, momentum)
        return
    velocity.mul_(momentum).add_(gradient)
    flat.copy_(torch.where(alive, flat - rate * velocity, flat))


def descend_apart(
    optimiser: Sequence[Any], losses: Float[Tensor, " s"], gradients: Sequence[Float[Tensor, "s ..."] | None]
) -> None:
    """The same, parameter by parameter: a compiler makes each gradient in the pass that uses it, and stores none.

    They are flat (s × n) here: PyTorch 2.13's compiler can fail where a matrix is read and moved by the same loops.
    """
    weights, velocities, alive, _, _, _ = optimiser
    alive.logical_and_(torch.isfinite(losses)[:, None])
    for own, velocity, gradient in zip(weights, velocities, gradients, strict=True):
        if gradient is not None:
            move(own, velocity, gradient.reshape(own.shape), optimiser)


def move(
    weights: Float[Tensor, "s ..."],
    velocity: Float[Tensor, "s ..."],
    gradient: Float[Tensor, "s ..."],
    optimiser: Sequence[Any],
) -> None:
    """v ← momentum · v + g, and x ← x − rate · v for the runs that are alive."""
    alive, rate, momentum = (beside(own, velocity) for own in optimiser[2:5])
    velocity.mul_(momentum).add_(gradient)
    weights.sub_(torch.where(alive, rate * velocity, 0.0))


def beside(own: Tensor, tensor: Tensor) -> Tensor:
    """A number or a mark of every run (s × 1), shaped to be used with tensors like `tensor` (s × …)."""
    return own.view(-1, *[1] * (tensor.ndim - 1))


def over_runs(
    template: nn.Module,
    function: Callable[..., Any],
    state: dict[str, Tensor],
    *arguments: Any,
    vmapped: bool = False,
) -> Any:
    """function(model, *arguments) for every run at once, a model like `template` lent each run's state in turn.

    State and arguments carry the runs in their first dimension. On a CPU a run alone goes without it unless `vmapped`:
    batches of one matrix are slower than matrices.
    """
    call = _Call(template, function)

    def one(state: dict[str, Tensor], arguments: Any) -> Any:
        return functional_call(call, {f"model.{name}": tensor for name, tensor in state.items()}, arguments)

    first = next(iter(state.values()))
    if len(first) == 1 and not first.is_cuda and not vmapped:
        alone = tree_map(lambda tensor: tensor.squeeze(0), (state, arguments))
        return tree_map(lambda tensor: tensor[None], one(*alone))
    return vmap(one)(state, arguments)


class _Call(nn.Module):
    """A function of a model as a module's forward, so that `functional_call` can lend it a run's parameters."""

    def __init__(self, model: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, *arguments: Any) -> Any:
        return self.function(self.model, *arguments)


def stack_memories(memories: Sequence[Memory], device: torch.device) -> Memory:
    shapes = [{name: tensor.shape for name, tensor in memory.items()} for memory in memories]
    if any(other != shapes[0] for other in shapes):
        raise CannotStack("the runs keep memories of different shapes")
    return {name: torch.stack([memory[name] for memory in memories]).to(device) for name in memories[0]}
