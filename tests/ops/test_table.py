"""The table of operations: every backend that this machine can use against the reference, and the rule that chooses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from kcl import ops
from kcl.functional import ridge
from kcl.ops import cholesky, philox
from kcl.ops.operation import Backend, Operation, tracing
from kcl.ops.precision import products

OPERATIONS = [*ops.OPERATIONS, ridge.query_scores]
ALONE = "KCL_TEST_ALONE"
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def _draws(kind: int) -> list[Any]:
    rates = torch.tensor([0.2, 0.7]) if kind == philox.KEPT else None
    out = torch.zeros(2, 400, dtype=torch.bool if kind == philox.KEPT else torch.float32)
    return [out, torch.tensor([[1, 2], [2**32 - 1, 5]]), torch.tensor([3]), kind, rates, 4]


def _system(draw: Any, size: int) -> list[Tensor]:
    features = draw.normal(3, size, 10)
    return [features @ features.mT, draw.normal(3, size, 4), 0.5 + draw.uniform(3)]


EXAMPLES: dict[str, Callable[[Any], list[list[Any]]]] = {
    "affine_rows": lambda draw: [[draw.normal(4, 1, 6), draw.normal(4, 6, 5), draw.normal(4, 1, 5)]],
    "descend": lambda draw: [
        [*(draw.normal(3, 50) for _ in range(3)), torch.tensor([[True], [False], [True]]), draw.uniform(3, 1),
         draw.uniform(3, 1)]
    ],
    "draw_philox": lambda _: [_draws(kind) for kind in (philox.NORMAL, philox.UNIFORM, philox.KEPT)],
    "factorise_and_solve": lambda draw: [_system(draw, 20)],
    "gram": lambda draw: [[draw.normal(7, 5)], [draw.normal(3, 7, 5)]],
    "inner": lambda draw: [[draw.normal(7, 5), draw.normal(4, 5)]],
    "linear": lambda draw: [[draw.normal(7, 5), draw.normal(4, 5), draw.normal(4)]],
    "query_scores": lambda draw: [[draw.normal(3, 9, 6), draw.normal(3, 5, 2), 0.5 + draw.uniform(3)]],
    "rounded_matmul": lambda draw: [[draw.normal(3, 7, 5), draw.normal(3, 5, 4)]],
}  # fmt: skip
"""Arguments for every operation; `solve` is tested with `factorise_and_solve`, whose factor it takes."""


def _results(function: Callable[..., Any], args: list[Any]) -> list[Tensor]:
    """What it returns, and what it leaves in its arguments."""
    args = [value.clone() if isinstance(value, Tensor) else value for value in args]
    returned = function(*args)
    if isinstance(returned, tuple):  # the factor's form is the backend's own affair
        returned = returned[0]
    return [value.double() for value in (returned, *args) if isinstance(value, Tensor)]


def _backends() -> list[Any]:
    """Every backend with a device of this machine that it is for, where it is available."""
    return [
        pytest.param(operation, backend, id=f"{operation.name}-{backend.name}")
        for operation in OPERATIONS
        for backend in operation.backends
        if backend.device in DEVICES and operation.name != "solve" and backend.available()
    ]


def test_every_operation_is_tested() -> None:
    assert {operation.name for operation in OPERATIONS} - {"solve"} == set(EXAMPLES)
    assert all(getattr(ops, operation.name) is operation for operation in ops.OPERATIONS)


@pytest.mark.parametrize(("operation", "backend"), _backends())
def test_a_backend_computes_what_the_reference_does(
    operation: Operation, backend: Backend, draw: Any, request: pytest.FixtureRequest
) -> None:
    if backend.name == "C++" and ALONE not in os.environ:  # other tests' imports can keep the compiler from working
        again = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", request.node.nodeid]
        subprocess.run(again, cwd=request.config.rootpath, env=os.environ | {ALONE: "1"}, timeout=300, check=True)
        return
    for example in EXAMPLES[operation.name](draw):
        args = [value.to(backend.device) if isinstance(value, Tensor) else value for value in example]
        if operation.name == "factorise_and_solve" and backend.run is cholesky.eliminate:
            continue  # for matrices that are too large for the kernel; `test_cholesky` and `test_device` have those
        for found, expected in zip(_results(backend.run, args), _results(operation.reference, args), strict=True):
            torch.testing.assert_close(found, expected, rtol=0.0, atol=backend.tolerance * float(expected.abs().max()))


def test_a_factor_solves_what_it_was_made_for(draw: Any) -> None:
    for device in DEVICES:
        system = [value.to(device) for value in _system(draw, 20)]
        solved, factor = ops.factorise_and_solve(*system)
        torch.testing.assert_close(ops.solve(factor, system[1]), solved, rtol=1e-4, atol=1e-4)


class TestTheRule:
    """The first backend that is for the device, suits and is available; otherwise the reference."""

    @staticmethod
    def _answer(**options: Any) -> str:
        backend = Backend("backend", **({"device": "cpu", "run": lambda _: "backend"} | options))
        return Operation("operation", lambda _: "reference", [backend])(torch.zeros(1))

    def test_takes_a_backend_that_fits(self) -> None:
        assert self._answer() == "backend"

    @pytest.mark.parametrize(
        "options",
        [{"device": "cuda"}, {"suits": lambda _: False}, {"available": lambda: False}],
        ids=["device", "suits", "available"],
    )
    def test_takes_the_reference_otherwise(self, options: dict[str, Any]) -> None:
        assert self._answer(**options) == "reference"

    def test_does_not_ask_what_is_available_for_another_device(self) -> None:
        def unreached() -> bool:
            raise AssertionError

        assert self._answer(device="cuda", available=unreached) == "reference"

    def test_bfloat16_is_used_where_it_is_allowed(self, draw: Any) -> None:
        left, right = draw.normal(7, 5), draw.normal(5, 4)
        plain = ops.rounded_matmul(left, right)
        assert torch.equal(plain, left @ right)
        with products("bf16"):
            assert not torch.equal(ops.rounded_matmul(left, right), plain)

    def test_a_traced_step_on_a_cpu_computes_scores_from_one_gram_matrix(self, draw: Any) -> None:
        args = [draw.normal(9, 6), draw.normal(5, 2), torch.tensor(0.5)]
        by_weights, by_gram = ridge.query_scores.reference, ridge.query_scores.backends[0].run
        with tracing():
            traced = [
                [str(node.target) for node in make_fx(function)(*args).graph.nodes if node.op == "call_function"]
                for function in (ridge.query_scores, by_gram, by_weights)
            ]
        assert traced[0] == traced[1] != traced[2]
        assert torch.equal(ridge.query_scores(*args), by_weights(*args))


def test_single_rows_as_products_and_sums_equal_a_batched_product(draw: Any) -> None:
    """What a step traced on a GPU computes, on any device."""
    for args in EXAMPLES["affine_rows"](draw):
        torch.testing.assert_close(ops.affine_rows.backends[0].run(*args), ops.affine_rows(*args))


def test_the_table_is_imported_without_triton() -> None:
    """Nor is a compiler loaded: that takes seconds."""
    code = (
        "import sys, kcl.ops; print(*(name for name in ('triton', 'torch._inductor.codecache') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == ""
