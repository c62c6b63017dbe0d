"""PyTorch's private interfaces are used in one module, and nothing depends on their being there."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils import _pytree

import kcl
from kcl import ops
from kcl.errors import KclError
from kcl.nets.backbone import BATCH_NORMS, ModuleBackbone
from kcl.ops import cholesky, philox, torch_private

Missing = Callable[..., None]
SOURCE = Path(kcl.__file__).parent
ONLY = SOURCE / "ops" / "torch_private.py"
UNSTABLE = ("torch.fx.experimental",)


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Missing]:
    """Take private names of PyTorch away."""
    whole = torch_private._private

    def remove(*names: str) -> None:
        monkeypatch.setattr(
            torch_private, "_private", lambda module, name: None if name in names else whole(module, name)
        )
        torch_private.can_load_cpp.cache_clear()

    yield remove
    torch_private.can_load_cpp.cache_clear()


def _private_names(tree: ast.AST) -> Iterator[str]:
    """Dotted names under torch with a part that begins with one underscore, and those of unstable modules."""
    known = {"torch": "torch"}  # local names and what they stand for
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {
                alias.asname: alias.name for alias in node.names if alias.asname and alias.name.startswith("torch")
            }
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    names = set(known.values())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts, node = [node.attr, *parts], node.value
        if parts and isinstance(node, ast.Name) and node.id in known:
            names.add(".".join([known[node.id], *parts]))
    for name in names:
        private = [part for part in name.split(".") if part.startswith("_") and not part.startswith("__")]
        if name.split(".")[0] == "torch" and (private or name.startswith(UNSTABLE)):
            yield name


class TestOneModule:
    @pytest.mark.parametrize(
        "code",
        [
            "import torch._inductor",
            "import torch._inductor.config as config",
            "from torch._inductor import compile",
            "from torch.utils._pytree import tree_map",
            "from torch.nn.modules.batchnorm import _BatchNorm",
            "from torch.fx.experimental.proxy_tensor import make_fx",
            "import torch\ntorch.cuda._compile_kernel('', '')",
            "from torch import nn\nnn.modules.batchnorm._BatchNorm",
            "import torch.nn.functional as F\nF._x",
        ],
    )
    def test_the_check_sees_private_names(self, code: str) -> None:
        assert list(_private_names(ast.parse(code)))

    def test_the_check_lets_public_names_pass(self) -> None:
        code = "import torch\nfrom torch.fx import GraphModule\ntorch.__version__\nself._x\ntorch.ops.kcl.solve"
        assert not list(_private_names(ast.parse(code)))

    def test_no_other_uses_them(self) -> None:
        found = {
            str(path.relative_to(SOURCE)): names
            for path in SOURCE.rglob("*.py")
            if path != ONLY and (names := sorted(_private_names(ast.parse(path.read_text(encoding="utf-8")))))
        }
        assert found == {}


class TestCompiling:
    @staticmethod
    def _step(weights: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        weights.sub_(0.1 * (inputs.mT @ torch.tanh(inputs @ weights)))
        return weights.square().sum()

    def _steps(self, draw: Any) -> list[torch.Tensor]:
        """Three steps with what `compile_step` makes of one."""
        weights, inputs = draw.normal(5, 2), draw.normal(7, 5)
        examples = [weights.clone(), inputs.clone()]
        step = torch_private.compile_step(torch_private.make_fx(self._step)(*examples), [weights.clone(), inputs])
        return [*(torch.as_tensor(step(weights, inputs)) for _ in range(3)), weights]

    def _expected(self, make_noise: Any) -> list[torch.Tensor]:
        draw = make_noise(0)
        weights, inputs = draw.normal(5, 2), draw.normal(7, 5)
        return [*(self._step(weights, inputs) for _ in range(3)), weights]

    def test_without_inductor_s_compile_it_is_torch_compile(
        self, missing: Missing, monkeypatch: pytest.MonkeyPatch, draw: Any, make_noise: Any
    ) -> None:
        compiled: list[Any] = []
        whole = torch.compile

        def noting(graph: Any, **options: Any) -> Any:
            compiled.append(graph)
            return whole(graph, **options, backend="aot_eager")  # the default would need a C++ compiler

        missing("compile")
        monkeypatch.setattr(torch, "compile", noting)
        torch.testing.assert_close(self._steps(draw), self._expected(make_noise))
        assert len(compiled) == 1

    def test_without_make_fx_the_step_runs_uncompiled_and_a_warning_says_so(
        self, missing: Missing, draw: Any, make_noise: Any
    ) -> None:
        missing("make_fx")
        with pytest.warns(UserWarning, match="uncompiled"):
            torch_private.need_compiler()
        found, expected = self._steps(draw), self._expected(make_noise)
        assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))

    def test_without_inductor_the_graph_runs_as_it_is_and_a_warning_says_so(
        self, missing: Missing, monkeypatch: pytest.MonkeyPatch, draw: Any, make_noise: Any
    ) -> None:
        missing("compile")
        monkeypatch.setattr(torch_private, "_has_inductor", lambda: False)
        with pytest.warns(UserWarning, match="uncompiled"):
            torch_private.need_compiler()
        torch.testing.assert_close(self._steps(draw), self._expected(make_noise))

    def test_without_inductor_s_search_the_compiler_is_looked_for_on_the_path(
        self, missing: Missing, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        missing("get_cpp_compiler")
        other = tmp_path / "c++-of-mine"
        monkeypatch.setenv("CXX", str(other))
        with pytest.raises(KclError, match="CXX"):
            torch_private.need_compiler()
        other.touch(mode=0o755)
        torch_private.need_compiler()


class TestKernels:
    def test_without_the_code_cache_philox_is_drawn_in_pytorch(self, missing: Missing) -> None:
        key, step = torch.tensor([[1, 2], [3, 4]]), torch.tensor([5])
        missing("CppCodeCache")
        found, expected = torch.empty(2, 30), torch.empty(2, 30)
        ops.draw_philox(found, key, step, philox.NORMAL)
        philox.draw(expected, key, step, philox.NORMAL)
        assert torch.equal(found, expected)

    def test_without_kernels_of_ours_on_a_gpu_cholesky_is_torch_linalg(
        self, monkeypatch: pytest.MonkeyPatch, draw: Any
    ) -> None:
        """Seen by what is available: the backends in CUDA are the only ones."""
        monkeypatch.delattr(torch.cuda, "_compile_kernel", raising=False)
        for operation in (cholesky.factorise_and_solve, cholesky.solve):
            assert [(backend.device, backend.available()) for backend in operation.backends] == [("cuda", False)] * 2
        features, targets = draw.normal(6, 4), draw.normal(6, 2)
        solved, _ = ops.factorise_and_solve(features @ features.mT, targets, torch.tensor(0.5))
        expected = torch.linalg.solve(features @ features.mT + 0.5 * torch.eye(6), targets)
        torch.testing.assert_close(solved, expected, rtol=1e-4, atol=1e-4)


class Pair(NamedTuple):
    first: Any
    second: Any


class TestContainers:
    TREES = (
        torch.tensor(1.0),
        (),
        [1, (2, [3]), {"b": 4, "a": [5, 6]}],
        Pair({"x": 1}, [2, None]),
        {"tree": Pair((1,), []), "other": {}},
    )

    @pytest.mark.parametrize("tree", TREES, ids=lambda tree: type(tree).__name__)
    def test_they_are_flattened_mapped_and_rebuilt_as_by_pytorch(self, tree: Any) -> None:
        leaves, structure = torch_private.tree_flatten(tree)
        assert leaves == _pytree.tree_flatten(tree)[0]
        assert torch_private.tree_unflatten(leaves, structure) == tree
        assert torch_private.tree_map(str, tree) == _pytree.tree_map(str, tree)

    def test_every_batch_norm_is_recognised(self) -> None:
        known = {name for name in dir(nn) if "BatchNorm" in name and not name.startswith("Lazy")}
        assert {kind.__name__ for kind in BATCH_NORMS} == known
        layers = nn.Flatten(), nn.BatchNorm1d(3)
        assert [ModuleBackbone(nn.Sequential(*layers[:n]), [3]).mixes_samples for n in (1, 2)] == [False, True]
