"""The command line: the same numbers for the same seed, one clear line for every mistake, and Ctrl-C at any time."""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kcl
from command_line import Said, call
from kcl.benchmarks.registry import BENCHMARKS
from kcl.cli import commands, requested_runs, run_commands
from kcl.core.results import MOST_TASKS
from kcl.experiments import resuming
from kcl.methods.recipes import METHODS, published_settings
from kcl.methods.ridge_kernels import KERNELS

SMALL = ["--tasks", "2", "--train-per-task", "150", "--device", "cpu", "--threads", "1"]
SMALL_KCL = {"bases": 16, "width": 16, "coreset_size_per_class": 3}
SET = ["--set", *(f"{name}={value}" for name, value in SMALL_KCL.items())]
MEASURED = ("accuracy_matrix", "initial_accuracy", "average_accuracy", "forgetting", "learning_accuracy")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Call the command line in this process."""
    return functools.partial(call, capsys)


def _spawn(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    """The command line in a process of its own, as a person would call it."""
    environment = os.environ | {"PYTHONPATH": str(Path(kcl.__file__).parents[1])}
    command = [sys.executable, "-m", "kcl", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, **options)


def _records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def _numbers(out: Path) -> dict[Any, list[Any]]:
    return {record["seed"]: [record[name] for name in MEASURED] for record in _records(out)}


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is, so that a file written beside the output folder would be seen."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("KCL_CACHE", str(tmp_path / "cache"))


class TestRun:
    @pytest.fixture(autouse=True)
    def _needs_scikit_learn(self) -> None:
        pytest.importorskip("sklearn")

    @pytest.mark.parametrize("benchmark", ["permuted-digits", "rotated-digits"])
    @pytest.mark.parametrize("method", METHODS)
    def test_the_same_seed_gives_the_same_numbers_and_another_does_not(
        self, run: Any, tmp_path: Path, benchmark: str, method: str
    ) -> None:
        for name, seeds in (("one", "3"), ("two", "3"), ("other", "4")):
            chosen = SET if method == "kcl" else ["--set", "width=16"]
            command = ["run", benchmark, "--method", method, *SMALL, *chosen, "--seeds", seeds]
            said = run(*command, "--out", tmp_path / name)
            assert said.code == 0
        assert _numbers(tmp_path / "one") == _numbers(tmp_path / "two")
        assert _numbers(tmp_path / "one")[3] != _numbers(tmp_path / "other")[4]

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_every_kernel_runs_and_differs(self, run: Any, tmp_path: Path, kernel: str) -> None:
        out = tmp_path / "out"
        assert run("run", "permuted-digits", "--kernel", kernel, *SMALL, *SET, "--out", out).code == 0
        (record,) = _records(out)
        assert record["kernel"] == record["settings"]["kernel"] == kernel
        assert record["average_accuracy"] > 20.0  # twice what guessing gives

    def test_a_run_does_not_depend_on_the_runs_beside_it(self, run: Any, tmp_path: Path) -> None:
        together, alone, at_once = (tmp_path / name for name in ("together", "alone", "at-once"))
        assert run("run", "permuted-digits", *SMALL, *SET, "--seeds", "0,1,2", "--out", together).code == 0
        assert run("run", "permuted-digits", *SMALL, *SET, "--seeds", "1", "--out", alone).code == 0
        assert run("run", "permuted-digits", *SMALL, *SET, "--seeds", "0..2", "--runs-at-once", "3", "--out", at_once)
        assert [record["seed"] for record in _records(together)] == [0, 1, 2]
        assert _numbers(together)[1] == _numbers(alone)[1]
        assert _numbers(together) == _numbers(at_once)

    @pytest.mark.parametrize("method", METHODS)
    def test_a_result_holds_everything_about_its_run(self, run: Any, tmp_path: Path, method: str) -> None:
        out, tasks = tmp_path / "deep" / "out", 3
        changes = SMALL_KCL if method == "kcl" else {"width": 16}
        chosen = ["--set", *(f"{name}={value}" for name, value in changes.items())]
        arguments = ["run", "permuted-digits", "--method", method, *SMALL, *chosen, "--tasks", "3", "--seeds", "5"]
        assert run(*arguments, "--out", out).code == 0
        (record,) = _records(out)
        expected = published_settings("permuted-digits", method).replace(**changes)
        assert record["format"] == 1
        assert (record["benchmark"], record["method"], record["seed"]) == ("permuted-digits", method, 5)
        assert (record["tasks"], record["train_per_task"]) == (3, 150)
        assert record["settings"] == expected.to_dict()
        assert record["kernel"] == ("vrf" if method == "kcl" else None)
        assert record["versions"]["kcl"] == kcl.__version__
        assert record["versions"]["torch"] == torch.__version__
        assert record["versions"]["code"] == resuming.code()
        assert record["device"] == "cpu"
        assert record["seconds"] > 0.0
        assert record["diverged"] is False
        assert shlex.split(record["command"])[:4] == ["kcl", "run", "permuted-digits", "--method"]
        kept = {"kcl": 3 * 30, "multi-task": 3 * 150}
        kept |= dict.fromkeys(("a-gem", "er-reservoir", "er-ace", "der++"), 3 * 10)
        assert record["memory"]["samples"] == kept.get(method, 0)
        assert record["memory"]["bytes"] >= 64 * kept.get(method, 1)

        matrix = np.array(record["accuracy_matrix"], dtype=float)  # None becomes NaN
        assert matrix.shape == (tasks, tasks)
        measured = ~np.isnan(matrix)
        if METHODS[method].joint:  # tested once, when all tasks are learned
            assert measured.tolist() == [[False] * tasks] * (tasks - 1) + [[True] * tasks]
            assert record["average_accuracy"] == pytest.approx(matrix[-1].mean())
            undefined = ("forgetting", "learning_accuracy", "backward_transfer", "forward_transfer")
            assert [record[name] for name in undefined] == [None] * 4
            return
        for learned, task in itertools.product(range(tasks), repeat=2):
            if task <= learned:
                assert measured[learned, task]
            elif (
                task > learned + 1 or not METHODS[method].answers_unseen
            ):  # without its coreset a task has no classifier
                assert not measured[learned, task]
        assert (matrix[measured] >= 0.0).all()
        assert (matrix[measured] <= 100.0).all()
        final, diagonal = matrix[-1], matrix.diagonal()
        assert record["average_accuracy"] == pytest.approx(final.mean())
        assert record["learning_accuracy"] == pytest.approx(diagonal.mean())
        drops = [max(matrix[t, i] - final[i] for t in range(i, tasks - 1)) for i in range(tasks - 1)]
        assert record["forgetting"] == pytest.approx(np.mean(drops) / 100.0)
        assert record["backward_transfer"] == pytest.approx((final - diagonal)[:-1].mean() / 100.0)
        if not METHODS[method].answers_unseen:
            assert record["initial_accuracy"] is None
            assert record["forward_transfer"] is None
        else:
            gains = [matrix[i - 1, i] - record["initial_accuracy"][i] for i in range(1, tasks)]
            assert record["forward_transfer"] == pytest.approx(np.mean(gains) / 100.0)

    def test_memory_per_class_means_the_same_for_every_method_that_keeps_samples(
        self, run: Any, tmp_path: Path
    ) -> None:
        for method, kind in METHODS.items():
            if kind.memory_setting is not None:
                out = tmp_path / method
                arguments = ["run", "permuted-digits", "--method", method, *SMALL, "--memory-per-class", "3"]
                assert run(*arguments, "--tasks", "2", "--set", "width=16", "--out", out).code == 0
                (record,) = _records(out)
                assert record["memory"]["samples"] == 3 * 10 * 2
                assert record["settings"][kind.memory_setting] == 3

    def test_the_resolved_settings_are_saved_beside_the_results(self, run: Any, tmp_path: Path) -> None:
        out = tmp_path / "out"
        assert run("run", "permuted-digits", *SMALL, *SET, "--seeds", "0,1", "--out", out).code == 0
        saved = json.loads((out / "settings.json").read_text())
        assert [spec["seed"] for spec in saved["runs"]] == [0, 1]
        for spec, record in zip(saved["runs"], _records(out), strict=True):
            assert spec["settings"] == record["settings"]
            assert spec["benchmark"] == "permuted-digits"
        assert sorted(path.name for path in out.iterdir()) == [
            "metrics.csv",
            "report.html",
            "results.jsonl",
            "settings.json",
        ]

    def test_values_with_commas_are_tried_in_every_combination(self, run: Any, tmp_path: Path) -> None:
        out = tmp_path / "out"
        arguments = ["--set", "lr=0.05,0.1", "bases=8,16", "width=16", "--set", "coreset_size_per_class=3"]
        assert run("run", "permuted-digits", *SMALL, *arguments, "--seeds", "0,1", "--out", out).code == 0
        found = sorted((r["settings"]["lr"], r["settings"]["bases"], r["seed"]) for r in _records(out))
        assert found == sorted(itertools.product((0.05, 0.1), (8, 16), (0, 1)))

    def test_several_kernels_make_a_grid_too(self, run: Any, tmp_path: Path) -> None:
        out = tmp_path / "out"
        assert run("run", "permuted-digits", *SMALL, *SET, "--kernel", "linear,rbf", "--out", out).code == 0
        assert [record["kernel"] for record in _records(out)] == ["linear", "rbf"]

    def test_a_value_given_twice_is_refused_or_run_once(self, run: Any, tmp_path: Path) -> None:
        out = tmp_path / "out"
        said = run("run", "permuted-digits", *SMALL, *SET, "lr=0.1,0.1,0.10", "--out", out)
        assert said.code == 2 or len(_records(out)) == 1

    @pytest.mark.parametrize(("text", "seeds"), [("0..2", [0, 1, 2]), ("7", [7]), ("5, 0..1", [5, 0, 1])])
    def test_seeds_may_be_ranges(self, run: Any, tmp_path: Path, text: str, seeds: list[int]) -> None:
        out = tmp_path / "out"
        assert run("run", "permuted-digits", *SMALL, *SET, "--tasks", "1", "--seeds", text, "--out", out).code == 0
        assert [record["seed"] for record in _records(out)] == seeds

    def test_quiet_says_nothing(self, run: Any, tmp_path: Path) -> None:
        said = run("run", "permuted-digits", *SMALL, *SET, "--quiet", "--out", tmp_path / "out")
        assert said == Said(0, "", "")
        assert len(_records(tmp_path / "out")) == 1

    def test_where_there_is_no_terminal_it_speaks_in_lines(self, run: Any, tmp_path: Path) -> None:
        """Progress on standard error, a line a task; the table and where the results are on standard output."""
        said = run("run", "permuted-digits", *SMALL, *SET, "--out", tmp_path / "out")
        lines = said.err.splitlines()
        assert [bool(re.search(rf"task {n} of 2 learned", line)) for n, line in enumerate(lines, 1)] == [True, True]
        assert "\r" not in said.err
        average = _records(tmp_path / "out")[0]["average_accuracy"]
        assert f"{average:.2f}" in said.err.replace(",", ".") or f"{average:.1f}" in said.out
        assert str(tmp_path / "out" / "results.jsonl") in said.out

    def test_without_a_folder_every_choice_but_the_seeds_has_one(self, run: Any) -> None:
        command = ["run", "permuted-digits", "--method", "naive-sgd", *SMALL, "--quiet", "--set", "width=16"]
        kept = []
        for more in ([], ["--seeds", "0..1"], ["--method", "ewc"], ["lr=0.07,0.05"], ["--resume"]):
            assert run(*command, *more).code == 0
            kept.append(sorted(len(_records(folder)) for folder in Path("runs").iterdir()))
        assert kept == [[1], [2], [1, 2], [1, 2, 2], [1, 2, 2]]

    def test_the_names_of_folders_are_short_enough_and_differ(self) -> None:
        many = [f"{name}=0.1,0.01,0.001,0.0001" for name in ("lr", "momentum", "dropout", "lr_decay", "muon_lr", "tau")]
        folders = set()
        for chosen in ([], ["--ways", "3-15/20"], ["--tasks", "2"], ["--set", *many], ["--set", *many, "epochs=2"]):
            folder = requested_runs.default_out(commands.parse(["run", "split-cifar100", *chosen]))
            assert folder.parent == Path("runs")
            assert len(folder.name) < 200
            folders.add(folder)
        assert len(folders) == 5
        assert Path("runs/split-cifar100-kcl") in folders

    def test_a_run_that_diverges_is_recorded_as_such(self, run: Any, tmp_path: Path) -> None:
        """Its metrics are missing, not made up, and the file can be read again."""
        out = tmp_path / "out"
        arguments = ["run", "permuted-digits", "--method", "naive-sgd", *SMALL, "--set", "lr=1e30", "--out", out]
        assert run(*arguments).code == 1
        (record,) = _records(out)
        assert record["diverged"] is True
        assert record["average_accuracy"] is None
        assert record["forgetting"] is None
        assert run(*arguments, "--resume").code == 1
        assert len(_records(out)) == 1


class TestResume:
    @pytest.fixture(autouse=True)
    def _needs_scikit_learn(self) -> None:
        pytest.importorskip("sklearn")

    COMMAND = ("run", "permuted-digits", *SMALL, *SET)

    def test_results_are_not_overwritten_unless_asked(self, run: Any, tmp_path: Path) -> None:
        out = tmp_path / "out"
        assert run(*self.COMMAND, "--out", out).code == 0
        before = {path.name: path.read_bytes() for path in out.iterdir()}
        said = run(*self.COMMAND, "--seeds", "1", "--out", out)
        assert said.code == 2
        assert said.err.startswith("kcl: ")
        assert "--resume" in said.err
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before

    def test_what_is_finished_is_not_done_again(self, run: Any, tmp_path: Path) -> None:
        out, whole = tmp_path / "out", tmp_path / "whole"
        assert run(*self.COMMAND, "--seeds", "1", "--out", out).code == 0
        (line,) = (out / "results.jsonl").read_bytes().splitlines()
        said = run(*self.COMMAND, "--seeds", "0,1,2", "--out", out, "--resume")
        assert said.code == 0
        assert "1 of 3 runs" in said.err
        assert (out / "results.jsonl").read_bytes().splitlines()[0] == line
        assert run(*self.COMMAND, "--seeds", "0,1,2", "--out", whole).code == 0
        assert _numbers(out) == _numbers(whole)
        assert len(_records(out)) == 3
        before = (out / "results.jsonl").read_bytes()
        assert run(*self.COMMAND, "--seeds", "0,1,2", "--out", out, "--resume").code == 0
        assert (out / "results.jsonl").read_bytes() == before

    def test_other_settings_are_other_runs(self, run: Any, tmp_path: Path) -> None:
        out = tmp_path / "out"
        assert run(*self.COMMAND, "--out", out).code == 0
        assert run(*self.COMMAND, "lr=0.07", "--out", out, "--resume").code == 0
        assert [record["settings"]["lr"] for record in _records(out)] == [0.1, 0.07]

    def test_a_folder_without_results_needs_nothing_said(self, run: Any, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "notes.txt").write_text("mine")
        assert run(*self.COMMAND, "--out", tmp_path / "out").code == 0
        assert (tmp_path / "out" / "notes.txt").read_text() == "mine"

    def test_a_line_torn_by_a_crash_is_done_again(self, run: Any, tmp_path: Path) -> None:
        out = tmp_path / "out"
        assert run(*self.COMMAND, "--seeds", "0,1", "--out", out).code == 0
        expected, content = _numbers(out), (out / "results.jsonl").read_bytes()
        (out / "results.jsonl").write_bytes(content[:-200])
        assert run(*self.COMMAND, "--seeds", "0,1", "--out", out, "--resume").code == 0
        assert _numbers(out) == expected
        assert len(_records(out)) == 2

    def test_results_that_cannot_be_read_are_left_alone(self, run: Any, tmp_path: Path) -> None:
        out = tmp_path / "out"
        out.mkdir()
        (out / "results.jsonl").write_text("not json\n{}\n")
        said = run(*self.COMMAND, "--out", out, "--resume")
        assert said.code == 2
        assert said.err.startswith("kcl: ")
        assert "results.jsonl, line 1" in said.err
        assert (out / "results.jsonl").read_text() == "not json\n{}\n"
        assert [path.name for path in out.iterdir()] == ["results.jsonl"]


DIGITS = ["permuted-digits", *SMALL, "--train-per-task", "400"]
MISTAKES = {
    "unknown benchmark": (["permuted-mnits"], "permuted-mnist"),
    "unknown method": ([*DIGITS, "--method", "naive"], "naive-sgd"),
    "unknown kernel": ([*DIGITS, "--kernel", "vfr"], "vrf"),
    "unknown kernel among others": ([*DIGITS, "--kernel", "rbf,gauss"], "gauss"),
    "unknown setting": ([*DIGITS, "--set", "learningrate=1"], "learningrate"),
    "setting of another method": ([*DIGITS, "--method", "naive-sgd", "--set", "bases=64,128"], "naive-sgd"),
    "setting out of range": ([*DIGITS, "--set", "dropout=1"], "dropout"),
    "setting of another type": ([*DIGITS, "--set", "bases=many"], "bases"),
    "setting that is not finite": ([*DIGITS, "--set", "lr=nan"], "lr"),
    "setting too large": ([*DIGITS, "--set", "bases=" + "9" * 400], "bases"),
    "setting without a value": ([*DIGITS, "--set", "bases="], "bases"),
    "setting without an equals sign": ([*DIGITS, "--set", "bases"], "NAME=VALUE"),
    "setting given twice": ([*DIGITS, "--set", "bases=8", "bases=9"], "bases"),
    "kernel given twice": ([*DIGITS, "--kernel", "rbf", "--set", "kernel=vrf"], "kernel"),
    "kernel for a method without one": ([*DIGITS, "--method", "naive-sgd", "--kernel", "rbf"], "naive-sgd"),
    "memory for a method without one": ([*DIGITS, "--method", "ewc", "--memory-per-class", "2"], "ewc"),
    "memory given twice": ([*DIGITS, "--memory-per-class", "2", "--set", "coreset_size_per_class=3"], "twice"),
    "memory of nothing": ([*DIGITS, "--method", "a-gem", "--memory-per-class", "0"], "memory_per_class"),
    "memory larger than a task": ([*DIGITS, "--method", "er-reservoir", "--memory-per-class", "401"], "smaller"),
    "no tasks": ([*DIGITS, "--tasks", "0"], "tasks"),
    "more tasks than a result holds": ([*DIGITS, "--tasks", str(MOST_TASKS + 1)], str(MOST_TASKS)),
    "fewer than no tasks": ([*DIGITS, "--tasks", "-3"], "tasks"),
    "no training samples": ([*DIGITS, "--train-per-task", "0"], "train"),
    "more training samples than there are": ([*DIGITS, "--train-per-task", "100000"], "1442"),
    "more coreset than data": ([*DIGITS, "--set", "coreset_size_per_class=1000"], "coreset_size_per_class"),
    "seeds that are no numbers": ([*DIGITS, "--seeds", "one"], "seeds"),
    "a negative seed": ([*DIGITS, "--seeds=-1"], "seeds"),
    "a seed with a fraction": ([*DIGITS, "--seeds", "0.5"], "seeds"),
    "no seeds": ([*DIGITS, "--seeds", ""], "seeds"),
    "a gap between seeds": ([*DIGITS, "--seeds", "0,,1"], "seeds"),
    "seeds backwards": ([*DIGITS, "--seeds", "3..1"], "seeds"),
    "an open range of seeds": ([*DIGITS, "--seeds", "0.."], "seeds"),
    "a seed given twice": ([*DIGITS, "--seeds", "0,1,0"], "seeds"),
    "a seed too large to be kept": ([*DIGITS, "--seeds", "9" * 30], "seeds"),
    "no threads": ([*DIGITS, "--threads", "0"], "threads"),
    "no runs at once": ([*DIGITS, "--runs-at-once", "0"], "runs-at-once"),
    "a data folder for bundled data": ([*DIGITS, "--data-dir", "."], "--data-dir"),
    "a data folder that is not there": (["permuted-mnist", "--data-dir", "nowhere"], "nowhere"),
}


def _one_line(said: Said) -> str:
    """The message of a mistake: exit code 2, one line on standard error, nothing else."""
    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith("kcl: ")
    assert said.err.endswith("\n")
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    return said.err


class TestMistakes:
    @pytest.fixture(autouse=True)
    def _needs_scikit_learn(self) -> None:
        pytest.importorskip("sklearn")

    @pytest.mark.parametrize("which", MISTAKES)
    def test_gives_one_line_and_leaves_nothing_behind(self, run: Any, tmp_path: Path, which: str) -> None:
        arguments, word = MISTAKES[which]
        assert word in _one_line(run("run", *arguments, "--out", tmp_path / "out"))
        assert not (tmp_path / "out").exists()
        assert list(Path.cwd().iterdir()) == []

    def test_in_a_process_of_its_own(self, tmp_path: Path) -> None:
        process = _spawn("run", *DIGITS, "--kernel", "vfr", "--out", tmp_path / "out", stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=60)
        assert "vrf" in _one_line(Said(process.returncode, out, err))
        assert not (tmp_path / "out").exists()

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
    def test_a_gpu_where_there_is_none(self, run: Any, tmp_path: Path) -> None:
        assert "CUDA" in _one_line(run("run", *DIGITS, "--device", "cuda", "--out", tmp_path / "out"))
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("below", [".", "deeper", "deeper/still"])
    def test_a_file_where_the_folder_should_be(self, run: Any, tmp_path: Path, below: str) -> None:
        (tmp_path / "file").write_text("mine")
        message = _one_line(run("run", *DIGITS, *SET, "--out", tmp_path / "file" / below))
        assert str(tmp_path / "file") in message
        assert (tmp_path / "file").read_text() == "mine"

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is forbidden to root")
    def test_a_folder_that_may_not_be_written(self, run: Any, tmp_path: Path) -> None:
        (tmp_path / "locked").mkdir(mode=0o500)
        assert "locked" in _one_line(run("run", *DIGITS, *SET, "--out", tmp_path / "locked" / "out"))

    def test_a_data_file_that_is_not_what_it_should_be(self, run: Any, tmp_path: Path) -> None:
        raw = tmp_path / "data" / "MNIST" / "raw"
        raw.mkdir(parents=True)
        for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
            (raw / f"{name}-ubyte.gz").write_bytes(gzip.compress(b"\x00\x00\x08\x03" + bytes(100)))
        before = {path.name: path.read_bytes() for path in raw.iterdir()}
        said = run("run", "permuted-mnist", "--data-dir", tmp_path / "data", "--out", tmp_path / "out")
        assert "-ubyte" in _one_line(said)
        assert {path.name: path.read_bytes() for path in raw.iterdir()} == before  # the user's folder is only read
        assert not (tmp_path / "out").exists()

    @pytest.mark.data
    @pytest.mark.parametrize("damage", ["truncated", "one byte", "not compressed", "empty"])
    def test_a_damaged_file_of_real_data(self, run: Any, tmp_path: Path, data_dir: Path, damage: str) -> None:
        raw = tmp_path / "data" / "MNIST" / "raw"
        raw.mkdir(parents=True)
        for path in (data_dir / "MNIST" / "raw").glob("*-ubyte*"):
            (raw / path.name).symlink_to(path)
        broken = next(raw.glob("t10k-labels*"))
        content = bytearray(broken.read_bytes())
        broken.unlink()
        content[len(content) // 2] ^= 0xFF
        damaged = {"truncated": content[:-50], "one byte": content, "not compressed": b"hello" * 50, "empty": b""}
        broken.write_bytes(bytes(damaged[damage]))
        said = run("run", "permuted-mnist", "--data-dir", tmp_path / "data", "--out", tmp_path / "out")
        assert broken.name in _one_line(said)
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        "arguments",
        [
            [],
            ["no-such-command"],
            ["run"],
            ["run", *DIGITS, "--tasks", "two"],
            ["run", *DIGITS, "--device", "tpu"],
            ["run", *DIGITS, "--no-such-option"],
            ["run", *DIGITS, "--train-per-task", "1.5"],
            ["list", "nonsense"],
            ["data"],
        ],
        ids=" ".join,
    )
    def test_a_command_that_cannot_be_parsed_shows_its_usage(self, run: Any, arguments: list[str]) -> None:
        said = run(*arguments)
        assert said.code == 2
        assert said.out == ""
        assert said.err.splitlines()[-1].startswith("kcl")
        assert "Traceback" not in said.err
        assert list(Path.cwd().iterdir()) == []

    def test_an_unknown_dataset(self, run: Any) -> None:
        for verb in ("fetch", "verify"):
            assert "mnist" in _one_line(run("data", verb, "mnits"))


@pytest.mark.skipif(os.name != "posix", reason="signals as Unix has them")
def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(run: Any, tmp_path: Path) -> None:
    """Three runs of about a second; stopped when the first is kept, continued by the command that is printed."""
    pytest.importorskip("sklearn")
    out, whole = tmp_path / "with space", tmp_path / "whole"
    command = ["run", "permuted-digits", *SMALL, "--train-per-task", "1000", *SET, "epochs=2", "--seeds", "0,1,2"]
    process = _spawn(*command, "--out", out, stderr=subprocess.PIPE)
    try:
        until = time.monotonic() + 90.0
        while not ((out / "results.jsonl").exists() and (out / "results.jsonl").read_text().endswith("\n")):
            assert process.poll() is None, "it ended before it was stopped"
            assert time.monotonic() < until, "no run was finished in time"
            time.sleep(0.01)
        time.sleep(0.1)  # into the second run
        process.send_signal(signal.SIGINT)
        printed, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert printed == ""
    kept = (out / "results.jsonl").read_bytes()
    count = len(kept.splitlines())
    assert count in (1, 2)
    last = err.splitlines()[-1]
    assert last.startswith(f"kcl: stopped; {count} of 3 runs are finished")
    again = shlex.split(last.partition("to continue: ")[2])
    assert again[0] == "kcl"
    assert again[-1] == "--resume"

    assert run(*again[1:]).code == 0
    assert (out / "results.jsonl").read_bytes().startswith(kept)
    assert run(*command, "--out", whole).code == 0
    assert _numbers(out) == _numbers(whole)
    assert sorted(_numbers(out)) == [0, 1, 2]


def _interrupt(*arguments: Any, **options: Any) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_while_a_run_is_being_kept_counts_it_rightly(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is said to be kept is what the file holds."""
    pytest.importorskip("sklearn")
    out, sync = tmp_path / "out", os.fsync

    def interrupted(descriptor: int) -> None:
        sync(descriptor)
        if (out / "results.jsonl").exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    said = run("run", "permuted-digits", *SMALL, *SET, "--seeds", "0,1", "--out", out)
    assert said.code == 130
    kept = (out / "results.jsonl").read_text().count("\n")
    assert f"stopped; {kept} of 2 runs are finished" in said.err
    monkeypatch.setattr(os, "fsync", sync)
    assert run("run", "permuted-digits", *SMALL, *SET, "--seeds", "0,1", "--out", out, "--resume").code == 0
    assert sorted(record["seed"] for record in _records(out)) == [0, 1]


