"""`--compile on` on a CPU, in float32 and in bf16: each run alone through the stacked step, saved and gone on with.

But for the last test, the step is traced and then run as it is: code for it takes a C++ compiler, and a while.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config

from kcl.benchmarks.moved_pixels import PermutedPixels
from kcl.benchmarks.registry import BENCHMARKS, Benchmark
from kcl.cli import commands
from kcl.core.devices import Compute
from kcl.errors import KclError
from kcl.experiments import resuming, task_free
from kcl.experiments.admission import admit, build_learner
from kcl.experiments.group_training import Experiment, group_trainings, remaining_groups, train_group
from kcl.experiments.resuming import RunOptions
from kcl.experiments.run_folder import Folder
from kcl.experiments.run_spec import RunSpec, by_training
from kcl.methods.kcl_settings import KclSettings
from kcl.ops import philox, torch_private
from kcl.ops.torch_private import need_compiler
from kcl.training.checkpointer import Every
from kcl.training.stack import RunStack
from kcl.training.stopping import Interrupted, Stop

SMALL = KclSettings(bases=16, width=8, coreset_size_per_class=4, batch_size=10, dropout=0.2, lr=0.3)
SPECS = [RunSpec("made-up", "kcl", seed, SMALL, 2, 52) for seed in range(3)]  # four batches of ten, none smaller
DIGITS = ["run", "permuted-digits", "--tasks", "2", "--train-per-task", "150", "--device", "cpu", "--threads", "1",
          "--set", "bases=16", "width=16", "coreset_size_per_class=3", "--quiet"]  # fmt: skip
ON = ["--compile", "on"]
LATER = Every(seconds=1e9, thrifty=False)


@pytest.fixture(autouse=True)
def _made_up_benchmark(make_dataset: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make_dataset(60)
    monkeypatch.setitem(BENCHMARKS, "made-up", Benchmark("for tests", lambda *_: dataset, PermutedPixels, 20))


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch, _draws_without_compiler: None) -> None:
    """No code is generated, so no C++ compiler is needed."""
    monkeypatch.setattr(torch_private, "compile_step", lambda traced, _: traced)
    for name in ("experiments.admission", "bench.step_time"):
        monkeypatch.setattr(f"kcl.{name}.need_compiler", lambda: None)


@pytest.fixture
def no_compiler() -> Iterator[None]:
    with inductor_config.patch({"cpp.cxx": (None, "no-such-compiler")}):
        yield


def _execute(path: Path, specs: list[RunSpec], run_options: RunOptions | None = None, **options: Any) -> list[Any]:
    experiment = Experiment(admit(specs, Compute(**options)), Folder(path, resume=True), run_options or RunOptions())
    for group in remaining_groups(experiment):
        train_group(experiment, group, lambda _: lambda _: None)
    return [json.loads(line) for line in (path / "results.jsonl").read_text().splitlines()]


def _lasting(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: record[name] for name in ("accuracy_matrix", "fingerprint", "precision", "memory")} for record in records
    ]


@pytest.mark.usefixtures("eager")
class TestTheLearner:
    @pytest.mark.parametrize(
        ("options", "compiled"),
        [
            ({}, None),
            ({"compiled": False}, None),
            ({"compiled": True}, True),
            ({"compiled": True, "precision": "bf16"}, True),
            ({"precision": "bf16"}, None),
        ],
        ids=str,
    )
    def test_is_a_stack_only_where_that_is_asked_for(
        self, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], compiled: bool | None
    ) -> None:
        """None: plain. However long runs are, nothing is compiled unasked."""
        monkeypatch.setattr("kcl.experiments.admission.LONG", 1)
        plan = admit(SPECS, Compute(**options))
        learner = build_learner([SPECS[:1]], [plan.stream(SPECS[0])], plan.compute, plan.compute.plain)
        assert learner.plain is (compiled is None)
        assert learner.compiled is (compiled is True)
        assert resuming.made_with(plan.compute)["precision"] == (
            options.get("precision", "float32") if compiled else "float32"
        )

    def test_has_one_training_however_many_are_wanted_at_once(self) -> None:
        plan = admit(SPECS, Compute(runs_at_once=3, compiled=True))
        groups = group_trainings(plan, by_training(plan.specs), default_size=2)
        assert [(group.specs, group.plain) for group in groups] == [([spec], False) for spec in plan.specs]

    @pytest.mark.parametrize("compute", [Compute(compiled=True), Compute(precision="bf16"), Compute()])
    def test_of_task_free_answers_too(self, monkeypatch: pytest.MonkeyPatch, compute: Compute) -> None:
        monkeypatch.setattr("kcl.experiments.admission.LONG", 1)
        kinds: list[Any] = []

        def noting(*arguments: Any) -> Any:
            kinds.append(build_learner(*arguments))
            return kinds[-1]

        monkeypatch.setattr(task_free, "build_learner", noting)
        rows = task_free.measure(SPECS[:2], compute, task_free.SampleCounts(held_out=10))
        assert [row["seed"] for row in rows] == [0, 1]
        assert [kind.compiled for kind in kinds] == [not kind.plain for kind in kinds] == [compute.compiled is True] * 2


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("options", [{"compiled": True}, {"compiled": True, "precision": "bf16"}], ids=str)
class TestRuns:
    def test_are_the_same_alone_and_beside_others(self, tmp_path: Path, options: dict[str, Any]) -> None:
        together = _execute(tmp_path / "all", SPECS[:2], runs_at_once=2, **options)
        assert [record["runs_at_once"] for record in together] == [1] * 2
        alone = [_execute(tmp_path / str(spec.seed), [spec], **options)[0] for spec in SPECS[:2]]
        assert _lasting(together) == _lasting(alone)
        assert {record["precision"] for record in together} == {options.get("precision", "float32")}

    def test_go_on_to_the_same_bits_wherever_they_were_stopped(
        self, tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected = _execute(tmp_path / "whole", SPECS[:2], **options)
        monkeypatch.setattr("kcl.training.step_progress.Watcher.one_more", _stopping(every=3))
        records, times = None, 0
        while records is None:
            stop = _stop[0] = Stop()
            try:
                records = _execute(tmp_path / "stopped", SPECS[:2], RunOptions(LATER, stop), **options)
            except Interrupted:
                times += 1
        assert times > 2
        assert _lasting(records) == _lasting(expected)


_stop = [Stop()]


def _stopping(every: int) -> Callable[[Any], None]:
    """A signal after so many steps, in whichever task and run they are."""
    from kcl.training.step_progress import Watcher

    whole, done = Watcher.one_more, [0]

    def one_more(self: Any) -> None:
        whole(self)
        done[0] += 1
        if done[0] % every == 0:
            _stop[0].signal = 15

    return one_more


@pytest.mark.usefixtures("eager")
def test_a_checkpoint_of_other_options_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcl.training.step_progress.Watcher.one_more", _stopping(every=2))
    stop = _stop[0] = Stop()
    with pytest.raises(Interrupted):
        _execute(tmp_path, SPECS[:1], RunOptions(LATER, stop), compiled=True)
    with pytest.raises(KclError, match="compiled was True and is None"):
        _execute(tmp_path, SPECS[:1])
    with pytest.raises(KclError, match="precision was float32 and is bf16"):
        _execute(tmp_path, SPECS[:1], compiled=True, precision="bf16")


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("kcl", {}),
        ("kcl", {"kernel": "linear"}),
        ("kcl", {"kernel": "rbf"}),
        ("kcl", {"soft_targets": 0.3}),
        ("kcl", {"optimizer": "muon"}),
        ("kcl", {"weight_average": 0.9}),
        ("a-gem", {}),
        ("ewc", {}),
        ("naive-sgd", {}),
    ],
    ids=str,
)
def test_the_traced_step_is_the_step(make_runs: Any, difference: Any, method: str, settings: dict[str, Any]) -> None:
    """Each parameter moved by itself or all together, scores from one product or by way of the weights."""
    runs = make_runs(method, tasks=2, split=method != "kcl", **settings)[[0]]
    plain, traced = runs.stacked(draws_as_compiled=True), runs.stacked(compiled=True)
    for index in range(2):
        for learner in (plain, traced):
            learner.learn(runs.tasks(index), lambda _: None)
    assert plain._trainer is not None
    assert traced._trainer is not None
    assert not plain._trainer.in_parts
    assert traced._trainer.in_parts == (
        method in ("kcl", "naive-sgd") and not {"optimizer", "weight_average"} & {*settings}
    )
    difference.assert_none(plain, traced, 2e-5)


@pytest.mark.usefixtures("eager")
def test_a_loss_that_is_not_finite_moves_no_parameter(make_runs: Any) -> None:
    runs = make_runs("kcl", tasks=2)[[0]]
    learner = runs.stacked(compiled=True)
    learner.learn(runs.tasks(0), lambda _: None)
    before = learner.state.flat.clone()
    learner.state.buffers["tau"].fill_(float("nan"))
    learner.learn(runs.tasks(1), lambda _: None)
    assert learner.diverged == [True]
    heads = sum(parameter.numel() for parameter in learner.models[0].head.parameters())
    assert (learner.state.flat != before).sum() <= heads  # which a task begins anew


@pytest.mark.usefixtures("eager")
def test_answers_do_not_come_from_bfloat16(make_runs: Any) -> None:
    """The weights that were trained in it give the very scores they give to one that never heard of it."""
    runs = make_runs("kcl", tasks=1)[[0]]
    arguments = runs.methods(), runs.backbones(), runs.seeds, "cpu", True
    rounded, exact = RunStack(*arguments, precision="bf16"), RunStack(*arguments, precision="float32")
    for learner in (rounded, exact):
        learner.learn(runs.tasks(0), lambda _: None)
    assert not torch.equal(rounded.state.flat, exact.state.flat)
    assert (rounded.state.flat - exact.state.flat).abs().max() < 0.05
    exact.state.load({"stack": rounded.state.saved()})
    exact.kept = rounded.kept
    assert torch.equal(rounded.scores(runs.tasks(0))[0], exact.scores(runs.tasks(0))[0])


@pytest.mark.usefixtures("no_compiler")
class TestWithoutACompiler:
    def test_one_sentence_says_so_and_nothing_is_written(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pytest.importorskip("sklearn")
        assert commands.main([*DIGITS, *ON, "--out", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert error.startswith("kcl: --compile on needs a C++ compiler")
        assert error.count("\n") == 1
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        "command",
        [["bench", "--steps", "20", "--device", "cpu", *ON], ["task-free", *DIGITS[1:-1], *ON]],
        ids=lambda case: case[0],
    )
    def test_so_do_other_commands(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
    ) -> None:
        pytest.importorskip("sklearn")
        monkeypatch.chdir(tmp_path)
        assert commands.main(command) == 2
        assert "needs a C++ compiler" in capsys.readouterr().err

    def test_what_needs_none_is_done(self, tmp_path: Path) -> None:
        assert len(_execute(tmp_path, SPECS[:1], precision="bf16")) == 1


ALONE = "KCL_TEST_ALONE"


def _compiler() -> bool:
    try:
        need_compiler()
    except KclError:
        return False
    return True


def _alone(request: pytest.FixtureRequest) -> bool:
    """Whether this is a process of its own, as a user has it; else the test is done in one: what other tests import can
    keep the compiler from working.
    """
    if ALONE not in os.environ:
        again = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", request.node.nodeid]
        done = subprocess.run(again, cwd=request.config.rootpath, env=os.environ | {ALONE: "1"}, timeout=300)
        assert done.returncode == 0
    return ALONE in os.environ


@pytest.mark.skipif(not _compiler(), reason="there is no C++ compiler")
@pytest.mark.parametrize(
    ("precision", "settings", "tolerance"),
    [("float32", {}, 1e-5), ("bf16", {"soft_targets": 0.3}, 2e-2)],
    ids=["vrf", "bf16 and learned targets"],
)
def test_the_generated_code_computes_the_step(
    request: pytest.FixtureRequest,
    make_runs: Any,
    difference: Any,
    precision: str,
    settings: dict[str, Any],
    tolerance: float,
) -> None:
    if not _alone(request):
        return
    runs = make_runs("kcl", tasks=1, samples=52, **settings)[[0]]
    plain, compiled = runs.stacked(draws_as_compiled=True), runs.stacked(compiled=True, precision=precision)
    for learner in (plain, compiled):
        learner.learn(runs.tasks(0), lambda _: None)
    assert not torch.equal(plain.state.flat, compiled.state.flat)  # or nothing was compiled
    difference.assert_none(plain, compiled, tolerance)


@pytest.mark.skipif(not _compiler(), reason="there is no C++ compiler")
def test_the_kernel_for_draws_equals_its_pytorch_twin(request: pytest.FixtureRequest) -> None:
    """Uniforms and what is kept to the bit, normals to their last digits; with any number of threads, and nothing is
    written beside them.
    """
    if not _alone(request):
        return
    for rows, size, step, first in ((1, 1, 0, 0), (3, 5, 1, 2), (2, 4096, 7, 0), (2, 4099, 119_999, 9),
                                    (5, 100_003, 2**31, 0), (1, 7, 2**32 - 1, 3)):  # fmt: skip
        keys = torch.randint(0, 2**32, (rows, 2), generator=torch.Generator().manual_seed(1))
        keys[0] = torch.tensor([2**32 - 1, 2**31])
        for kind in (philox.NORMAL, philox.UNIFORM, philox.KEPT):
            rates = torch.linspace(0.1, 0.9, rows) if kind == philox.KEPT else None
            dtype = torch.bool if kind == philox.KEPT else torch.float32
            expected = torch.empty(rows, size, dtype=dtype)
            philox.draw(expected, keys, torch.tensor([step]), kind, rates, first)
            around = torch.ones(rows + 1, size + 9, dtype=dtype)
            for threads in (1, 2):
                torch.set_num_threads(threads)
                around[:rows, :size] = 0
                philox.draw_cpp(around[:rows, :size], keys, torch.tensor([step]), kind, rates, first)
                if kind == philox.NORMAL:
                    torch.testing.assert_close(around[:rows, :size], expected, rtol=1e-5, atol=1e-5)
                else:
                    assert torch.equal(around[:rows, :size], expected)
                assert around[rows:].all()
                assert around[:, size:].all()
    with pytest.raises(ValueError, match="cannot draw into"):
        philox.draw_cpp(torch.empty(1, 4, dtype=torch.float64), keys, torch.tensor([0]), philox.NORMAL)
    with pytest.raises(ValueError, match="has rates"):
        philox.draw_cpp(torch.empty(1, 4, dtype=torch.bool), keys, torch.tensor([0]), philox.KEPT)
