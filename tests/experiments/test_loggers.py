"""The loggers, told of a real run: what is written is what the results say."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kcl.cli.commands import main
from kcl.core.metrics import AccuracyMatrix
from kcl.core.results import read
from kcl.errors import KclError
from kcl.experiments.loggers import CsvLogger, Loggers, TensorBoardLogger

RUN = ["run", "permuted-digits", "--tasks", "2", "--train-per-task", "400", "--quiet", "--device", "cpu"]


def rows(out: Path) -> list[dict[str, str]]:
    with (out / "metrics.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_csv_file_is_always_written(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    arguments = [*RUN, "--seeds", "0,1", "--out", str(tmp_path)]
    assert main(arguments) == 0
    written = rows(tmp_path)
    assert [(row["run"], row["tasks_learned"], row["tasks"]) for row in written] == [
        ("kcl vrf seed 0", "1", "2"),
        ("kcl vrf seed 0", "2", "2"),
        ("kcl vrf seed 1", "1", "2"),
        ("kcl vrf seed 1", "2", "2"),
    ]
    for record, row in zip(read(tmp_path / "results.jsonl"), written[1::2], strict=True):
        assert float(row["average_accuracy"]) == record["average_accuracy"]
        assert float(row["forgetting"]) == record["forgetting"]
        assert float(row["accuracy_on_newest_task"]) == record["accuracy_matrix"][1][1]
    assert main([*arguments, "--resume"]) == 0
    assert rows(tmp_path) == written  # nothing was done again, and no second header


def test_multi_task_training_has_one_row(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    assert main([*RUN, "--method", "multi-task", "--out", str(tmp_path)]) == 0
    (row,) = rows(tmp_path)
    assert (row["tasks_learned"], row["forgetting"]) == ("2", "")


def test_tensorboard_gets_the_same_numbers(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert main([*RUN, "--log", "tensorboard", "--out", str(tmp_path)]) == 0
    (folder,) = (tmp_path / "tensorboard").iterdir()
    assert folder.name == "kcl-vrf-seed-0"
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    (record,) = read(tmp_path / "results.jsonl")
    averages = [AccuracyMatrix.from_lists(record["accuracy_matrix"]).average_accuracy_after(t) for t in range(2)]
    assert [(event.step, event.value) for event in events.Scalars("average_accuracy")] == [
        (task + 1, pytest.approx(average, rel=1e-6)) for task, average in enumerate(averages)
    ]
    assert len(events.Scalars("accuracy/task_00")) == 2


def test_weights_and_biases_offline(tmp_path: Path) -> None:
    """In a process of its own: wandb starts a service, and leaves settings behind in this one."""
    pytest.importorskip("sklearn")
    pytest.importorskip("wandb")
    own = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": "", "HOME": str(tmp_path / "home")}
    arguments = [*RUN, "--log", "wandb", "--seeds", "0,1", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "kcl", *arguments],
        env=os.environ | own, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "out" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    for file in files:
        content = file.read_bytes()
        for told in (b"average_accuracy", b"forgetting", b"coreset_size_per_class", b"kcl vrf seed"):
            assert told in content


def test_a_missing_package_is_told_before_anything_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(KclError, match=r"pip install \"kernel-continual-learning\[tensorboard\]\""):
        TensorBoardLogger(tmp_path)
    with pytest.raises(KclError, match="--log wandb needs wandb"):
        Loggers(tmp_path, ["wandb"])
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_cannot_be_written_is_told_of_once_and_the_runs_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CsvLogger, "task_learned", full)
    loud = [argument for argument in RUN if argument != "--quiet"]
    assert main([*loud, "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err.count("No space left on device") == 1
    assert len(read(tmp_path / "results.jsonl")) == 1
