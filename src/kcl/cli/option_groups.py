"""Options that several commands share, and names that are checked without loading PyTorch first."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DEVICES = ("auto", "cpu", "cuda")
COMPILE = ("auto", "on", "off")


class OneOf(argparse.Action):
    """A key of a registry, which is imported only when a value is given: it may have to load PyTorch."""

    def __init__(self, *, registry: str, **options: Any) -> None:
        super().__init__(**options)
        self.registry = registry

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        value: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        module, _, name = self.registry.partition(":")
        known = getattr(importlib.import_module(module), name)
        if value not in known:
            parser.error(f"argument {option_string}: invalid choice: {value!r} (choose from {', '.join(known)})")
        several = isinstance(self.default, list)
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), value] if several else value)


def add_data_dir(command: argparse._ActionsContainer) -> None:
    command.add_argument("--data-dir", type=Path, metavar="DIR", help="folder of the data (default: KCL_DATA, else the "
                         "cache)")  # fmt: skip


def add_device(command: argparse._ActionsContainer) -> None:
    command.add_argument("--device", choices=DEVICES, default="auto", help="default: a GPU if there is one")
    command.add_argument("--threads", type=int, metavar="N",
                         help="CPU threads (default: 1; the last digits of results depend on it)")  # fmt: skip


def add_precision(command: argparse._ActionsContainer) -> None:
    command.add_argument("--precision", action=OneOf, registry="kcl.ops.precision:PRECISIONS", default="tf32",
                         metavar="NAME", help="float32, tf32 or bf16 (default: tf32, which on a CPU is float32; bf16 "
                         "on a CPU needs --compile on); see docs/performance.md")  # fmt: skip


def add_compile(command: argparse._ActionsContainer) -> None:
    command.add_argument("--compile", choices=COMPILE, default="auto",
                         help="fuse the training step with PyTorch's compiler (default: on a GPU if the run is long; "
                         "off on a CPU, where it needs a C++ compiler)")  # fmt: skip
