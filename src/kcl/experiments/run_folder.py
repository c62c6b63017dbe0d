"""The output folder of runs: `settings.json`, and one line of `results.jsonl` per finished run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kcl.core import results
from kcl.core.files import RESULTS, read_json, write_json
from kcl.errors import KclError
from kcl.experiments import remote_checkpoints, resuming
from kcl.experiments.run_spec import RunSpec, key_of, with_current_settings

MANY = 1000
"""From this many runs on, settings.json holds what all of them share only once."""


def merged_settings(path: Path, runs: list[dict[str, Any]], command: str) -> dict[str, Any] | None:
    """The content of settings.json with the runs of `command` added; None if it already holds all of them."""
    if not path.exists():
        return {"format": 1, "command": command, **_factor_out(runs)}
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != 1 or not isinstance(content.get("runs"), list):
        raise KclError(f"{path} was not written by this version of kcl; move it away")
    try:
        earlier_runs = _expand(content)
        earlier_keys = {key_of(run) for run in earlier_runs}
    except (TypeError, AttributeError):
        raise KclError(f"{path}: its runs are not in the format of this version of kcl; move it away") from None
    new_runs = [run for run in runs if key_of(run) not in earlier_keys]
    if not new_runs:
        return None
    commands = content.get("later_commands")
    later = [*(commands if isinstance(commands, list) else []), command]
    others = {name: value for name, value in content.items() if name not in ("runs", "shared")}
    return others | _factor_out(earlier_runs + new_runs) | {"later_commands": later}


def _factor_out(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The runs as settings.json lists them: in full or, if there are many, with the fields they share factored out."""
    if len(runs) < MANY:
        return {"runs": runs}
    fields = _shared(runs)
    settings = _shared([run["settings"] for run in runs])
    rest = [
        {name: value for name, value in run.items() if name not in fields and name != "settings"}
        | {"settings": {name: value for name, value in run["settings"].items() if name not in settings}}
        for run in runs
    ]
    return {"shared": fields | {"settings": settings}, "runs": rest}


def _shared(mappings: list[dict[str, Any]]) -> dict[str, Any]:
    """The entries that are the same in all of them. An entry that one of them lacks is not shared."""
    first, missing = mappings[0], object()
    return {name: value for name, value in first.items() if all(m.get(name, missing) == value for m in mappings)}


def _expand(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The inverse of `_factor_out`."""
    shared = content.get("shared")
    if not shared:
        return list(content["runs"])
    settings = shared.get("settings", {})
    return [{**shared, **run, "settings": {**settings, **run.get("settings", {})}} for run in content["runs"]]


@dataclass
class ResultStore:
    """Where results go, and the folder with the checkpoints of unfinished runs."""

    path: Path
    append: Callable[..., None]
    """Stores the results of runs."""
    forget: Callable[[Path, str | None], None]
    """Removes the checkpoints of a group whose results are stored, and their copies at a URL."""
    finished: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Results by the keys of their runs."""

    def add(self, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Store several results at once, except for those that are stored already; return the new ones."""
        new = {key: record for record in records if (key := key_of(record)) not in self.finished}
        if new:
            self.append(*new.values())
            self.finished |= new
        return list(new.values())


class Folder(ResultStore):
    """The output folder of a command, which has locked it."""

    def __init__(self, path: Path, resume: bool, say: Callable[[str], None] = lambda _: None) -> None:
        self.results, self.say = path / RESULTS, say
        super().__init__(path, partial(results.append, self.results), remote_checkpoints.forget)
        path.mkdir(parents=True, exist_ok=True)
        resuming.clear_left_over(path)
        if not resume and (self.results.exists() or any((path / resuming.FOLDER).glob("*/*.safetensors"))):
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
        path = self.path / "settings.json"
        content = merged_settings(path, [json.loads(spec.key) for spec in specs], command)
        if content is not None:
            write_json(path, content)
