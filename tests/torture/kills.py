"""SIGKILL at random moments and before single file operations: what is killed and gone on with, again and again, must
end as if never touched. Runs, searches and models that learn lesson by lesson.

Each attempt is a process of its own, forked from one that has everything imported already.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kcl.cli import commands
from kcl.models import model_folder

METHODS = ("kcl", "er-reservoir", "ewc")
LASTING = ("seed", "accuracy_matrix", "initial_accuracy", "diverged", "memory", "fingerprint")

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "shutil.rmtree")


class Kills(NamedTuple):
    kills: int
    finished: int
    """Commands that came to their end, each after some kills."""
    resumed: int
    """How often a run went on from a checkpoint and came as far as the next, over all of them."""


def torture(folder: Path, kills: int, seed: int = 0, methods: tuple[str, ...] = METHODS) -> dict[str, Kills]:
    """Kill `kills` times in all, shared out between the methods; AssertionError if any result differs in any bit."""
    randomness, seen = random.Random(seed), {}
    torch.set_num_threads(1)  # more would not outlive a fork
    for place, method in enumerate(methods):
        share = kills // len(methods) + (place < kills % len(methods))
        seen[method] = _torture_one(folder / method, method, share, randomness)
    return seen


def _torture_one(folder: Path, method: str, kills: int, randomness: random.Random) -> Kills:
    folder.mkdir(parents=True)
    command = ["run", "permuted-digits", "--method", method, "--tasks", "3", "--train-per-task", "400",
               "--seeds", "0,1", "--device", "cpu", "--threads", "1",
               "--set", "width=32", "epochs=2", *(["bases=64"] if method == "kcl" else [])]  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        commands.main([*command, "--quiet", "--out", str(folder / "here")])  # imports what is imported late
    begun = time.monotonic()
    assert _attempt([*command, "--out", str(folder / "whole")], folder / "log") == 0, (folder / "log").read_text()
    takes = time.monotonic() - begun
    expected = _lasting(folder / "whole")
    assert expected == _lasting(folder / "here")
    done, finished, resumed = 0, 0, 0
    while done < kills:
        out = folder / str(finished)
        while True:
            every = str(randomness.choice([1, 7, 40]))
            arguments = [*command, "--checkpoint-every", every, "--out", str(out), "--resume"]
            code = _attempt(arguments, folder / "log", _moment(randomness, 0.5 * takes, 60) if done < kills else None)
            if code != -signal.SIGKILL:
                break
            done += 1
        assert code == 0, (folder / "log").read_text()
        assert _lasting(out) == expected, f"{out} differs from the run that was never touched"
        left = sorted(path.name for path in out.iterdir())
        assert left == ["metrics.csv", "report.html", "results.jsonl", "settings.json"], left
        resumed += sum(record["resumed"] for record in _records(out))
        finished += 1
    return Kills(done, finished, resumed)


def _records(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def _lasting(out: Path) -> list[dict[str, object]]:
    return [{name: record[name] for name in LASTING} for record in _records(out)]


class Moment(NamedTuple):
    """When a process is killed: after some seconds, or right before it changes the file system for the nth time."""

    seconds: float | None = None
    change: int | None = None


def _moment(randomness: random.Random, seconds: float, changes: int) -> Moment:
    if randomness.random() < 0.5:
        return Moment(seconds=randomness.uniform(0.0, seconds))
    return Moment(change=randomness.randint(1, changes))


def _attempt(arguments: list[str], log: Path, moment: Moment | None = None) -> int:
    """The command in a process of its own; its exit code, negative if a signal ended it."""
    moment = moment or Moment()
    child = os.fork()
    if child == 0:
        code = 70
        with contextlib.suppress(BaseException), log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            if moment.change is not None:
                _die_before_change(moment.change)
            code = commands.main(arguments)
        os._exit(code)
    if moment.seconds is not None:
        time.sleep(moment.seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _die_before_change(number: int) -> None:
    left = [number]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            changes = isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        else:
            changes = event in CHANGES
        if changes:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def torture_search(folder: Path, kills: int, seed: int = 0) -> Kills:
    """`kcl tune`, killed and resumed: the same trials and the same winner."""
    randomness = random.Random(seed)
    folder.mkdir(parents=True)
    command = ["tune", "permuted-digits", "--tasks", "1", "--train-per-task", "200", "--device", "cpu", "--threads=1",
               "--set", "width=16", "bases=16", "epochs=1", "coreset_size_per_class=3", "--search", "lr=0.001..1:log",
               "dropout=0..0.9", "--first", "1", "--trials", "14", "--trials-at-once", "3", "--final-seeds", "none",
               "--quiet"]  # fmt: skip
    begun = time.monotonic()
    assert _attempt([*command, "--out", str(folder / "whole")], folder / "log") == 0, (folder / "log").read_text()
    takes, expected = time.monotonic() - begun, _search(folder / "whole")
    done = finished = resumed = 0
    while done < kills:
        out, before = folder / str(finished), done
        while True:
            moment = _moment(randomness, 0.5 * takes, 150) if done < kills else None
            code = _attempt([*command, "--out", str(out), "--resume"], folder / "log", moment)
            if code != -signal.SIGKILL:
                break
            done += 1
        assert code == 0, (folder / "log").read_text()
        assert _search(out) == expected, f"{out} differs from the search that was never touched"
        resumed += done - before
        finished += 1
    return Kills(done, finished, resumed)


def _search(out: Path) -> list[object]:
    content = json.loads((out / "tuning.json").read_text())
    return [content["trials"], content["best"]]


def torture_model(folder: Path, kills: int, seed: int = 0) -> Kills:
    """`kcl update`, killed: the newest version is always whole, and the next lesson continues from it."""
    randomness = random.Random(seed)
    folder.mkdir(parents=True)
    rows = [(random.Random(row).gauss(row % 3, 1.0), random.Random(row).gauss(0.0, 1.0), row % 3) for row in range(60)]
    lessons = [folder / f"{number}.csv" for number in range(3)]
    for number, path in enumerate(lessons):
        path.write_text("a,b,label\n" + "".join(f"{a + number},{b},{label}\n" for a, b, label in rows))
    queries = torch.tensor([row[:2] for row in rows])

    def update(model: Path, number: int, moment: Moment | None = None) -> int:
        arguments = ["update", "--model", str(model), "--task", f"t{number}", "--data", str(lessons[number])]
        if number == 0 and model.name.startswith("coreset"):
            arguments += ["--head", "coreset", "--set", "epochs=1", "width=8"]
        return _attempt(arguments, folder / "log", moment)

    done = finished = resumed = 0
    for head in ("auto", "coreset"):
        expected = []
        begun = time.monotonic()
        for number in range(len(lessons)):
            assert update(folder / head, number) == 0, (folder / "log").read_text()
            expected.append(_answers(folder / head, queries))
        takes = (time.monotonic() - begun) / len(lessons)
        share = kills // 2 if head == "auto" else kills - done
        target = done + share
        while done < target:
            model, number = folder / f"{head}-{finished}", 0
            while number < len(lessons):
                code = update(model, number, _moment(randomness, takes, 20) if done < target else None)
                assert code in (0, -signal.SIGKILL), (folder / "log").read_text()
                done += code != 0
                known = len(model_folder.versions(model))
                assert known in (number, number + 1)
                if known:
                    assert _answers(model, queries) == expected[known - 1], f"{model}, version {known}"
                resumed += code != 0 and known > 0
                number = known
            assert sorted(path.name for path in model.iterdir() if path.name != ".lock") == ["0001", "0002", "0003"]
            finished += 1
    return Kills(done, finished, resumed)


def _answers(model: Path, queries: torch.Tensor) -> list[object]:
    prediction = model_folder.load_model(model).predict(queries)
    return [column.tolist() for column in prediction[:4]]