def test_ctrl_c_before_the_first_run_leaves_nothing(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcl.data.digits._read", _interrupt)
    said = run("run", "permuted-digits", *SMALL, *SET, "--out", tmp_path / "out")
    assert said == Said(130, "", "kcl: stopped\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.name != "posix", reason="a terminal as Unix has it")
def test_on_a_terminal_it_draws_a_live_bar(tmp_path: Path) -> None:
    """Task, batch, loss, accuracy and the time left, redrawn in place."""
    import pty
    import termios

    pytest.importorskip("sklearn")
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 120))
    try:
        process = _spawn("run", "permuted-digits", *SMALL, *SET, "epochs=5", "--out", tmp_path / "out", stderr=theirs)
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how Linux says that the other end was closed
                break
            if not part:
                break
            shown += part
        process.communicate(timeout=30)
    finally:
        os.close(ours)
    assert process.returncode == 0
    text = shown.decode()
    assert "\r" in text
    for part in (r"task \d/2", r"batch \d+/\d+", r"loss \d", r"accuracy", r"\d\d:\d\d<"):
        assert re.search(part, text), part


class TestLists:
    @pytest.mark.parametrize(
        ("what", "names"),
        [
            ("benchmarks", BENCHMARKS),
            ("methods", METHODS),
            ("kernels", KERNELS),
        ],
    )
    def test_there_is_one_line_for_each(self, run: Any, what: str, names: Any) -> None:
        said = run("list", what)
        assert said.code == 0
        assert said.err == ""
        assert [line.split()[0] for line in said.out.splitlines()] == list(names)
        assert all(len(line.split()) > 1 for line in said.out.splitlines())

    def test_settings_stand_below_the_methods_that_have_them(self, run: Any) -> None:
        said = run("list", "settings")
        assert (said.code, said.err) == (0, "")
        listed: dict[str, list[str]] = {}
        for line in said.out.splitlines():
            if line.startswith("  "):
                assert len(line.split()) > 1
                listed[heading].append(line.split()[0])
            else:
                heading = line.removesuffix(":")
                listed[heading] = []
        assert next(iter(listed)) == "every method"
        for method, kind in METHODS.items():
            named = [name for heading, names in listed.items() if method in heading.split(", ") for name in names]
            assert sorted([*listed["every method"], *named]) == sorted(kind.settings_type.names())

    def test_the_published_names_are_there(self) -> None:
        """People script against these."""
        assert {"permuted-mnist", "rotated-mnist", "permuted-digits", "rotated-digits"} <= set(BENCHMARKS)
        methods = {"kcl", "naive-sgd", "stable-sgd", "ewc", "a-gem", "er-reservoir", "multi-task"}
        assert methods <= set(METHODS)
        kernels = {"vrf", "vrf-uninformative", "rff", "linear", "polynomial", "rbf", "laplacian"}
        assert kernels <= set(KERNELS)

    def test_data_says_where_and_how_large_and_under_which_licence(self, run: Any) -> None:
        said = run("data", "list")
        assert said.code == 0
        for word in ("mnist", "digits", "licence", "size", "where"):
            assert word in said.out

    def test_the_version(self, run: Any) -> None:
        said = run("--version")
        assert said.code == 0
        assert kcl.__version__ in said.out
        assert torch.__version__ in said.out

    def test_help_is_there_for_every_command(self, run: Any) -> None:
        for command in ([], *([name] for name in commands.COMMANDS)):
            said = run(*command, "--help")
            assert said.code == 0
            assert "usage: kcl" in said.out

    def test_the_options_of_run_stand_under_headings_with_examples(self, run: Any) -> None:
        text = run("run", "--help").out
        headings = ("what to run:", "settings:", "where and how fast:", "output:", "saving:", "examples:")
        places = [text.index(f"\n{heading}") for heading in headings]
        assert places == sorted(places)
        assert text.count("\n  kcl run ") >= 2

    def test_help_and_mistakes_do_not_wait_for_pytorch(self) -> None:
        """In a process of its own, as this one has PyTorch loaded already."""
        light = [["--help"], *([name, "--help"] for name in commands.COMMANDS)]
        code = f"""import sys
from kcl.cli import commands
for arguments in {[*light, ["run"], ["run", "permuted-mnist", "--bogus"], ["nothing"]]!r}:
    try: commands.parse(arguments)
    except SystemExit: pass
options = commands.parse(["run", "permuted-mnist", "--seeds", "0..4", "--device", "cpu"])
sys.exit("torch" in sys.modules or options.benchmark != "permuted-mnist")"""
        environment = os.environ | {"PYTHONPATH": str(Path(kcl.__file__).parents[1])}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def test_bundled_data_can_be_verified(self, run: Any) -> None:
        pytest.importorskip("sklearn")
        assert run("data", "verify", "digits").code == 0
        assert run("data", "fetch", "digits").code == 0


