"""Four ways to solve (K + λI) α = Y for many small K at once on a GPU: time inside a CUDA graph, error against float64.

    PYTHONPATH=src python benches/solve.py [--json FILE]

`register kernel` is what the library uses; `cuSOLVER` its fallback; the other two are here for comparison only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import triton_cholesky
from kcl.ops import cholesky


def register_kernel(gram: Tensor, targets: Tensor, strength: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    solution, factor = cholesky.factorise_and_solve(gram, targets, strength)
    return solution, lambda right: cholesky.solve(factor, right)


def cusolver(gram: Tensor, targets: Tensor, strength: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    factor = torch.linalg.cholesky_ex(gram + strength[:, None, None] * torch.eye(gram.shape[-1], device="cuda"))[0]

    def again(right: Tensor) -> Tensor:
        half = torch.linalg.solve_triangular(factor, right, upper=False)
        return torch.linalg.solve_triangular(factor.mT, half, upper=True)

    return again(targets), again


def newton_schulz(gram: Tensor, targets: Tensor, strength: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """X ← X(2I − AX), 18 times: the inverse itself, which serves every right-hand side."""
    identity = torch.eye(gram.shape[-1], device="cuda")
    matrix = gram + strength[:, None, None] * identity
    inverse = identity * (1.0 / matrix.abs().sum(-1).amax(-1))[:, None, None]
    for _ in range(18):
        inverse = torch.baddbmm(2.0 * inverse, inverse, matrix @ inverse, alpha=-1)
    return inverse @ targets, lambda right: inverse @ right


def triton_block(gram: Tensor, targets: Tensor, strength: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    runs, size, block = len(gram), gram.shape[-1], 16
    padded = max(block, 1 << (size - 1).bit_length())
    factor, inverse = gram.new_empty(runs, padded, padded), gram.new_empty(runs, padded, block)
    triton_cholesky.factorise[(runs,)](
        gram, strength, factor, inverse, size, gram.stride(0), gram.stride(1), padded, block, "tf32x3", num_warps=4
    )

    def again(right: Tensor) -> Tensor:
        width = max(16, 1 << (right.shape[-1] - 1).bit_length())
        out = right.new_empty(runs, padded, width)
        triton_cholesky.solve[(runs,)](
            factor, inverse, right, out, size, right.shape[-1], padded, block, width, "tf32x3", num_warps=4
        )
        return out[:, :size, : right.shape[-1]]

    return again(targets), again


WAYS = {
    "register kernel": register_kernel,
    "Triton, one block a matrix": triton_block,
    "cuSOLVER": cusolver,
    "Newton–Schulz": newton_schulz,
}


def microseconds(action: Callable[[], object], repeats: int = 50) -> float:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            action()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        action()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(5):
        graph.replay()
    begin.record()
    for _ in range(repeats):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * begin.elapsed_time(end) / repeats


def problem(runs: int, size: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random Fourier features of unit vectors, one-hot targets, λ between 0.02 and 0.12."""
    features = torch.rand(runs, size, 256, device="cuda")
    features = features / features.norm(dim=-1, keepdim=True)
    angles = features @ torch.randn(runs, 1024, 256, device="cuda").mT + 6.2832 * torch.rand(1024, device="cuda")
    psi = (2 / 1024) ** 0.5 * torch.cos(angles)
    targets = torch.eye(classes, device="cuda")[torch.arange(size, device="cuda") % classes].repeat(runs, 1, 1)
    return psi @ psi.mT, targets, 0.02 + 0.1 * torch.rand(runs, device="cuda")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    torch.manual_seed(0)
    for runs, size, classes in ((5, 200, 10), (20, 200, 10), (5, 100, 5), (5, 150, 5), (5, 250, 5)):
        gram, targets, strength = problem(runs, size, classes)
        matrix = gram.double() + strength.double()[:, None, None] * torch.eye(size, device="cuda").double()
        exact = torch.linalg.solve(matrix, targets.double())
        for name, way in WAYS.items():
            solution, again = way(gram, targets, strength)
            rows.append(
                {
                    "runs": runs, "size": size, "classes": classes, "way": name,
                    "solve_us": microseconds(partial(way, gram, targets, strength)),
                    "again_us": microseconds(partial(again, targets)),
                    "relative_error": float((solution.double() - exact).norm() / exact.norm()),
                }
            )  # fmt: skip
            print("{runs:3} x {size:3}, {classes:2} classes  {way:28} {solve_us:8.1f} us, again {again_us:7.1f} us, "
                  "error {relative_error:.1e}".format(**rows[-1]))  # fmt: skip
    if options.json:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        options.json.write_text(json.dumps({**about, "rows": rows}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
