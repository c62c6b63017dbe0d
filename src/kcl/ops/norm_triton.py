"""relu → BatchNorm → dropout of many runs in Triton, with as few reads as possible; `norm_backward_triton` has the
gradients.

Activations are (runs, rows, CHANNELS): a row is a pixel of an image, channels last. The first `first` rows of a run are
the batch, the rest its coreset; each part has its own statistics. The last of the CHANNELS may be padding: there are
`real_channels` parameters. Sums are taken over stretches of `stretch` rows, then over the stretches, in an order that
depends only on the shapes. A kernel that reads what the previous one has read starts where that one ended: there the
cache still holds it.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def _span(stretch_number, rows, first, stretch):
    """Where a stretch of rows begins and ends, and its part; no stretch spans both parts."""
    before = (first + stretch - 1) // stretch
    second = stretch_number >= before
    begin = tl.where(second, first + (stretch_number - before) * stretch, stretch_number * stretch)
    end = tl.minimum(begin + stretch, tl.where(second, rows, first))
    return begin, end, second.to(tl.int32)


@triton.jit
def _place(LAST_FIRST: tl.constexpr):
    """The stretch and the run of this program."""
    number = tl.program_id(0)
    run = tl.program_id(1).to(tl.int64)
    if LAST_FIRST:
        number = tl.num_programs(0) - 1 - number
        run = tl.num_programs(1) - 1 - run
    return number, run


@triton.jit
def _seen(x, RELU_BEFORE: tl.constexpr):
    return tl.maximum(x, 0.0) if RELU_BEFORE else x


@triton.jit
def moments(
    x,
    means,
    squares,
    rows,
    first,
    stretch,
    RELU_BEFORE: tl.constexpr,
    CHANNELS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Mean and sum of squared deviations of every channel over one stretch, summed about the stretch's first row."""
    number = tl.program_id(0)
    run = tl.program_id(1).to(tl.int64)
    begin, end, _ = _span(number, rows, first, stretch)
    c = tl.arange(0, COLUMNS)
    x += run * rows * CHANNELS
    pivot = _seen(tl.load(x + begin * CHANNELS + c, mask=c < CHANNELS, other=0.0).to(tl.float32), RELU_BEFORE)
    one = tl.zeros((TILE, COLUMNS), tl.float32)
    two = tl.zeros((TILE, COLUMNS), tl.float32)
    for start in range(begin, end, TILE):
        r = start + tl.arange(0, TILE)
        inside = (r < end)[:, None] & (c < CHANNELS)[None, :]
        value = _seen(
            tl.load(x + r[:, None] * CHANNELS + c[None, :], mask=inside, other=0.0).to(tl.float32), RELU_BEFORE
        )
        away = tl.where(inside, value - pivot[None, :], 0.0)
        one += away
        two += away * away
    shift = tl.sum(one, 0) / (end - begin).to(tl.float32)
    mean = pivot + shift
    square = tl.sum(two, 0) - shift * shift * (end - begin).to(tl.float32)
    place = (run * tl.num_programs(0) + number) * CHANNELS + c
    tl.store(means + place, mean, mask=c < CHANNELS)
    tl.store(squares + place, square, mask=c < CHANNELS)


@triton.jit
def statistics(
    means,
    squares,
    mean_out,
    deviation_out,
    running_mean,
    running_variance,
    rows,
    first,
    stretch,
    stretches,
    real_channels,
    eps,
    PARTS: tl.constexpr,
    CHANNELS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STRETCHES: tl.constexpr,
):
    """Mean and 1/√(variance + ε) of each part of a run; each part in turn updates the running averages."""
    run = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real = c < real_channels
    before = (first + stretch - 1) // stretch
    running_m = tl.load(running_mean + run * real_channels + c, mask=real, other=0.0)
    running_v = tl.load(running_variance + run * real_channels + c, mask=real, other=0.0)
    for part in tl.static_range(PARTS):
        s = tl.arange(0, STRETCHES)
        number = s + (before if part == 1 else 0)
        length = rows - first if part == 1 else first
        inside = s * stretch < length
        n = tl.where(inside, tl.minimum(length - s * stretch, stretch), 0).to(tl.float32)[:, None]
        place = (run * stretches + number)[:, None] * CHANNELS + c[None, :]
        mask = inside[:, None] & (c < CHANNELS)[None, :]
        m = tl.load(means + place, mask=mask, other=0.0)
        q = tl.load(squares + place, mask=mask, other=0.0)
        total = length.to(tl.float32)
        mean = tl.sum(m * n, 0) / total
        away = m - mean[None, :]
        variance = tl.sum(q + away * away * n, 0) / total
        out = (run * PARTS + part) * CHANNELS + c
        tl.store(mean_out + out, mean, mask=c < CHANNELS)
        tl.store(deviation_out + out, 1.0 / tl.sqrt(variance + eps), mask=c < CHANNELS)
        running_m = 0.9 * running_m + 0.1 * mean
        running_v = 0.9 * running_v + 0.1 * variance * (total / (total - 1.0))
    tl.store(running_mean + run * real_channels + c, running_m, mask=real)
    tl.store(running_variance + run * real_channels + c, running_v, mask=real)


