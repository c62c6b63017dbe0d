"""The smaller Triton kernels: SGD, Gram matrices, images as rows of channels, Philox."""

# mypy: ignore-errors
import torch
import triton
import triton.language as tl

from kcl.ops.philox import KEPT


@triton.jit
def descend(flat, velocity, gradient, alive, rate, momentum, n, BLOCK: tl.constexpr):
    """`ops.descend`: every tensor is read and written once."""
    run = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    place = run * n + i
    v = tl.load(velocity + place, mask=inside) * tl.load(momentum + run) + tl.load(gradient + place, mask=inside)
    tl.store(velocity + place, v, mask=inside)
    x = tl.load(flat + place, mask=inside)
    tl.store(flat + place, x - tl.load(rate + run) * v, mask=inside & (tl.load(alive + run) != 0))


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
    """ψψᵀ of many runs on the tensor cores at nearly float32's precision."""
    *runs, size, width = features.shape
    flat = features.reshape(-1, size, width)
    flat = flat if flat.stride(-1) == 1 else flat.contiguous()
    out = features.new_empty(*runs, size, size)
    side, depth = (16, 128) if len(flat) * size**2 <= 200_000 else (32, 64)  # few runs: smaller tiles, more programs
    tiles = -(-size // side)
    _gram[(len(flat), tiles, tiles)](flat, out, size, width, flat.stride(0), flat.stride(1), side, depth, num_warps=2)
    return out


@triton.jit
def pack(
    images, out, image_stride, samples, before, height, width, out_pixels, out_width, padding,
    CHANNELS: tl.constexpr, FOLD: tl.constexpr, PADDED: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Images (samples, CHANNELS, height, width) of a run as rows of PADDED channels, after its first `before` samples:
    a row is a square of FOLD × FOLD pixels (`ops.folding`), pixel by pixel.
    """
    sample = tl.program_id(1).to(tl.int64)
    run = tl.program_id(2).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, COLUMNS)
    within = c // CHANNELS
    y = (place // out_width * FOLD - padding)[:, None] + (within // FOLD)[None, :]
    x = (place % out_width * FOLD - padding)[:, None] + (within % FOLD)[None, :]
    inside = (place < out_pixels)[:, None] & (c < PADDED)[None, :]
    shown = inside & (within < FOLD * FOLD)[None, :] & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    source = images + run * image_stride + (sample * CHANNELS + (c % CHANNELS)[None, :]) * height * width
    value = tl.load(source + y * width + x, mask=shown, other=0.0)
    row = (run * samples + before + sample) * out_pixels + place[:, None]
    tl.store(out + row * PADDED + c[None, :], value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _draw(out, key, step, rates, first, n, stride, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """One program fills the part of one run's row that belongs to BLOCK counters."""
    run = tl.program_id(1).to(tl.int64)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k0 = tl.load(key + 2 * run).to(tl.uint32)
    k1 = tl.load(key + 2 * run + 1).to(tl.uint32)
    c0 = (first + index).to(tl.uint32)
    c1 = tl.zeros_like(c0) + tl.load(step).to(tl.uint32)
    c2 = tl.zeros_like(c0) + KIND
    c3 = tl.zeros_like(c0)
    m0 = tl.full((BLOCK,), 0xD2511F53, tl.uint32)
    m1 = tl.full((BLOCK,), 0xCD9E8D57, tl.uint32)
    for _ in tl.static_range(10):
        h0 = tl.umulhi(m0, c0)
        h1 = tl.umulhi(m1, c2)
        l0 = m0 * c0
        l1 = m1 * c2
        c0 = h1 ^ c1 ^ k0
        c1 = l1
        c2 = h0 ^ c3 ^ k1
        c3 = l0
        k0 += 0x9E3779B9
        k1 += 0xBB67AE85
    unit: tl.constexpr = 5.9604644775390625e-08  # 2⁻²⁴
    v0 = (c0 >> 8).to(tl.float32) * unit
    v1 = (c1 >> 8).to(tl.float32) * unit
    v2 = (c2 >> 8).to(tl.float32) * unit
    v3 = (c3 >> 8).to(tl.float32) * unit
    if KIND == 2:  # four answers of a byte each, written as one word
        rate = tl.load(rates + run)
        b0 = (v0 >= rate).to(tl.int32)
        b1 = (v1 >= rate).to(tl.int32) << 8
        b2 = (v2 >= rate).to(tl.int32) << 16
        b3 = (v3 >= rate).to(tl.int32) << 24
        tl.store(out + run * stride + index, b0 | b1 | b2 | b3, mask=4 * index < n)
    else:
        if KIND == 0:
            turn: tl.constexpr = 6.283185307179586
            r0 = tl.sqrt(-2.0 * tl.log(1.0 - v0))
            r1 = tl.sqrt(-2.0 * tl.log(1.0 - v2))
            a0 = turn * v1
            a1 = turn * v3
            v0 = r0 * tl.cos(a0)
            v1 = r0 * tl.sin(a0)
            v2 = r1 * tl.cos(a1)
            v3 = r1 * tl.sin(a1)
        values = tl.reshape(tl.join(tl.join(v0, v2), tl.join(v1, v3)), (4 * BLOCK,))
        place = tl.program_id(0) * 4 * BLOCK + tl.arange(0, 4 * BLOCK)
        tl.store(out + run * stride + place, values, mask=place < n)


def draw(out, key, step, kind, rates=None, first=0):
    """`philox.draw`."""
    blocks = -(-out.shape[1] // 4)
    rows = out.view(torch.int32) if kind == KEPT else out
    # Blocks are the grid's first dimension: the others end at 65,535, fewer than the blocks of a large step's masks.
    _draw[(-(-blocks // 1024), len(out))](rows, key, step, rates, first, out.shape[1], rows.stride(0), kind, 1024)
