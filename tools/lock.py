"""The packages that `make` installs, each by its version and the SHA-256 of its file.

python tools/lock.py install EXTRA  into the environment whose Python runs this: the lock of the extra, then kcl itself
python tools/lock.py write [INDEX]  write all locks anew, with the newest versions that are allowed

The locks are for CPython 3.11 on Linux (x86-64). Elsewhere, and for packages that no lock names, versions are those of
`constraints.txt`. PyTorch is not locked: which of its many builds of a version is installed depends on how pip is set
up, and each brings other packages with it. INDEX: a package index ("simple" pages), which is asked for the further
files of each version that fit such a machine, because another release of Linux may take another file.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKS, CONSTRAINTS = ROOT / "locks", ROOT / "constraints.txt"
EXTRAS = ("dev", "docs", "report")
BUILD = ("hatchling", "editables")
"""What building kcl needs, locked with the rest."""
UNLOCKED = re.compile(r"torch|triton|nvidia-.*|cuda-.*|pip|kernel-continual-learning")
MARKER = 'python_version == "3.11" and sys_platform == "linux" and platform_machine == "x86_64"'
FITS = re.compile(r"(-none-any|-(cp311-cp311|cp3[0-9]+-abi3|py3-none)-manylinux[^-]*x86_64)\.whl$")
MISSING = re.compile(r"No matching distribution found for (\S+)")
PIP = (sys.executable, "-P", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")


def install(extra: str) -> int:
    """A file with another hash than the lock's ends this; a version that the index does not have does not."""
    options = ("--no-deps", "--only-binary=:all:", "--require-hashes", "-r", str(LOCKS / f"{extra}.txt"))
    done = subprocess.run([*PIP, *options], stderr=subprocess.PIPE, text=True, check=False)
    missing = MISSING.search(done.stderr)
    if done.returncode != 0 and missing is None:
        sys.stderr.write(done.stderr)
        return done.returncode
    if missing is not None:
        print(f"warning: the index has no {missing[1]}, so packages are installed without the lock", file=sys.stderr)
    # With the lock's build backend, if it is there, instead of one that pip would fetch for the occasion.
    isolated = ("--no-build-isolation",) if all(map(importlib.util.find_spec, BUILD)) else ()
    command = [*PIP, *isolated, "-c", str(CONSTRAINTS), "-e", f"{ROOT}[{extra}]"]
    return subprocess.run(command, check=False).returncode


def write(index: str | None) -> int:
    for extra in EXTRAS:
        options = ("--dry-run", "--ignore-installed", "--only-binary=:all:", "--report", "-")
        command = [*PIP, *options, "-c", str(CONSTRAINTS), f"{ROOT}[{extra}]", *BUILD]
        report = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        lines = [_locked(package, index) for package in json.loads(report)["install"] if not _is_unlocked(package)]
        head = f"# Made by `python tools/lock.py write`: what the extra {extra} installs, but PyTorch.\n"
        (LOCKS / f"{extra}.txt").write_text(head + "".join(sorted(lines)), encoding="utf-8")
        print(f"{LOCKS.name}/{extra}.txt: {len(lines)} packages")
    return 0


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_unlocked(package: dict[str, dict[str, str]]) -> bool:
    return UNLOCKED.fullmatch(_normal(package["metadata"]["name"])) is not None


def _locked(package: dict, index: str | None) -> str:
    """The line of a package, from an entry of pip's report."""
    name, version = _normal(package["metadata"]["name"]), package["metadata"]["version"]
    hashes = {package["download_info"]["archive_info"]["hashes"]["sha256"]}
    if index is not None:
        with urllib.request.urlopen(f"{index.rstrip('/')}/{name}/", timeout=60) as page:  # noqa: S310 - as asked
            hashes.update(_hashes(page.read().decode(), version))
    return requirement(name, version, hashes)


def _hashes(page: str, version: str) -> Iterable[str]:
    """Of the files of a version that fit, as a page of an index links them."""
    for file, sha256 in re.findall(r'/([^/"#]+)#sha256=([0-9a-f]{64})"', page):
        if file.split("-")[1:2] == [version] and FITS.search(file):
            yield sha256


def requirement(name: str, version: str, hashes: Iterable[str]) -> str:
    return f"{name}=={version} ; {MARKER}" + "".join(f" --hash=sha256:{sha256}" for sha256 in sorted(hashes)) + "\n"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["install", extra] if extra in EXTRAS:
            sys.exit(install(extra))
        case ["write", *given] if len(given) < 2:
            sys.exit(write(*(given or [None])))
        case _:
            sys.exit(__doc__)