def test_the_demonstration_leaves_table_figure_and_page(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In small, on the digits; and a second call does nothing twice."""
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    for name, value in (("BENCHMARK", "permuted-digits"), ("TASKS", 2), ("TRAIN_PER_TASK", 300), ("SEEDS", (0, 1))):
        monkeypatch.setattr(run_commands, f"DEMO_{name}", value)
    out = tmp_path / "demo"
    said = run("demo", "--out", out, "--threads", "1")
    assert said.code == 0
    assert "naive" in said.out.lower()
    assert {record["method"] for record in _records(out)} == {"kcl", "naive-sgd"}
    assert len(_records(out)) == 4
    figure = re.search(r"figure:\s+(\S.*)", said.out)
    page = re.search(r"page:\s+(\S.*)", said.out)
    assert figure is not None
    assert page is not None
    assert Path(figure[1]).stat().st_size > 0
    assert "<html" in Path(page[1]).read_text()
    before = (out / "results.jsonl").read_bytes()
    assert run("demo", "--out", out, "--quiet") == Said(0, "", "")
    assert (out / "results.jsonl").read_bytes() == before


@pytest.mark.data
def test_on_real_digits_it_forgets_less_than_a_third_of_what_naive_sgd_forgets(
    run: Any, tmp_path: Path, data_dir: Path
) -> None:
    """Permuted MNIST in small: five tasks of 1,000 training samples, published settings, mean of two seeds.

    At this size naive SGD forgets about 0.09 and KCL about 0.005. The claim itself is made at 5,000 samples and three
    seeds (`kcl demo`), and that is where it has to be measured: this test keeps it from breaking unnoticed.
    """
    forgetting = {}
    for method in ("kcl", "naive-sgd"):
        arguments = ["run", "permuted-mnist", "--method", method, "--tasks", "5", "--train-per-task", "1000"]
        options = ["--seeds", "0,1", "--device", "cpu", "--threads", "1", "--quiet", "--data-dir", data_dir]
        assert run(*arguments, *options, "--out", tmp_path / method).code == 0
        records = _records(tmp_path / method)
        assert all(record["learning_accuracy"] > 60.0 for record in records)  # what is not learned is not forgotten
        forgetting[method] = sum(record["forgetting"] for record in records) / 2
    assert forgetting["kcl"] < forgetting["naive-sgd"] / 3.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lr", "0.1"], "--set lr=0.1"),
        (["--batch-size=5"], "--set batch_size=5"),
        (["--learning-rate", "0.1"], "--set lr=0.1"),
        (["--set", "learning_rate=0.1"], " lr"),
    ],
    ids=str,
)
def test_a_setting_under_another_name_is_recognised(run: Any, arguments: list[str], words: str) -> None:
    said = run("run", "permuted-digits", *SMALL, *arguments)
    assert said.code == 2
    assert words in said.err
    assert said.err.count("\n") == 1


def test_ways_that_go_downwards(run: Any) -> None:
    said = run("run", "split-cifar100", "--ways", "15-3")
    assert said.code == 2
    assert "3-15" in said.err.replace("15-3", "")


def test_a_run_that_only_diverged_fails_and_bf16_without_effect_is_named(run: Any, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    out = ["--out", tmp_path / "out", "--set", "lr=1e30", *SET[1:]]
    said = run("run", "permuted-digits", *SMALL, "--precision", "bf16", *out)
    assert said.code == 1
    assert "bf16" in said.err.splitlines()[0]


def test_a_demonstration_that_is_stopped_names_the_command_to_continue_it(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no --resume, because it always keeps what is finished."""
    pytest.importorskip("sklearn")
    monkeypatch.setattr(run_commands, "DEMO_BENCHMARK", "permuted-digits")
    monkeypatch.setattr(run_commands, "DEMO_TRAIN_PER_TASK", 300)
    monkeypatch.setattr("kcl.cli.execution.train_groups", _interrupt)
    said = run("demo", "--out", tmp_path / "demo", "--threads", "1")
    assert said.code == 130
    assert said.err.endswith(f"to continue: kcl demo --out {tmp_path / 'demo'} --threads 1\n")
