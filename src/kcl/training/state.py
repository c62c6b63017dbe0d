"""The parameters, statistics and averages of s runs, with one tensor for each kind."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from kcl.core.randomness import derive
from kcl.core.shapes import Float
from kcl.methods.method import Memory, Method
from kcl.nets.backbone import BATCH_NORMS, Backbone
from kcl.nets.flat import Layout
from kcl.ops.torch_private import tree_map
from kcl.training.checkpoint import Tree, load_into
from kcl.training.optimizers import OptimizerState, zeros_beside
from kcl.training.weight_average import AverageHorizon, WeightAverage


class CannotStack(Exception):
    """These runs cannot be trained together; they can be trained one after another."""


class StackState:
    """All parameters of all runs in one tensor. The parameters of the models become views of it.

    So whatever a method does to a run's model is done to the stack, and one update covers all runs.
    """

    def __init__(
        self, models: Sequence[nn.Module], horizons: Sequence[Sequence[AverageHorizon]] = (), moments: int = 1
    ) -> None:
        """`horizons`: those of each run's averages. A run with fewer averages than another gets extra ones that equal
        its current weights. `moments`: how many tensors like the weights the optimiser needs.
        """
        template, runs = models[0], len(models)
        self.models = models
        self.layout = Layout(template)
        device = next(template.parameters()).device
        self.flat = torch.zeros(runs, self.layout.size, device=device)
        self.moments = [zeros_beside(self.flat, place + 1) for place in range(moments)]
        self.alive = torch.ones(runs, 1, dtype=torch.bool, device=device)
        self.numbers: dict[str, Float[Tensor, "s 1"]] = {}
        for name, stacked in self.parameters().items():
            for run, model in enumerate(models):
                parameter = model.get_parameter(name)
                stacked[run].copy_(parameter.detach())
                parameter.data = stacked[run]
        self._stack_buffers()
        self.averages = [
            WeightAverage(self.flat, self.running, each)
            for each in itertools.zip_longest(*horizons, fillvalue=AverageHorizon(0.0, 1.0))
        ]
        self._average_models: dict[tuple[int, int], nn.Module] = {}

    def _stack_buffers(self) -> None:
        """Stack the buffers of all runs by name. Those that a step changes lie in one tensor per data type, `running`;
        `owners` holds the run of each entry.
        """
        template = self.models[0]
        changing = {id(buffer) for buffer in running_statistics(template)}
        self._statistics: dict[torch.dtype, dict[str, torch.Size]] = {}
        self.buffers: dict[str, Tensor] = {}
        for name, buffer in template.named_buffers():
            if id(buffer) in changing:
                self._statistics.setdefault(buffer.dtype, {})[name] = buffer.shape
            else:
                self.buffers[name] = torch.stack([model.get_buffer(name) for model in self.models])
        self.running, self.owners = [], []
        for names in self._statistics.values():
            tensors = [torch.stack([model.get_buffer(name) for model in self.models]) for name in names]
            self.running.append(torch.cat([tensor.flatten() for tensor in tensors]))
            runs = torch.arange(len(self.models), device=tensors[0].device)
            self.owners.append(torch.cat([runs.repeat_interleave(tensor[0].numel()) for tensor in tensors]))
        self.gather_buffers()

    def gather_buffers(self) -> None:
        """Make the models' buffers views of the stacked ones: at first, and where a module has replaced its own instead
        of changing it in place.
        """
        for name, stacked in (self.buffers | self.statistics()).items():
            for run, model in enumerate(self.models):
                buffer = model.get_buffer(name)
                if buffer.data_ptr() != stacked[run].data_ptr():
                    stacked[run].copy_(buffer)
                    buffer.data = stacked[run]

    def statistics(self, running: Sequence[Tensor] | None = None) -> dict[str, Float[Tensor, "s ..."]]:
        """BatchNorm's running statistics by name, as views; each is contiguous so that it can be changed in place."""
        views, runs = {}, len(self.flat)
        for flat, shapes in zip(self.running if running is None else running, self._statistics.values(), strict=True):
            parts = flat.split([runs * shape.numel() for shape in shapes.values()])
            for part, (name, shape) in zip(parts, shapes.items(), strict=True):
                views[name] = part.view(runs, *shape)
        return views

    def parameters(self, flat: Tensor | Sequence[Tensor] | None = None) -> dict[str, Float[Tensor, "s ..."]]:
        """The parameters by name, as views of the flat tensor or of its parts."""
        if isinstance(flat, Sequence):
            return self.layout.named([part.detach() for part in flat])
        return self.layout.split((self.flat if flat is None else flat).detach())

    def used_at_test(self, average: int | None) -> dict[str, Float[Tensor, "s ..."]]:
        """The parameters and buffers used at test, by name: the last ones, or those of an average."""
        source = self if average is None else self.averages[average]
        return self.parameters(source.flat) | self.buffers | self.statistics(source.running)

    def model_at_test(self, run: int, average: int | None) -> nn.Module:
        """The model a run is tested with. That of an average shares the average's tensors and the run's buffers."""
        if average is None:
            return self.models[run]
        self.gather_buffers()
        if (run, average) not in self._average_models:
            model = copy.deepcopy(self.models[run]).requires_grad_(False)
            tensors = self.used_at_test(average)
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                tensor.data = tensors[name][run]
            self._average_models[run, average] = model
        return self._average_models[run, average]

    def restart(self, numbers: Sequence[dict[str, float]]) -> None:
        """Begin a task with the optimiser's moments at zero. `numbers`: `Optimizer.numbers` of every run."""
        for moment in self.moments:
            moment.zero_()
        for name in numbers[0]:
            column = torch.tensor([each[name] for each in numbers])[:, None]
            if name in self.numbers:
                self.numbers[name].copy_(column)  # a captured step reads this tensor
            else:
                self.numbers[name] = column.to(self.flat.device)

    def optimizer(self, in_parts: bool = False) -> OptimizerState:
        """The state that an optimiser updates. `in_parts`: with weights and moments split by parameter."""
        tensors: list[Any] = [self.flat, *self.moments]
        if in_parts:
            tensors = [self.layout.parts(flat) for flat in tensors]
        return OptimizerState(tensors[0], tensors[1:], self.alive, self.numbers)

    def saved(self) -> Tree:
        """The state of the runs between tasks, without buffers that are determined by settings."""
        self.gather_buffers()
        running = {str(place): flat for place, flat in enumerate(self.running)}
        saved = self.models[0].state_dict()
        buffers = {name: tensor for name, tensor in self.buffers.items() if name in saved}
        tree: Tree = {"weights": self.flat, "alive": self.alive, "running": running, "buffers": buffers}
        for place, average in enumerate(self.averages):
            tree[f"average {place}" if place else "average"] = average.saved()
        return tree

    def load(self, tree: Tree) -> None:
        """The inverse of `saved`, into the existing tensors."""
        present = self.saved()
        by_settings = {"gamma", "tau", "soft_targets"} | (self.buffers.keys() - present["buffers"].keys())
        load_into(present, tree.get("stack"), "stack", ignored={f"buffers/{name}" for name in by_settings})

    def changed(self) -> list[Tensor]:
        """The tensors that a step changes."""
        averages = [tensor for average in self.averages for tensor in average.tensors()]
        return [self.flat, *self.moments, self.alive, *self.running, *self.buffers.values(), *averages]


