"""Unfinished runs: what their checkpoints were saved with, compared with the present command, code and machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch

import kcl
from kcl.core.devices import Compute, device_name
from kcl.core.files import clear_drafts
from kcl.core.printable import printable
from kcl.errors import KclError
from kcl.experiments.run_spec import key_of, with_current_settings
from kcl.ops.precision import used
from kcl.training import checkpointer
from kcl.training.checkpointer import Every
from kcl.training.stopping import Stop

FOLDER = "checkpoints"
COMPUTING = ("benchmarks", "core", "data", "functional", "methods", "nets", "ops", "training")
"""The packages that decide what a run computes."""


class RunOptions(NamedTuple):
    """How the runs of a command are saved, stopped, resumed and recorded."""

    every: Every = Every(seconds=None)
    stop: Stop | None = None
    force: bool = False
    """Resume although code or machine have changed, where that is possible."""
    checkpoints: str | None = None
    """An fsspec URL to which checkpoints are copied, for machines that do not share the output folder."""
    command: str = ""
    notes: Mapping[str, Any] = {}
    """Added to the result of every run."""
    save_samples: bool = False
    """Whether images of tasks, coresets and mistakes are saved."""


class UnfinishedGroup(NamedTuple):
    """A group of runs that has a checkpoint."""

    folder: Path
    runs: list[dict[str, Any]]
    made_with: dict[str, Any]
    command: str
    plain: bool
    """Whether it was trained without stacking."""

    @property
    def keys(self) -> list[str]:
        return [key_of(run) for run in self.runs]


def clear_left_over(out: Path) -> None:
    """Remove what killed processes left in an output folder: drafts, and folders without a checkpoint."""
    clear_drafts(out)
    for folder in (out / FOLDER).glob("*"):
        clear_drafts(folder)
        _remove_if_empty(folder)
    _remove_if_empty(out / FOLDER)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


@cache
def code() -> str:
    """A digest of the code that computes, so that changes without a new version number are noticed.

    In checkpoints, in the jobs of workers and among the versions in every result.
    """
    root, digest = Path(kcl.__file__).parent, hashlib.sha256()
    files = [path for part in COMPUTING for path in (root / part).rglob("*") if path.suffix in (".py", ".cu", ".cpp")]
    for path in sorted([*files, root / "experiments" / "admission.py"]):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def made_with(compute: Compute) -> dict[str, Any]:
    """Everything except the settings that can change a digit of a result."""
    return {
        "device": compute.torch_device.type,
        "kcl": f"{kcl.__version__} (code {code()})",
        "torch": torch.__version__,
        "numpy": np.__version__,
        "model of the device": device_name(compute.torch_device),
        "threads": torch.get_num_threads(),
        "precision": used(compute.precision, compute.torch_device, compute.compiled),
        **({"compiled": True} if compute.compiled and compute.on_cpu else {}),
    }


def group_name(keys: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()[:16]


def group_folder(out: Path, keys: Sequence[str]) -> Path:
    return out / FOLDER / group_name(keys)


def unfinished_group(folder: Path) -> UnfinishedGroup | None:
    """The group whose checkpoints are in a folder."""
    saved = checkpointer.newest(folder)[0] if folder.is_dir() else None
    if saved is None:
        return None
    runs, conditions, command = (saved.about.get(name) for name in ("runs", "made with", "command"))
    listed = isinstance(runs, list) and all(isinstance(run, dict) for run in runs)
    if not runs or not listed or not isinstance(conditions, dict):
        raise KclError(f"the checkpoint in {folder} does not say which runs it belongs to; delete it to start over")
    runs = [with_current_settings(run) for run in runs]
    plain = saved.about.get("plain") is True
    return UnfinishedGroup(folder, runs, conditions, str(command), plain)


def check_made_with(group: UnfinishedGroup, now: Mapping[str, Any], force: bool, say: Callable[[str], None]) -> None:
    """Refuse to resume on another device or with other code, since results could differ."""
    device = group.made_with.get("device")
    if device != now["device"]:
        raise KclError(
            f"{group.folder} was saved on the device {_printable(device)} and this is {now['device']!r}; "
            f"resume with --device {_printable(device)}, or delete that folder to train its runs again"
        )
    changed = changes(group.made_with, now)
    if changed and not force:
        raise KclError(
            f"{group.folder} was saved under other conditions: {changed}; the result would differ from that of an "
            "uninterrupted run; add --force to resume anyway"
        )
    if changed:
        say(f"resuming although something has changed: {changed}")


def refuse_other(group: UnfinishedGroup, requested: Sequence[Mapping[str, Any]]) -> NoReturn:
    """There is an unfinished group, but not one that was requested: say how it differs."""
    pairs = [(_flat(run), _flat(new)) for run in group.runs for new in requested]
    run, new = min(pairs, key=lambda pair: len(_differing(*pair)))
    if _differing(run, new):
        content = f"an unfinished run with other settings: {changes(run, new)}"
    else:
        content = f"{len(group.runs)} unfinished runs that belong together, and only some of them were requested"
    command = group.command if group.command.isprintable() and len(group.command) < 2000 else "its own command"
    raise KclError(
        f"{group.folder.parents[1]} holds {content}; to resume: {resume_command(command)}; "
        "to leave it and start other runs: --force, or another --out"
    )


def resume_command(command: str) -> str:
    return command if "--resume" in command.split() else command + " --resume"


def _flat(run: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a run and its settings, side by side."""
    settings = run.get("settings")
    fields = {name: value for name, value in run.items() if name != "settings"}
    return fields | (settings if isinstance(settings, dict) else {})


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [name for name in dict.fromkeys((*now, *before)) if before.get(name) != now.get(name)]


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs, in words; empty if nothing does."""
    return "; ".join(
        f"{_printable(name)} was {_printable(before.get(name))} and is {_printable(now.get(name))}"
        for name in _differing(before, now)[:5]
    )


def _printable(value: Any) -> str:
    """A value from a file, for a message: short, and without control characters for the terminal."""
    return printable(str(value)[:60])
