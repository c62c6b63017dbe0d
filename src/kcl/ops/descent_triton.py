"""`descent.descend` in Triton: every tensor is read and written once."""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def descend(flat, velocity, gradient, alive, rate, momentum, n, BLOCK: tl.constexpr):
    run = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    place = run * n + i
    v = tl.load(velocity + place, mask=inside) * tl.load(momentum + run) + tl.load(gradient + place, mask=inside)
    tl.store(velocity + place, v, mask=inside)
    x = tl.load(flat + place, mask=inside)
    tl.store(flat + place, x - tl.load(rate + run) * v, mask=inside & (tl.load(alive + run) != 0))
