"""`kcl bench` measures what it says, on a CPU, and runs nothing that lies in the current folder."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kcl.bench import answer_time, step_time
from kcl.cli.commands import main
from kcl.errors import KclError
from kcl.experiments.speeds import SPEEDS, TOGETHER
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.strong_recipe import strong_settings
from kcl.ops import draw_philox, torch_private
from kcl.training.stack import RunStack

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_rows_for_a_cpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["bench", "mnist", "--steps", "20", "--device", "cpu", "--threads", "1", "--json", "rows.json"]
    assert main(arguments) == 0
    written = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert [row["engine"] for row in written["rows"]] == ["plain loop", "bare SGD step", "kcl"]
    for row in written["rows"]:
        assert row["runs"] == 1
        assert row["ms_per_step"] == row["ms_per_run_step"] > 0
        assert row["times_reference"] > 0
    assert "ms/step" in capsys.readouterr().out
    assert written["command"].startswith("kcl bench mnist")


def test_the_step_compiled_for_a_cpu_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as it was traced: to generate code would take a C++ compiler."""
    traced: list[Any] = []
    monkeypatch.setattr(step_time, "need_compiler", lambda: None)
    monkeypatch.setattr(torch_private, "compile_step", lambda step, _: traced.append(step) or step)
    monkeypatch.setattr(draw_philox, "_on_cpu", [])
    monkeypatch.setitem(
        step_time.WORKS, "small", dataclasses.replace(step_time.WORKS["mnist"], settings=SMALL_SETTINGS)
    )
    arguments = ["bench", "small", "--steps", "20", "--device", "cpu", "--json", "rows.json", "--precision", "bf16"]
    for asked, engines in (("both", ["kcl", "kcl, compiled, bf16"]), ("on", ["kcl, compiled, bf16"])):
        assert main([*arguments, "--compile", asked]) == 0
        written = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
        assert [row["engine"] for row in written["rows"]] == ["plain loop", "bare SGD step", *engines]
        assert written["precision"] == "bf16"
    assert len(traced) == 2


def test_nothing_of_the_current_folder_is_run(tmp_path: Path) -> None:
    (tmp_path / "benches").mkdir()
    for name in ("benches/reference_loop.py", "reference_loop.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'harm')!r}, 'w').close()\n")
    assert main(["bench", "mnist", "--steps", "20", "--device", "cpu"]) == 0
    assert not (tmp_path / "harm").exists()


def test_unknown_work() -> None:
    with pytest.raises(KclError, match="cifar100"):
        list(step_time.measure(["mnits"], [1], "cpu", (False,)))


def test_bad_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--steps", "3"]) == 2
    assert capsys.readouterr().err.startswith("kcl: ")


SMALL_SETTINGS = KclSettings(bases=32, coreset_size_per_class=2)
SMALL = step_time.Work((3, 8, 8), 2, 0, SMALL_SETTINGS.replace(backbone="cifar-resnet", dropout=0.02))


