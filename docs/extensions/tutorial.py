"""What the tutorials' sessions have: figures as SVG, and cells of shell commands that fail loudly."""

from __future__ import annotations

import subprocess
from typing import Any


def load_ipython_extension(shell: Any) -> None:
    shell.run_line_magic("config", 'InlineBackend.figure_formats = ["svg"]')
    shell.register_magic_function(_bash, "cell", "bash")


def _bash(_: str, commands: str) -> None:
    """IPython's own shows output in pieces, as it happens to arrive."""
    done = subprocess.run(["bash", "-e", "-c", commands], capture_output=True, text=True, check=False)  # noqa: S603, S607
    print(done.stdout, done.stderr, sep="", end="")
    done.check_returncode()
