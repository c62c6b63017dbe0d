"""What `make audit` makes of pip-audit's answers.

The answers were recorded from pip-audit 2.10: `flawed` and `clean` from a service on this machine that knew one made-up
flaw, `unknown` from an index that keeps no list of flaws, `unreached` where nobody listened.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import audit

ANSWERS = Path(__file__).parent / "audit"


def _recorded(name: str) -> str:
    return (ANSWERS / name).read_text(encoding="utf-8")


def test_a_known_flaw_fails_and_is_named() -> None:
    verdict = audit.judge(1, _recorded("flawed.json"), "Found 1 known vulnerability in 1 package\n")
    assert verdict == (True, "ruff 0.17.4: PYSEC-0000-1 (fixed in 99.0)")


def test_a_service_out_of_reach_is_told_and_does_not_fail() -> None:
    verdict = audit.judge(1, "", _recorded("unreached.txt"))
    assert not verdict.fails
    assert "could not be reached" in verdict.message
    own_words = audit.judge(1, "", "ERROR:pip_audit._cli:Could not connect to the vulnerability feed\n")
    assert (own_words.fails, "could not be reached" in own_words.message) == (False, True)


def test_a_service_that_knows_no_package_is_no_audit() -> None:
    verdict = audit.judge(0, _recorded("unknown.json"), "No known vulnerabilities found\n")
    assert verdict == (False, "warning: no audit: the service could be asked for none of 2 packages")


def test_nothing_known() -> None:
    assert audit.judge(0, _recorded("clean.json"), "") == (False, "no flaw is known of 1 packages")


def test_one_package_that_could_not_be_looked_up_is_named() -> None:
    known, unknown = (json.loads(_recorded(name))["dependencies"] for name in ("clean.json", "unknown.json"))
    verdict = audit.judge(0, json.dumps({"dependencies": known + unknown}), "")
    assert verdict == (False, "no flaw is known of 1 packages; not looked up: ruff, torch")


@pytest.mark.parametrize(
    ("code", "output", "errors"),
    [
        (1, "", "ERROR:pip_audit._cli:invalid requirement\n"),
        (2, "", "No module named pip_audit"),
        (1, "", ""),
        (1, "[]", ""),
        (1, '{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}', ""),
    ],
)
def test_whatever_else_goes_wrong_fails(code: int, output: str, errors: str) -> None:
    assert audit.judge(code, output, errors).fails


@pytest.mark.parametrize(("answer", "code"), [(1, 1), (0, 0)])
def test_the_exit_code(answer: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    output = _recorded("flawed.json" if answer else "clean.json")
    done = subprocess.CompletedProcess([], answer, output, "")
    monkeypatch.setattr(audit.subprocess, "run", lambda *arguments, **options: done)
    assert audit.main() == code
    told = capsys.readouterr()
    assert "audit: " in (told.err if code else told.out)
