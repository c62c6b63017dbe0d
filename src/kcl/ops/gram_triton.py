"""ψψᵀ of many runs on the tensor cores at nearly float32's precision, in Triton."""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def _gram(x, out, m, D, run_stride, row_stride, BM: tl.constexpr, BD: tl.constexpr):
    """One BM × BM tile on or below the diagonal of one run, written there and mirrored.

    tf32x3: each number as a sum of two TF32 numbers, three products of the four.
    """
    if tl.program_id(2) > tl.program_id(1):
        return
    run = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * BM + tl.arange(0, BM)
    columns = tl.program_id(2) * BM + tl.arange(0, BM)
    x += run * run_stride
    out += run * m * m
    total = tl.zeros((BM, BM), dtype=tl.float32)
    for start in range(0, D, BD):
        d = start + tl.arange(0, BD)
        left = tl.load(
            x + rows[:, None] * row_stride + d[None, :], mask=(rows < m)[:, None] & (d < D)[None, :], other=0.0
        )
        right = tl.load(
            x + columns[:, None] * row_stride + d[None, :], mask=(columns < m)[:, None] & (d < D)[None, :], other=0.0
        )
        total = tl.dot(left, tl.trans(right), total, input_precision="tf32x3")
    inside = (rows < m)[:, None] & (columns < m)[None, :]
    tl.store(out + columns[None, :] * m + rows[:, None], total, mask=inside)
    tl.store(out + rows[:, None] * m + columns[None, :], total, mask=inside)


def gram(features):
    *runs, size, width = features.shape
    flat = features.reshape(-1, size, width)
    flat = flat if flat.stride(-1) == 1 else flat.contiguous()
    out = features.new_empty(*runs, size, size)
    side, depth = (16, 128) if len(flat) * size**2 <= 200_000 else (32, 64)  # few runs: smaller tiles, more programs
    tiles = -(-size // side)
    _gram[(len(flat), tiles, tiles)](flat, out, size, width, flat.stride(0), flat.stride(1), side, depth, num_warps=2)
    return out