@triton.jit
def _parameters(
    mean, deviation, weight, bias, run, second, real_channels, c, PARTS: tl.constexpr, CHANNELS: tl.constexpr
):
    """Statistics and parameters of a stretch's part. A padded channel has weight and bias 0, so it stays 0."""
    place = (run * PARTS + second) * CHANNELS + c
    m = tl.load(mean + place, mask=c < CHANNELS, other=0.0)
    d = tl.load(deviation + place, mask=c < CHANNELS, other=0.0)
    w = tl.load(weight + c, mask=c < real_channels, other=0.0)
    b = tl.load(bias + c, mask=c < real_channels, other=0.0)
    return m[None, :], d[None, :], w[None, :], b[None, :]


@triton.jit
def _normed(
    x,
    kept,
    rise,
    residual,
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
    ADDS: tl.constexpr,
):
    """dropout(BN(relu(x))) + residual for some entries."""
    value = _seen(tl.load(x + place, mask=inside, other=0.0).to(tl.float32), RELU_BEFORE)
    value = (value - m) * d * w + b
    if RELU_AFTER:
        value = tl.maximum(value, 0.0)
    if DROPS:
        value *= tl.load(kept + drop_place, mask=inside, other=0).to(tl.float32) * rise
    if ADDS:
        value += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    return value


@triton.jit
def forward(
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
    residual,
    out,
    next_means,
    next_squares,
    rows,
    first,
    stretch,
    real_channels,
    RELU_BEFORE: tl.constexpr,
    RELU_AFTER: tl.constexpr,
    DROPS: tl.constexpr,
    ADDS: tl.constexpr,
    CHAINS: tl.constexpr,
    LAST_FIRST: tl.constexpr,
    PARTS: tl.constexpr,
    CHANNELS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The output, and with CHAINS the `moments` of relu(output), which the next BatchNorm uses."""
    number, run = _place(LAST_FIRST)
    begin, end, second = _span(number, rows, first, stretch)
    c = tl.arange(0, COLUMNS)
    weight += run * weight_stride
    bias += run * bias_stride
    kept += run * kept_stride
    m, d, w, b = _parameters(mean, deviation, weight, bias, run, second, real_channels, c, PARTS, CHANNELS)
    rise = 1.0
    if DROPS:
        rise = 1.0 / (1.0 - tl.load(rates + run))
    offset = run * rows * CHANNELS
    if CHAINS:
        only = (begin + tl.arange(0, 1))[:, None] * CHANNELS + c[None, :]
        pivot = _normed(
            x, kept, rise, residual, offset + only, only, (c < CHANNELS)[None, :], m, d, w, b,
            RELU_BEFORE, RELU_AFTER, DROPS, ADDS,
        ).to(out.dtype.element_ty).to(tl.float32)  # fmt: skip
        pivot = tl.maximum(pivot, 0.0)
        one = tl.zeros((TILE, COLUMNS), tl.float32)
        two = tl.zeros((TILE, COLUMNS), tl.float32)
    for start in range(begin, end, TILE):
        r = start + tl.arange(0, TILE)
        inside = (r < end)[:, None] & (c < CHANNELS)[None, :]
        within = r[:, None] * CHANNELS + c[None, :]
        value = _normed(
            x, kept, rise, residual, offset + within, within, inside, m, d, w, b, RELU_BEFORE, RELU_AFTER, DROPS, ADDS
        ).to(out.dtype.element_ty)
        tl.store(out + offset + within, value, mask=inside)
        if CHAINS:
            away = tl.where(inside, tl.maximum(value.to(tl.float32), 0.0) - pivot, 0.0)
            one += away
            two += away * away
    if CHAINS:
        n = (end - begin).to(tl.float32)
        shift = tl.sum(one, 0) / n
        place = (run * tl.num_programs(0) + number) * CHANNELS + c
        tl.store(next_means + place, tl.sum(pivot, 0) + shift, mask=c < CHANNELS)
        tl.store(next_squares + place, tl.sum(two, 0) - shift * shift * n, mask=c < CHANNELS)
