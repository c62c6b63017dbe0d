"""The set-up takes what the locks name, by hash; a file with another hash ends it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import lock

ROOT = Path(__file__).parents[1]
LINE = re.compile(r'([a-z0-9-]+)==(\S+) ; (.*"x86_64")((?: --hash=sha256:[0-9a-f]{64})+)')


def _locked(extra: str) -> dict[str, str]:
    lines = (lock.LOCKS / f"{extra}.txt").read_text(encoding="utf-8").splitlines()[1:]
    matches = [LINE.fullmatch(line) for line in lines]
    assert all(match is not None and match[3] == lock.MARKER for match in matches)
    return {match[1]: match[2] for match in matches if match is not None}


@pytest.mark.parametrize("extra", lock.EXTRAS)
def test_a_lock_names_what_the_project_needs_at_the_versions_of_the_constraints(extra: str) -> None:
    locked = _locked(extra)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked, names = [*project["dependencies"], *project["optional-dependencies"][extra]], set()
    while asked:
        text = asked.pop()
        name, extras = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?", text).groups()
        if name == project["name"]:
            asked += [each for part in extras.split(",") for each in project["optional-dependencies"][part]]
        else:
            names.add(lock._normal(name))
    assert names - locked.keys() == {"torch"}
    assert set(lock.BUILD) <= locked.keys()
    for line in lock.CONSTRAINTS.read_text(encoding="utf-8").splitlines():
        name, _, version = line.partition("==")
        assert line.startswith("#") or locked.get(name, version) == version


def test_lines_that_pip_understands_of_files_that_fit() -> None:
    sha256 = [digit * 64 for digit in "abcdef"]
    names = ("some_pkg-1.0-py3-none-any.whl", "some_pkg-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
             "some_pkg-1.0-cp312-cp312-manylinux_2_28_x86_64.whl", "some_pkg-1.0.1-py3-none-any.whl",
             "some_pkg-1.0-cp39-abi3-manylinux2014_x86_64.whl", "some_pkg-1.0.tar.gz")  # fmt: skip
    page = "".join(f'<a href="../f/{name}#sha256={each}">' for name, each in zip(names, sha256, strict=True))
    hashes = list(lock._hashes(page, "1.0"))
    assert hashes == [sha256[0], sha256[1], sha256[4]]
    assert LINE.fullmatch(lock.requirement("some-pkg", "1.0", hashes).rstrip("\n"))


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("ERROR: No matching distribution found for a==1\n", 0),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n", 1),
        ("", 0),
    ],
)
def test_another_file_ends_the_set_up_and_a_missing_version_is_told(
    said: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    commands = []

    def run(command: list[str], **_: Any) -> Any:
        commands.append(command)
        return subprocess.CompletedProcess(command, int(bool(said) and len(commands) == 1), "", said)

    monkeypatch.setattr(lock.subprocess, "run", run)
    assert lock.install("dev") == code
    assert "--require-hashes" in commands[0]
    assert len(commands) == 2 - code
    assert ("without the lock" in capsys.readouterr().err) == ("No matching" in said)
