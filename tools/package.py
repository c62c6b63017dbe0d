"""Builds the sdist and the wheel, and tries the wheel where nothing but kcl and its dependencies is installed.

The dependencies are not fetched again: those of this environment are linked, and none that only an extra brings. So a
module that the core imports without declaring it is missing there, and a message that names an extra is seen.

python tools/package.py
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
NAME = "kernel-continual-learning"
IMPORTS = (
    "import sys, kcl; kcl.ContinualModel; print('imported kcl', kcl.__version__, 'with', len(sys.modules), 'modules')"
)
TABLE = "a,b,label\n" + "".join(f"{i % 2}.{i % 7},{i % 3}.{i % 5},{'odd' if i % 2 else 'even'}\n" for i in range(60))


def main() -> int:
    for old in DIST.glob("*"):
        old.unlink()
    _run(sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT))  # the wheel is built from the sdist
    [wheel], [sdist] = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "fresh", with_pip=False)
        scripts = folder / "fresh" / "bin"
        python, kcl = str(scripts / "python"), str(scripts / "kcl")
        _run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", str(wheel))
        [packages] = (folder / "fresh" / "lib").glob("python*/site-packages")
        linked = _link_dependencies(packages)
        (folder / "table.csv").write_text(TABLE, encoding="utf-8")
        _run(python, "-P", "-c", IMPORTS, cwd=folder)
        for arguments in (
            ["--help"],
            ["list", "settings"],
            ["update", "--model", "model", "--data", "table.csv", "--task", "one"],
            ["predict", "--model", "model", "--input", "table.csv", "--out", "answers.csv"],
            ["update", "--model", "trained", "--data", "table.csv", "--task", "one", "--set", "kernel=rbf"],
        ):
            _run(kcl, *arguments, cwd=folder)
        told = subprocess.run([kcl, "run", "permuted-digits"], cwd=folder, capture_output=True, text=True, check=False)
        if told.returncode != 2 or f"{NAME}[digits]" not in told.stderr:
            raise SystemExit(f"kcl run permuted-digits without scikit-learn: {told.returncode} {told.stderr}")
    print(f"{sdist.name} and {wheel.name} are in dist/; the wheel works beside {', '.join(sorted(linked))}")
    return 0


def _link_dependencies(packages: Path) -> set[str]:
    """Links to everything that the core depends on, directly or through others; their names."""
    linked: set[str] = set()
    waiting = _required(distribution(NAME))
    while waiting:
        name = waiting.pop()
        if name in linked:
            continue
        linked.add(name)
        found = distribution(name)
        waiting += _required(found)
        for top in {Path(str(file)).parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            source, target = Path(str(found.locate_file(top))), packages / top
            if source.exists() and not target.exists():
                target.symlink_to(source)
    return linked


def _required(found: Distribution) -> list[str]:
    """The distributions that one needs without any extra, as far as they are installed here."""
    names = []
    for line in found.requires or ():
        requirement, _, marker = line.partition(";")
        name = re.split(r"[\s<>=!~\[(]", requirement.strip(), maxsplit=1)[0]
        if "extra" not in marker and _installed(name):
            names.append(re.sub(r"[-_.]+", "-", name).lower())
    return names


def _installed(name: str) -> bool:
    try:
        return bool(distribution(name))
    except ImportError:
        return False


def _run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
