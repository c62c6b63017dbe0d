"""The gradients of relu → BatchNorm → dropout in Triton. `norm_triton` says how rows are divided among programs."""

# mypy: ignore-errors
import triton
import triton.language as tl

from kcl.ops.norm_triton import _parameters, _place, _seen, _span


@triton.jit
def _incoming(
    grad,
    x,
    kept,
    rise,
    place,
    drop_place,
    inside,
    m,
    d,
    w,
    b,
    RELU_BEFORE: tl.constexpr,
    RELU_AFTER: tl.constexpr,
    DROPS: tl.constexpr,
):
    """The gradient of the normalised values, those values, and the values before normalisation."""
    raw = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    normal = (_seen(raw, RELU_BEFORE) - m) * d
    g = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
    if DROPS:
        g *= tl.load(kept + drop_place, mask=inside, other=0).to(tl.float32) * rise
    if RELU_AFTER:
        g = tl.where(normal * w + b > 0.0, g, 0.0)
    return g, normal, raw


@triton.jit
def sums(
    grad,
    x,
    mean,
    deviation,
    weight,
    weight_stride,
    bias,
    bias_stride,
    kept,
    kept_stride,
    rates,
    plain,
    weighted,
    rows,
    first,
    stretch,
    real_channels,
    RELU_BEFORE: tl.constexpr,
    RELU_AFTER: tl.constexpr,
    DROPS: tl.constexpr,
    PARTS: tl.constexpr,
    CHANNELS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Σ g and Σ g·x̂ of every channel over one stretch."""
    number = tl.program_id(0)
    run = tl.program_id(1).to(tl.int64)
    begin, end, second = _span(number, rows, first, stretch)
    c = tl.arange(0, COLUMNS)
    weight += run * weight_stride
    bias += run * bias_stride
    m, d, w, b = _parameters(mean, deviation, weight, bias, run, second, real_channels, c, PARTS, CHANNELS)
    rise = 1.0
    if DROPS:
        rise = 1.0 / (1.0 - tl.load(rates + run))
    one = tl.zeros((TILE, COLUMNS), tl.float32)
    two = tl.zeros((TILE, COLUMNS), tl.float32)
    for start in range(begin, end, TILE):
        r = start + tl.arange(0, TILE)
        inside = (r < end)[:, None] & (c < CHANNELS)[None, :]
        within = r[:, None] * CHANNELS + c[None, :]
        place = run * rows * CHANNELS + within
        g, normal, _ = _incoming(
            grad, x, kept, rise, place, run * kept_stride + within, inside, m, d, w, b, RELU_BEFORE, RELU_AFTER, DROPS
        )
        one += g
        two += g * normal
    place = (run * tl.num_programs(0) + number) * CHANNELS + c
    tl.store(plain + place, tl.sum(one, 0), mask=c < CHANNELS)
    tl.store(weighted + place, tl.sum(two, 0), mask=c < CHANNELS)


@triton.jit
def totals(
    plain,
    weighted,
    plain_mean,
    weighted_mean,
    weight_grad,
    bias_grad,
    rows,
    first,
    stretch,
    stretches,
    real_channels,
    PARTS: tl.constexpr,
    CHANNELS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STRETCHES: tl.constexpr,
):
    """Each part's means of g and g·x̂; over both parts, the gradients of BatchNorm's parameters."""
    run = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    before = (first + stretch - 1) // stretch
    all_one = tl.zeros((COLUMNS,), tl.float32)
    all_two = tl.zeros((COLUMNS,), tl.float32)
    for part in tl.static_range(PARTS):
        s = tl.arange(0, STRETCHES)
        number = s + (before if part == 1 else 0)
        length = rows - first if part == 1 else first
        mask = (s * stretch < length)[:, None] & (c < CHANNELS)[None, :]
        place = (run * stretches + number)[:, None] * CHANNELS + c[None, :]
        one = tl.sum(tl.load(plain + place, mask=mask, other=0.0), 0)
        two = tl.sum(tl.load(weighted + place, mask=mask, other=0.0), 0)
        out = (run * PARTS + part) * CHANNELS + c
        tl.store(plain_mean + out, one / length.to(tl.float32), mask=c < CHANNELS)
        tl.store(weighted_mean + out, two / length.to(tl.float32), mask=c < CHANNELS)
        all_one += one
        all_two += two
    tl.store(bias_grad + run * real_channels + c, all_one, mask=c < real_channels)
    tl.store(weight_grad + run * real_channels + c, all_two, mask=c < real_channels)


@triton.jit
def backward(
    grad,
    x,
    mean,
    deviation,
    weight,
    weight_stride,
    bias,
    bias_stride,
    kept,
    kept_stride,
    rates,
    plain_mean,
    weighted_mean,
    out,
    rows,
    first,
    stretch,
    real_channels,
    RELU_BEFORE: tl.constexpr,
    RELU_AFTER: tl.constexpr,
    DROPS: tl.constexpr,
    PARTS: tl.constexpr,
    CHANNELS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
):
    """∂L/∂x = w/σ · (g − mean(g) − x̂ · mean(g·x̂)), where relu let x through."""
    number, run = _place(True)
    begin, end, second = _span(number, rows, first, stretch)
    c = tl.arange(0, COLUMNS)
    weight += run * weight_stride
    bias += run * bias_stride
    m, d, w, b = _parameters(mean, deviation, weight, bias, run, second, real_channels, c, PARTS, CHANNELS)
    part = (run * PARTS + second) * CHANNELS + c
    one = tl.load(plain_mean + part, mask=c < CHANNELS, other=0.0)[None, :]
    two = tl.load(weighted_mean + part, mask=c < CHANNELS, other=0.0)[None, :]
    rise = 1.0
    if DROPS:
        rise = 1.0 / (1.0 - tl.load(rates + run))
    for start in range(begin, end, TILE):
        r = start + tl.arange(0, TILE)
        inside = (r < end)[:, None] & (c < CHANNELS)[None, :]
        within = r[:, None] * CHANNELS + c[None, :]
        place = run * rows * CHANNELS + within
        g, normal, raw = _incoming(
            grad, x, kept, rise, place, run * kept_stride + within, inside, m, d, w, b, RELU_BEFORE, RELU_AFTER, DROPS
        )
        value = w * d * (g - one - normal * two)
        if RELU_BEFORE:
            value = tl.where(raw > 0.0, value, 0.0)
        tl.store(out + place, value.to(out.dtype.element_ty), mask=inside)