def test_the_strong_recipe_is_measured_as_every_method_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the plain loop, which knows nothing of the recipe."""
    learned: list[Settings] = []

    def learn(stack: RunStack, *arguments: Any) -> None:
        learned.append(stack.method.settings)
        whole(stack, *arguments)

    whole = RunStack.learn
    monkeypatch.setattr(RunStack, "learn", learn)
    monkeypatch.setitem(step_time.WORKS, "small-strong", dataclasses.replace(SMALL, strong="split-cifar100"))
    rows = list(step_time.measure(["small-strong"], [1], "cpu", (False,), 2))
    assert [(row.engine, row.times_reference) for row in rows] == [("bare SGD step", None), ("kcl", None)]
    assert all(row.ms_per_step > 0 for row in rows)
    times = 1 + step_time.ROUNDS
    assert learned == [strong_settings("split-cifar100", own) for own in ("naive-sgd",) * times + ("kcl",) * times]


@pytest.mark.parametrize("name", [name for name, work in step_time.WORKS.items() if work.strong])
@pytest.mark.parametrize("method", ["kcl", "naive-sgd"])
def test_every_work_with_the_strong_recipe_can_be_built(name: str, method: str) -> None:
    learner = step_time._learner(step_time.WORKS[name], method, 1, "cpu", False, "float32")
    assert learner.plain
    stages = strong_settings(f"split-{name.removesuffix('-strong')}", method).feature_stages
    assert len(learner.models[0].backbone.parts) == stages


@pytest.fixture(autouse=True)
def _few_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_time, "ROUNDS", 2)


@pytest.fixture
def _few_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"coreset": ("coreset_size_per_class", (2, 3)), "bases": ("bases", (16,))}
    for name, values in (("SETTINGS", small), ("TASKS", (2,)), ("QUERIES", {"mnist": (1, 150), "cifar100": (1, 3)})):
        monkeypatch.setattr(answer_time, name, values)
    monkeypatch.setattr(answer_time, "WORKS", step_time.WORKS | {"cifar100": SMALL})
    monkeypatch.setattr(answer_time, "CALLS", 3)


@pytest.mark.usefixtures("_few_numbers")
def test_inference(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["bench", "inference", "--device", "cpu", "--json", "rows.json"]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]
    ways = [(table, way) for table in ("coreset", "bases") for way in ("plain", "uncollapsed", "collapsed", "backbone")]
    assert {(row["work"], row["table"], row["way"]) for row in rows} == {
        *(("mnist", *pair) for pair in ways),
        *(("cifar100", *pair) for pair in ways),
        ("mnist", "tasks", "named task"),
        *(("mnist", "tasks", way) for way in ("task inferred", "all classes, scores", "all classes, answer")),
    }
    assert {row["queries"] for row in rows if row["work"] == "cifar100"} == {1, 3}
    assert all(row["ms"] > 0 and (row["times_plain"] is None) == (row["table"] == "tasks") for row in rows)
    assert "task inferred" in capsys.readouterr().out


@pytest.mark.usefixtures("_few_numbers")
def test_inference_of_one_work_beside_the_plain_way() -> None:
    rows = list(answer_time.measure("cpu", ["cifar100"]))
    assert {row.work for row in rows} == {"cifar100"}
    times = {row.way: row for row in rows if (row.table, row.value, row.queries) == ("coreset", 3, 1)}
    assert list(times) == ["plain", "uncollapsed", "collapsed", "backbone"]
    assert times["collapsed"].times_plain == pytest.approx(times["plain"].ms / times["collapsed"].ms)


def test_inference_of_an_unknown_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "inference", "mnits"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("kcl: ")
    assert "'mnits'; known: mnist, cifar100" in message


@pytest.mark.parametrize("work", [step_time.WORKS["mnist"], SMALL], ids=["mlp", "resnet"])
def test_collapsed_and_uncollapsed_give_the_same_scores(work: step_time.Work) -> None:
    model = answer_time._Model(work, {"bases": 32, "coreset_size_per_class": 2}, 1, 5, "cpu")
    torch.testing.assert_close(
        model.answerer.logits(model.queries, 0), model.uncollapsed(model.queries), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("file", "work", "engine", "backbone"),
    [
        ("h200-mnist", "mnist", "kcl, compiled", "mlp"),
        ("h200-cifar100", "cifar100", "kcl", "cifar-resnet"),
        ("h200-miniimagenet", "miniimagenet", "kcl", "miniimagenet-resnet"),
    ],
)
def test_the_speeds_that_estimates_stand_on_are_those_measured(
    file: str, work: str, engine: str, backbone: str
) -> None:
    told = json.loads((ROOT / "benches" / "results" / f"{file}.json").read_text(encoding="utf-8"))["rows"]
    rows = {row["engine"]: row for row in told if (row["work"], row["runs"]) == (work, TOGETHER)}
    speed = SPEEDS[backbone]
    assert speed.kcl == round(rows[engine]["ms_per_step"], 3)
    assert speed.others == round(rows["bare SGD step"]["ms_per_step"], 3)
    assert speed.gigabytes == round(rows[engine]["peak_mib"] * 2**20 / 1e9, 1)
    made = step_time.WORKS[work]
    steps = (made.samples - made.settings.coreset_size_per_class * made.ways) // made.settings.batch_size
    assert speed.set_up == round(rows[engine]["first_task_s"] - steps * rows[engine]["ms_per_step"] / 1e3, 1)
