"""The files that a batch of `kcl run` and a query of `ContinualModel.predict` pass: measured, for docs/architecture.md.

A file counts where one of its functions runs; module and class bodies, which run once at import, do not.

python tools/tour.py [--json]
"""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest import mock

import torch

import kcl
from kcl import __main__ as command_line
from kcl.core import results
from kcl.models.continual_model import ContinualModel
from kcl.training.trainer import PlainTrainer

PACKAGE = Path(kcl.__file__).parent
RUN = (
    "run",
    "permuted-digits",
    "--tasks",
    "2",
    "--train-per-task",
    "100",
    "--memory-per-class",
    "5",
    "--device",
    "cpu",
    "--quiet",
)
Files = dict[str, None]
"""Paths below src/kcl, in the order in which they were first met."""


def tour() -> dict[str, list[str]]:
    """By part of the tour, the files it passes."""
    with tempfile.TemporaryDirectory() as folder:
        stack, step, result = _batch(str(Path(folder) / "out"))
    return {name: list(files) for name, files in zip(PARTS, (stack, step, result, _query()), strict=True)}


PARTS = {
    "stack": "on the call stack of a training step, outermost first",
    "step": "within a training step",
    "result": "from the last training step to the line in results.jsonl",
    "query": "within predict, for a named and for an unnamed task",
}


def _batch(out: str) -> tuple[Files, Files, Files]:
    stack, step, result = Files(), Files(), Files()
    in_step, written = 0, False
    step_code, write_code = PlainTrainer._step.__code__, results.append.__code__

    def follow(frame: FrameType, event: str) -> None:
        nonlocal in_step, written
        code = frame.f_code
        if event == "call":
            if code is step_code:
                in_step += 1
                stack.update(dict.fromkeys(reversed(list(_callers(frame)))))
                result.clear()
            if not written:
                _add(step if in_step else result, code)
        elif code is step_code:
            in_step -= 1
        elif code is write_code:
            written = True

    with mock.patch.object(sys, "argv", ["kcl", *RUN, "--out", out]), _following(follow):
        status = command_line.main()
    if status != 0:
        raise SystemExit(status)
    return stack, step, result


def _query() -> Files:
    model = ContinualModel(backbone="mlp", width=8, epochs=1)
    inputs = torch.cat([torch.zeros(20, 4), torch.ones(20, 4)]) + torch.arange(160.0).view(40, 4) / 1000.0
    for task in ("one", "two"):
        model.learn(inputs, [0] * 20 + [1] * 20, task)
    files, depth, code = Files(), 0, ContinualModel.predict.__code__

    def follow(frame: FrameType, event: str) -> None:
        nonlocal depth
        depth += (frame.f_code is code) * (1 if event == "call" else -1)
        if depth and event == "call":
            _add(files, frame.f_code)

    with _following(follow):
        for task in ("one", None):
            model.predict(inputs, task)
    return files


@contextmanager
def _following(follow: Callable[[FrameType, str], None]) -> Iterator[None]:
    """Calls `follow` when a function of Python is called and when it returns."""

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "return"):
            follow(frame, event)

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def _callers(frame: FrameType | None) -> Iterator[str]:
    """The files of a frame and its callers, innermost first."""
    while frame is not None:
        if path := _path(frame.f_code):
            yield path
        frame = frame.f_back


def _add(files: Files, code: CodeType) -> None:
    if path := _path(code):
        files[path] = None


def _path(code: CodeType) -> str | None:
    """Below src/kcl; None for other files, and for bodies of modules and classes."""
    if not code.co_flags & inspect.CO_OPTIMIZED or not code.co_filename.startswith(str(PACKAGE)):
        return None
    return Path(code.co_filename).relative_to(PACKAGE).as_posix()


def main() -> int:
    parts = tour()
    if sys.argv[1:] == ["--json"]:
        print(json.dumps(parts))
        return 0
    for name, files in parts.items():
        print(f"{len(files)} {PARTS[name]}:")
        print("".join(f"  {path}\n" for path in files))
    print(f"{len({*parts['stack'], *parts['step']})} files for a training step, its call stack included")
    return 0


if __name__ == "__main__":
    sys.exit(main())
