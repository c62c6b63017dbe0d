"""The step traced and handed to PyTorch's compiler is the step.

`aot_eager` stands in for the compiler's code generator, which needs a C++ compiler: everything before it is the same.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kcl.ops import torch_private
from reference_run import TRAINED


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch, _draws_without_compiler: None) -> list[Any]:
    """What was handed to the compiler."""
    graphs: list[Any] = []

    def noting(traced: Any, _: Any) -> Any:
        graphs.append(traced)
        return torch.compile(traced, backend="aot_eager", dynamic=False, fullgraph=True)

    monkeypatch.setattr(torch_private, "compile_step", noting)
    return graphs


@pytest.mark.parametrize(
    ("method", "net", "samples"),
    [("naive-sgd", "resnet", 26), ("a-gem", "resnet", 26), *((method, "mlp", 35) for method in TRAINED)],
)
def test_gives_what_the_step_itself_gives(
    make_runs: Any, difference: Any, compilations: list[Any], method: str, net: str, samples: int
) -> None:
    """A full batch and a smaller last one, then a second task with the same compiled steps.

    A-GEM replays nothing in its first task, and so has other steps after it.
    """
    runs = make_runs(method, net, samples=samples)
    plain, compiled = runs.stacked(draws_as_compiled=True), runs.stacked(compiled=True)
    for index in range(runs.training_count):
        losses: list[list[float]] = [[], []]
        for learner, values in zip((plain, compiled), losses, strict=True):
            learner.learn(runs.training_tasks(index), lambda step, values=values: values.append(step.loss))
        made = 2 if method == "a-gem" and index == 1 else 1
        assert len(compilations) == made * len(set(plain._trainer.sizes))
        assert losses[1] == pytest.approx(losses[0], rel=1e-6)
        difference.assert_none(plain, compiled, 1e-6, [index])
        assert torch.equal(plain._trainer.done, compiled._trainer.done)
        assert compiled.accuracy(runs.tasks(index)) == plain.accuracy(runs.tasks(index))
    assert compiled.diverged == plain.diverged == [False] * 3


def test_a_run_that_diverges_is_stopped_there_too(make_runs: Any, difference: Any, compilations: list[Any]) -> None:
    runs = make_runs("naive-sgd", samples=40).but(1, lr=1e30)
    plain, compiled = runs.stacked(draws_as_compiled=True), runs.stacked(compiled=True)
    for learner in (plain, compiled):
        learner.learn(runs.tasks(0), lambda _: None)
    assert compilations
    assert compiled.diverged == plain.diverged == [False, True, False]
    difference.assert_none(plain, compiled, 1e-6)


def test_tracing_does_not_take_a_step_of_its_own(make_runs: Any, compilations: list[Any]) -> None:
    """Tracing runs the step once; it must do so on copies."""
    runs = make_runs("naive-sgd", samples=10, tasks=1)
    learner = runs.stacked(compiled=True)
    seen: list[int] = []
    learner.learn(runs.tasks(0), lambda _: seen.append(int(learner._trainer.done.item())))
    assert seen == [1]
    assert learner._trainer.cursor.item() == 10
