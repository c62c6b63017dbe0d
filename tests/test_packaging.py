"""What is needed to import and to start: the core, PyTorch only when something is computed; hints name real extras."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

HEAVY = (
    "platformdirs",
    "requests",
    "urllib3",
    "tqdm",
    "sklearn",
    "matplotlib",
    "PIL",
    "jaxtyping",
    "beartype",
    "triton",
    "torchvision",
    "wandb",
    "tensorboard",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "pandas",
    "pyarrow",
    "ray",
    "submitit",
    "optuna",
    "fsspec",
)


def test_the_core_imports_with_torch_numpy_and_safetensors_alone() -> None:
    blocked = "\n".join(f"sys.modules[{name!r}] = None" for name in HEAVY)
    code = f"import sys\n{blocked}\nfrom kcl.cli.commands import main\nmain(['list', 'kernels'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "vrf" in done.stdout


@pytest.mark.parametrize(
    "code", ["import kcl", "from kcl.__main__ import main; main()"], ids=["import kcl", "kcl --help"]
)
def test_nothing_heavy_is_loaded_before_it_is_needed(code: str) -> None:
    blocked = "\n".join(f"sys.modules[{name!r}] = None" for name in (*HEAVY, "torch", "numpy", "safetensors"))
    code = f"import sys\nsys.argv = ['kcl', '--help']\n{blocked}\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_hints_name_extras_that_can_be_installed() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src" / "kcl").rglob("*.py")]
    hints = {extra for text in sources for extra in re.findall(rf"{PROJECT['name']}\[(\w+)\]", text)}
    hints |= {extra for text in sources for extra in re.findall(r'load_package\(\s*"\w[\w.]*", "(\w+)"', text)}
    assert len(hints) > 8
    assert hints <= set(PROJECT["optional-dependencies"])


def test_the_start_page_lists_every_extra() -> None:
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", page, flags=re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == set(PROJECT["optional-dependencies"])


def test_what_is_imported_is_declared() -> None:
    """Under other names where those differ; Triton comes with PyTorch."""
    asked = [*PROJECT["dependencies"], *(each for extra in PROJECT["optional-dependencies"].values() for each in extra)]
    declared = {re.match(r"[\w-]+", text)[0].lower().replace("-", "_") for text in asked}
    declared |= {"sklearn", "PIL", "avalanche", "triton", "kcl"}
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "src" / "kcl").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    assert {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) <= declared
