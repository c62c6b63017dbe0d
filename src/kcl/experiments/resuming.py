"""Runs that were begun and not finished: what their checkpoints were saved by, held against what is asked for now."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import kcl
from kcl.errors import KclError
from kcl.experiments.run_spec import key_of, with_current_settings
from kcl.ops.precision import used
from kcl.training import checkpointer
from kcl.training.checkpointer import Every
from kcl.training.stopping import Stop

FOLDER = "checkpoints"
COMPUTING = ("benchmarks", "ops", "data", "functional", "methods", "nets", "training")
"""The parts of this package that decide what a run computes."""


class Saving(NamedTuple):
    """How runs are saved, stopped and gone on with."""

    every: Every = Every(seconds=None)
    stop: Stop | None = None
    force: bool = False
    """Go on although something has changed, where that can be done."""
    checkpoints: str | None = None
    """An fsspec URL to which checkpoints are copied, for machines that do not see the output folder (`remote`)."""


class Begun(NamedTuple):
    """A group of runs with a checkpoint."""

    folder: Path
    runs: list[dict[str, Any]]
    made_with: dict[str, Any]
    command: str
    separate: bool
    """Whether they were trained one after another."""

    @property
    def keys(self) -> list[str]:
        return [key_of(run) for run in self.runs]


@cache
def code() -> str:
    """A digest of the code that computes, so that a change without a new version number is seen too."""
    root, found = Path(kcl.__file__).parent, hashlib.sha256()
    folders = [path for part in COMPUTING for path in root.glob(f"{part}/*.*") if path.suffix in (".py", ".cu", ".cpp")]
    files = [root / "core/randomness.py", root / "core/settings.py", *folders]
    for path in sorted(files):
        found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]


def made_with(device: torch.device, device_name: str, precision: str, compiled: bool | None) -> dict[str, Any]:
    """Everything beside the settings that can change a digit of a result. `compiled`: as asked for."""
    return {
        "device": device.type,
        "kcl": f"{kcl.__version__} (code {code()})",
        "torch": torch.__version__,
        "numpy": np.__version__,
        "model of the device": device_name,
        "threads": torch.get_num_threads(),
        "precision": used(precision, device, compiled),
        **({"compiled": True} if compiled and device.type == "cpu" else {}),
    }


def group_folder(out: Path, keys: Sequence[str]) -> Path:
    return out / FOLDER / hashlib.sha256("\n".join(keys).encode()).hexdigest()[:16]


def holds_any(out: Path) -> bool:
    return any(True for _ in (out / FOLDER).glob("*/*.safetensors"))


def begun(out: Path) -> list[Begun]:
    """Every group that has a checkpoint in a folder."""
    found = (begun_at(folder) for folder in sorted((out / FOLDER).glob("*")))
    return [group for group in found if group is not None]


def rename_old_folder(group: Begun, out: Path) -> None:
    """Give a group's folder the name under which training looks for it: older versions named it after the settings of
    every method.
    """
    expected = group_folder(out, group.keys)
    if not expected.exists():
        group.folder.rename(expected)


def begun_at(folder: Path) -> Begun | None:
    """The group whose checkpoints a folder holds."""
    saved = checkpointer.newest(folder)[0] if folder.is_dir() else None
    if saved is None:
        return None
    runs, made, command = (saved.about.get(name) for name in ("runs", "made with", "command"))
    named = isinstance(runs, list) and runs and all(isinstance(run, dict) for run in runs)
    if not named or not isinstance(runs, list) or not isinstance(made, dict):
        raise KclError(f"{folder} holds a checkpoint that does not say of which runs it is; delete it to begin anew")
    runs = [with_current_settings(run) for run in runs]
    return Begun(folder, runs, made, str(command), "separate runs" in saved.about)


def check_made_with(group: Begun, now: Mapping[str, Any], force: bool, say: Callable[[str], None]) -> None:
    """Refuse to go on with other code or on another device, whose results could differ."""
    before = group.made_with.get("device")
    if before != now["device"]:
        raise KclError(
            f"{group.folder} was saved on the device {_shown(before)} and this is {now['device']!r}; "
            f"go on with --device {_shown(before)}, or delete that folder to begin its runs anew"
        )
    changed = _changes(group.made_with, now)
    if changed and not force:
        raise KclError(
            f"{group.folder} was saved with something else: {changed}; the result would not be the one of a run "
            "that was never interrupted; add --force to go on all the same"
        )
    if changed:
        say(f"going on although something has changed: {changed}")


def refuse_others(others: Sequence[Begun], asked: Sequence[Mapping[str, Any]]) -> None:
    """Unfinished runs are there, but not of what is asked for: say in what they differ."""
    for group in others:
        pairs = [(len(_differing(run, new)), run, new) for run in group.runs for new in asked]
        differing, run, new = min(pairs, key=lambda pair: pair[0])
        if differing:
            held = f"an unfinished run of other settings: {_changes(_one(run), _one(new))}"
        else:
            held = f"{len(group.runs)} unfinished runs that were begun together, of which only some are asked for"
        raise KclError(
            f"{group.folder.parents[1]} holds {held}; to go on: {_resumed(group.command)}; "
            "to leave that and begin anew: --force, or another --out"
        )


def _resumed(command: str) -> str:
    shown = command if command.isprintable() and len(command) < 2000 else "its own command"
    return shown if "--resume" in shown.split() else shown + " --resume"


def _one(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run's fields, its settings beside the rest."""
    settings = run.get("settings")
    own = settings if isinstance(settings, dict) else {}
    return {name: value for name, value in run.items() if name != "settings"} | own


def _differing(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[str]:
    before, now = _one(one), _one(two)
    return [name for name in dict.fromkeys((*now, *before)) if before.get(name) != now.get(name)]


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    names: Iterable[str] = (name for name in dict.fromkeys((*now, *before)) if before.get(name) != now.get(name))
    told = [f"{_shown(name)} was {_shown(before.get(name))} and is {_shown(now.get(name))}" for name in names]
    return "; ".join(told[:5])


def _shown(value: Any) -> str:
    """What a file says, in a message: short, and nothing that a terminal could take for a command."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(value)[:60])
