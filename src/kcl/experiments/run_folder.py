"""The output folder of runs: `settings.json`, and one line of `results.jsonl` per finished run."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from kcl.core import results
from kcl.core.files import read_json, write_json
from kcl.errors import KclError
from kcl.experiments import remote_checkpoints, resuming
from kcl.experiments.run_spec import RunSpec, key_of, with_current_settings
from kcl.training.checkpointer import clear

MANY = 1000
"""Runs from which settings.json tells what all of them share only once."""


def told_settings(runs: list[dict[str, Any]], command: str) -> dict[str, Any]:
    """What settings.json holds."""
    return {"format": 1, "command": command, **_listed(runs)}


def _listed(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The runs as a file tells them: whole, or, where there are many, without what they share."""
    if len(runs) < MANY:
        return {"runs": runs}
    first, missing = runs[0], object()
    alike = {name for name in first if all(run.get(name, missing) == first[name] for run in runs)}
    settings = {  # those of one method only are not shared
        name: value
        for name, value in first["settings"].items()
        if all(run["settings"].get(name, missing) == value for run in runs)
    }
    own = [
        {name: value for name, value in run.items() if name not in alike and name != "settings"}
        | {"settings": {name: value for name, value in run["settings"].items() if name not in settings}}
        for run in runs
    ]
    return {"shared": {name: first[name] for name in alike if name != "settings"} | {"settings": settings}, "runs": own}


def _whole(told: dict[str, Any]) -> list[dict[str, Any]]:
    """The inverse of `_listed`."""
    shared = told.get("shared", {})
    try:
        return [
            {**shared, **run, "settings": {**shared.get("settings", {}), **run.get("settings", {})}} if shared else run
            for run in told["runs"]
        ]
    except (TypeError, AttributeError):
        raise KclError("the runs in it are not told as this version of kcl tells them") from None


def merged_settings(path: Path, runs: list[dict[str, Any]], command: str) -> dict[str, Any] | None:
    """What settings.json holds when `command` adds its runs to those that are there; None where it has them all."""
    before = read_json(path)
    if not isinstance(before, dict) or before.get("format") != 1 or not isinstance(before.get("runs"), list):
        raise KclError(f"{path} is not one that this version of kcl wrote; move it away")
    try:
        all_before = _whole(before)
        known = {key_of(run) for run in all_before}
    except KclError as error:
        raise KclError(f"{path}: {error}; move it away") from None
    except (TypeError, AttributeError):
        raise KclError(f"{path}: the runs in it are not told as this version of kcl tells them; move it away") from None
    new = [run for run in runs if key_of(run) not in known]
    if not new:
        return None
    later = before.get("later_commands")
    later = [*(later if isinstance(later, list) else []), command]
    kept = {name: value for name, value in before.items() if name not in ("runs", "shared")}
    return kept | _listed(all_before + new) | {"later_commands": later}


class ResultStore(Protocol):
    """Takes the results of finished runs, and knows where the checkpoints of unfinished ones are."""

    path: Path
    finished: dict[str, dict[str, Any]]

    def add(self, record: dict[str, Any]) -> None:
        """Store the result of a run."""

    def forget(self, checkpoints: Path, url: str | None = None) -> None:
        """Remove the checkpoints of a group whose results are stored, and their copies at a URL."""


class Folder:
    """The output folder of a command. It is created, and checked to be writable, before any work is done."""

    def __init__(self, path: Path, resume: bool, say: Callable[[str], None] = lambda _: None) -> None:
        self.path, self.say = path, say
        self.results = path / "results.jsonl"
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
            for draft in path.glob(".settings.json.*.tmp"):  # left by a process that was killed
                draft.unlink()
        except OSError as error:
            raise KclError(f"cannot write to the output folder {path}: {error.strerror or error}") from None
        self.finished: dict[str, dict[str, Any]] = {}
        if not resume and (self.results.exists() or resuming.holds_any(path)):
            what = "results" if self.results.exists() else "unfinished runs"
            raise KclError(
                f"{path} already holds {what}; add --resume to keep its finished runs and do the rest, "
                "or choose another --out"
            )
        self.reload()

    def reload(self) -> None:
        """Read the results from the disk again: an interrupt may have come just after one was stored."""
        if self.results.exists():
            records = map(with_current_settings, results.read(self.results, self.say))
            self.finished = {key_of(record): record for record in records}

    def begin(self, specs: Sequence[RunSpec], command: str) -> None:
        """Save the resolved settings of all requested runs, next to those of earlier commands in the same folder."""
        path, runs = self.path / "settings.json", [json.loads(spec.key) for spec in specs]
        merged = merged_settings(path, runs, command) if path.exists() else told_settings(runs, command)
        if merged is not None:
            write_json(path, merged)

    def add(self, record: dict[str, Any]) -> None:
        results.append(self.results, record)
        self.finished[key_of(record)] = record

    def add_new(self, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Store several results at once, except for those that are stored already; return the new ones."""
        new = {key: record for record in records if (key := key_of(record)) not in self.finished}
        if new:
            results.append(self.results, *new.values())
            self.finished |= new
        return list(new.values())

    def forget(self, checkpoints: Path, url: str | None = None) -> None:
        clear(checkpoints)
        with contextlib.suppress(OSError, KclError):  # leftovers do no harm
            remote_checkpoints.clear(url, checkpoints)
        with contextlib.suppress(OSError):  # other groups may have theirs there
            checkpoints.parent.rmdir()