def running_statistics(model: nn.Module) -> list[Tensor]:
    """The buffers that a forward pass changes: BatchNorm's running averages."""
    norms = [module for module in model.modules() if isinstance(module, BATCH_NORMS)]
    return [buffer for norm in norms for buffer in norm.buffers()]


def over_runs(
    template: nn.Module,
    function: Callable[..., Any],
    state: dict[str, Tensor],
    *arguments: Any,
    vmapped: bool = False,
) -> Any:
    """function(model, *arguments) for every run at once, on a model like `template` with each run's state.

    State and arguments have a leading run dimension. A single run on a CPU does without vmap unless `vmapped`, because
    batched products of one matrix are slower than plain ones.
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
    """A function of a model as a module's forward, so that `functional_call` can give it a run's parameters."""

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


def memory_of(run: int, stacked: Memory) -> Memory:
    """One run's part of a stacked memory."""
    return {name: tensor[run] for name, tensor in stacked.items()}


def build_model(method: Method, make_backbone: Callable[[], Backbone], seed: int) -> nn.Module:
    """A run's model with its initial weights, without touching PyTorch's global generator."""
    with torch.random.fork_rng(devices=[]):  # initialisers can only draw from the global generator
        torch.manual_seed(derive(seed, "initial weights"))
        return method.make(make_backbone())
