"""`philox.draw` in Triton: one program fills the part of one run's row that belongs to BLOCK counters."""

# mypy: ignore-errors
import torch
import triton
import triton.language as tl

from kcl.ops.philox import KEPT


@triton.jit
def _draw(out, key, step, rates, first, n, stride, KIND: tl.constexpr, BLOCK: tl.constexpr):
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
    blocks = -(-out.shape[1] // 4)
    rows = out.view(torch.int32) if kind == KEPT else out
    # Blocks are the grid's first dimension: the others end at 65,535, fewer than the blocks of a large step's masks.
    _draw[(-(-blocks // 1024), len(out))](rows, key, step, rates, first, out.shape[1], rows.stride(0), kind, 1024)
