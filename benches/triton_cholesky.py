"""Cholesky factorisation and solve of one small matrix per program, in Triton.

A blocked, left-looking factorisation. Panels of B columns live in registers; finished panels lie in global memory,
where the caches hold them. The inverses of the B × B diagonal blocks are kept too, so that every triangular solve
is a product. Barriers order the block's own writes before its reads.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def factorise(
    gram, strength, factor, inverse, m, run_stride, row_stride, M: tl.constexpr, B: tl.constexpr, P: tl.constexpr
):
    """L of K + λI into `factor` (M × M per run, M ≥ m) and the inverted diagonal blocks into `inverse` (M × B)."""
    run = tl.program_id(0).to(tl.int64)
    shift = tl.load(strength + run)
    gram += run * run_stride
    factor += run * M * M
    inverse += run * M * B
    rows = tl.arange(0, M)
    small = tl.arange(0, B)
    for k in range(tl.cdiv(m, B)):
        columns = k * B + small
        inside = (rows[:, None] < m) & (columns[None, :] < m)
        panel = tl.load(gram + rows[:, None] * row_stride + columns[None, :], mask=inside, other=0.0)
        # Beyond m the matrix continues as the identity, which leaves the factor of the rest alone.
        diagonal = tl.where(rows < m, shift, 1.0)
        panel += tl.where(rows[:, None] == columns[None, :], diagonal[:, None], 0.0)
        for p in range(k):
            earlier = p * B + small
            left = tl.load(factor + rows[:, None] * M + earlier[None, :])
            top = tl.load(factor + columns[:, None] * M + earlier[None, :])
            panel -= tl.dot(left, tl.trans(top), input_precision=P)
        tl.store(factor + rows[:, None] * M + columns[None, :], panel)
        tl.debug_barrier()
        block = tl.load(factor + columns[:, None] * M + columns[None, :])
        tl.debug_barrier()
        inverted = tl.where(small[:, None] == small[None, :], 1.0, 0.0)
        for j in range(B):
            down = tl.sum(tl.where(small[None, :] == j, block, 0.0), axis=1)
            across = tl.sum(tl.where(small[:, None] == j, block, 0.0), axis=0)
            pivot = tl.sum(tl.where(small == j, across, 0.0), axis=0)
            root = 1.0 / tl.sqrt(pivot)
            down = tl.where(small >= j, down * root, 0.0)
            across = tl.where(small >= j, across * root, 0.0)
            block -= down[:, None] * across[None, :]
            chosen = tl.sum(tl.where(small[:, None] == j, inverted, 0.0), axis=0) * root
            below = tl.where(small > j, down, 0.0)
            inverted = tl.where(small[:, None] == j, chosen[None, :], inverted - below[:, None] * chosen[None, :])
        tl.store(inverse + columns[:, None] * B + small[None, :], inverted)
        panel = tl.dot(panel, tl.trans(inverted), input_precision=P)
        panel = tl.where(rows[:, None] >= columns[None, :], panel, 0.0)
        tl.store(factor + rows[:, None] * M + columns[None, :], panel)
        tl.debug_barrier()


@triton.jit
def solve(factor, inverse, targets, out, m, c, M: tl.constexpr, B: tl.constexpr, C: tl.constexpr, P: tl.constexpr):
    """(L Lᵀ)⁻¹ Y into `out` (M × C per run, scratch beyond m × c)."""
    run = tl.program_id(0).to(tl.int64)
    factor += run * M * M
    inverse += run * M * B
    targets += run * m * c
    out += run * M * C
    rows = tl.arange(0, M)
    small = tl.arange(0, B)
    classes = tl.arange(0, C)
    inside = (rows[:, None] < m) & (classes[None, :] < c)
    rest = tl.load(targets + rows[:, None] * c + classes[None, :], mask=inside, other=0.0)
    tl.store(out + rows[:, None] * C + classes[None, :], rest)
    tl.debug_barrier()
    blocks = tl.cdiv(m, B)
    for k in range(blocks):  # L z = Y
        columns = k * B + small
        here = tl.load(out + columns[:, None] * C + classes[None, :])
        inverted = tl.load(inverse + columns[:, None] * B + small[None, :])
        solved = tl.dot(inverted, here, input_precision=P)
        left = tl.load(factor + rows[:, None] * M + columns[None, :], mask=rows[:, None] >= (k + 1) * B, other=0.0)
        rest -= tl.dot(left, solved, input_precision=P)
        tl.debug_barrier()
        tl.store(out + rows[:, None] * C + classes[None, :], rest, mask=rows[:, None] >= (k + 1) * B)
        tl.store(out + columns[:, None] * C + classes[None, :], solved)
        tl.debug_barrier()
    rest = tl.load(out + rows[:, None] * C + classes[None, :])
    for step in range(blocks):  # Lᵀ α = z
        k = blocks - 1 - step
        columns = k * B + small
        here = tl.load(out + columns[:, None] * C + classes[None, :])
        inverted = tl.load(inverse + columns[:, None] * B + small[None, :])
        solved = tl.dot(tl.trans(inverted), here, input_precision=P)
        above = tl.load(factor + columns[:, None] * M + rows[None, :], mask=rows[None, :] < k * B, other=0.0)
        rest -= tl.dot(tl.trans(above), solved, input_precision=P)
        tl.debug_barrier()
        tl.store(out + rows[:, None] * C + classes[None, :], rest, mask=rows[:, None] < k * B)
        tl.store(out + columns[:, None] * C + classes[None, :], solved)
        tl.debug_barrier()
