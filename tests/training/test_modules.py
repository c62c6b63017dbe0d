"""Any module trains in a plain stack, to the bits of the reference, and is saved and restored whole."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kcl.errors import KclError
from kcl.nets.backbone import ModuleBackbone
from kcl.training.stack import RunStack
from kcl.training.state import CannotStack
from reference_run import ReferenceRun, ReferenceRuns


class ReadsANumber(nn.Module):
    """Its forward pass depends on a number read from a tensor, which vmap cannot do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return torch.tanh(self.linear(x / max(1.0, x.abs().max().item())))


class ReplacesABuffer(ReadsANumber):
    """Counts its batches in a new tensor each time, and divides by what it has seen."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen = self.seen + x.mean().abs().detach()
        return super().forward(x) * (1.0 + 1.0 / self.seen)


class Frozen(ReadsANumber):
    """Half of it is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(16, 16).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.before(x.flatten(1)))


class Tied(nn.Module):
    """Two layers that share one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 8)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x.flatten(1))))))


class Dropped(ReadsANumber):
    """nn.Dropout draws from PyTorch's global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.dropout(x.flatten(1)))


MODULES = [ReadsANumber, ReplacesABuffer, Frozen, Tied, Dropped]
modules = pytest.mark.parametrize("module", MODULES)


def _backbone(module: type[nn.Module]) -> Callable[[], ModuleBackbone]:
    return lambda: ModuleBackbone(module(), (1, 4, 4))


def _plain(runs: Any, module: type[nn.Module]) -> RunStack:
    return RunStack(runs.methods(), [_backbone(module)], runs.seeds, plain=True)


@modules
@pytest.mark.parametrize("average", [0.0, 0.8])
@pytest.mark.parametrize("method", ["kcl", "ewc", "er-reservoir"])
def test_learns_what_the_reference_learns(
    make_runs: Any, difference: Any, method: str, module: type[nn.Module], average: float
) -> None:
    runs = make_runs(method, samples=35, weight_average=average)[[0]]
    plain = _plain(runs, module)
    reference = ReferenceRuns([ReferenceRun(runs.methods()[0], _backbone(module), runs.seeds[0])])
    before = difference.snapshot(plain)[0]
    for index in range(2):
        for learner in (plain, reference):
            learner.learn(runs.tasks(index))
        for each in range(index + 1):
            assert torch.equal(plain.scores(runs.tasks(each))[0], reference.scores(runs.tasks(each))[0])
        difference.assert_none(plain, reference, 0.0, range(index + 1))
    after = difference.snapshot(plain)[0]
    unmoved = {name for name in before if "module" in name and torch.equal(before[name], after[name])}
    assert unmoved == {name for name in before if ".before." in name}


class Stopped(Exception):
    pass


@modules
@pytest.mark.parametrize("average", [0.0, 0.8])
@pytest.mark.parametrize("steps", [2, 4, 5])
def test_goes_on_from_a_saved_state_to_the_same_bits(
    make_runs: Any, difference: Any, module: type[nn.Module], average: float, steps: int
) -> None:
    """Of three steps a task: in the midst of the second, and in the midst of the first."""
    runs = make_runs(samples=35, weight_average=average)[[0]]
    training_tasks = [[runs.tasks(index)[0] for index in range(2)]]
    whole, stopped, resumed = (_plain(runs, module) for _ in range(3))
    done = [0]

    def between_steps() -> None:
        done[0] += 1
        if done[0] == steps:
            raise Stopped

    for index in range(2):
        whole.learn(runs.tasks(index))
    with contextlib.suppress(Stopped):
        for index in range(2):
            stopped.learn(runs.tasks(index), between_steps=between_steps)
    assert stopped.learning
    resumed.restore(stopped.saved(), training_tasks)
    difference.assert_none(stopped, resumed, 0.0, sorted(stopped.kept))
    for index in range(len(resumed.kept), 2):
        resumed.learn(runs.tasks(index))
    difference.assert_none(whole, resumed, 0.0, [0, 1])
    assert whole.fingerprints() == resumed.fingerprints()


@modules
def test_returns_to_a_snapshot(make_runs: Any, difference: Any, module: type[nn.Module]) -> None:
    runs = make_runs(samples=35)[[0]]
    learner = _plain(runs, module)
    learner.learn(runs.tasks(0))
    restore, before = learner.snapshot(), difference.snapshot(learner)
    learner.learn(runs.tasks(1))
    restore()
    torch.testing.assert_close(difference.snapshot(learner), before, rtol=0.0, atol=0.0)
    assert list(learner.kept) == [0]


@pytest.mark.parametrize("module", [ReadsANumber, ReplacesABuffer, Frozen, Dropped])
def test_a_stack_refuses_what_cannot_be_vmapped(make_runs: Any, module: type[nn.Module]) -> None:
    runs = make_runs(samples=35)
    stacked = RunStack(runs.methods(), [_backbone(module)] * 3, runs.seeds)
    with pytest.raises(CannotStack):
        stacked.learn(runs.tasks(0))


def test_tied_weights_stack(make_runs: Any, difference: Any, double: None) -> None:
    runs = make_runs(samples=35)
    stacked = RunStack(runs.methods(), [_backbone(Tied)] * 3, runs.seeds)
    pairs = zip(runs.methods(), runs.seeds, strict=True)
    reference = ReferenceRuns([ReferenceRun(method, _backbone(Tied), seed) for method, seed in pairs])
    for learner in (stacked, reference):
        learner.learn(runs.tasks(0))
    difference.assert_none(stacked, reference, 1e-9, [0])


def test_a_state_of_another_module_is_refused(make_runs: Any) -> None:
    runs = make_runs(samples=35)[[0]]
    other = _plain(runs, Tied)
    other.learn(runs.tasks(0))
    with pytest.raises(KclError, match="does not fit"):
        _plain(runs, ReadsANumber).restore(other.saved(), [[runs.tasks(0)[0]]])
