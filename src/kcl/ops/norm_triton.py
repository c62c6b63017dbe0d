"""relu → BatchNorm → dropout of many runs and its gradients in Triton, with as few reads as possible; relu comes after
BatchNorm unless RELU_BEFORE.

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
def _stretch(rows, first, stretch, LAST_FIRST: tl.constexpr):
    """This program's run and stretch of rows: its number, where it begins and ends, and its part; none spans both."""
    number = tl.program_id(0)
    run = tl.program_id(1).to(tl.int64)
    if LAST_FIRST:
        number = tl.num_programs(0) - 1 - number
        run = tl.num_programs(1) - 1 - run
    before = (first + stretch - 1) // stretch
    second = number >= before
    begin = tl.where(second, first + (number - before) * stretch, number * stretch)
    end = tl.minimum(begin + stretch, tl.where(second, rows, first))
    return run, number, begin, end, second.to(tl.int32)


@triton.jit
def _tile(start, end, c, CHANNELS: tl.constexpr, TILE: tl.constexpr):
    """The places of TILE rows from `start` within their run, and which of them belong to the stretch."""
    r = start + tl.arange(0, TILE)
    return r[:, None] * CHANNELS + c[None, :], (r < end)[:, None] & (c < CHANNELS)[None, :]


@triton.jit
def _partial_sums(
    part: tl.constexpr, run, rows, first, stretch, stretches, c, CHANNELS: tl.constexpr, STRETCHES: tl.constexpr
):
    """The rows of a part, those of each of its stretches, and the places of the stretches' partial sums."""
    s = tl.arange(0, STRETCHES)
    number = s + ((first + stretch - 1) // stretch if part == 1 else 0)
    length = rows - first if part == 1 else first
    inside = s * stretch < length
    n = tl.where(inside, tl.minimum(length - s * stretch, stretch), 0).to(tl.float32)[:, None]
    place = (run * stretches + number)[:, None] * CHANNELS + c[None, :]
    return length.to(tl.float32), n, place, inside[:, None] & (c < CHANNELS)[None, :]


@triton.jit
def _seen(x, RELU_BEFORE: tl.constexpr):
    return tl.maximum(x, 0.0) if RELU_BEFORE else x


@triton.jit
def moments(
    x, means, squares, rows, first, stretch,
    RELU_BEFORE: tl.constexpr, CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Mean and sum of squared deviations of every channel over one stretch, summed about the stretch's first row."""
    run, number, begin, end, _ = _stretch(rows, first, stretch, False)
    c = tl.arange(0, COLUMNS)
    x += run * rows * CHANNELS
    pivot = _seen(tl.load(x + begin * CHANNELS + c, mask=c < CHANNELS, other=0.0).to(tl.float32), RELU_BEFORE)
    one = tl.zeros((TILE, COLUMNS), tl.float32)
    two = tl.zeros((TILE, COLUMNS), tl.float32)
    for start in range(begin, end, TILE):
        within, inside = _tile(start, end, c, CHANNELS, TILE)
        value = _seen(tl.load(x + within, mask=inside, other=0.0).to(tl.float32), RELU_BEFORE)
        away = tl.where(inside, value - pivot[None, :], 0.0)
        one += away
        two += away * away
    n = (end - begin).to(tl.float32)
    shift = tl.sum(one, 0) / n
    place = (run * tl.num_programs(0) + number) * CHANNELS + c
    tl.store(means + place, pivot + shift, mask=c < CHANNELS)
    tl.store(squares + place, tl.sum(two, 0) - shift * shift * n, mask=c < CHANNELS)


@triton.jit
def statistics(
    means, squares, mean_out, deviation_out, running_mean, running_variance,
    rows, first, stretch, stretches, real_channels, eps,
    PARTS: tl.constexpr, CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, STRETCHES: tl.constexpr,
):  # fmt: skip
    """Mean and 1/√(variance + ε) of each part of a run; each part in turn updates the running averages."""
    run = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real = c < real_channels
    running_m = tl.load(running_mean + run * real_channels + c, mask=real, other=0.0)
    running_v = tl.load(running_variance + run * real_channels + c, mask=real, other=0.0)
    for part in tl.static_range(PARTS):
        total, n, place, mask = _partial_sums(part, run, rows, first, stretch, stretches, c, CHANNELS, STRETCHES)
        m = tl.load(means + place, mask=mask, other=0.0)
        q = tl.load(squares + place, mask=mask, other=0.0)
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
    mean, deviation, weight, weight_stride, bias, bias_stride, rates, run, second, real_channels, c,
    DROPS: tl.constexpr, PARTS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Statistics and parameters of a stretch's part, and by what dropout multiplies the values that it keeps. A padded
    channel has weight and bias 0, so it stays 0.
    """
    place = (run * PARTS + second) * CHANNELS + c
    m = tl.load(mean + place, mask=c < CHANNELS, other=0.0)
    d = tl.load(deviation + place, mask=c < CHANNELS, other=0.0)
    w = tl.load(weight + run * weight_stride + c, mask=c < real_channels, other=0.0)
    b = tl.load(bias + run * bias_stride + c, mask=c < real_channels, other=0.0)
    rise = 1.0
    if DROPS:
        rise = 1.0 / (1.0 - tl.load(rates + run))
    return m[None, :], d[None, :], w[None, :], b[None, :], rise


@triton.jit
def _normed(
    x, kept, rise, residual, place, drop_place, inside, m, d, w, b,
    RELU_BEFORE: tl.constexpr, DROPS: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    """dropout(BN(relu(x))) + residual for some entries."""
    value = _seen(tl.load(x + place, mask=inside, other=0.0).to(tl.float32), RELU_BEFORE)
    value = (value - m) * d * w + b
    if not RELU_BEFORE:
        value = tl.maximum(value, 0.0)
    if DROPS:
        value *= tl.load(kept + drop_place, mask=inside, other=0).to(tl.float32) * rise
    if ADDS:
        value += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    return value


@triton.jit
def forward(
    x, mean, deviation, weight, weight_stride, bias, bias_stride, kept, kept_stride, rates, residual, out,
    next_means, next_squares, rows, first, stretch, real_channels,
    RELU_BEFORE: tl.constexpr, DROPS: tl.constexpr, ADDS: tl.constexpr,
    CHAINS: tl.constexpr, LAST_FIRST: tl.constexpr,
    PARTS: tl.constexpr, CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The output, and with CHAINS the `moments` of relu(output), which the next BatchNorm uses."""
    run, number, begin, end, second = _stretch(rows, first, stretch, LAST_FIRST)
    c = tl.arange(0, COLUMNS)
    m, d, w, b, rise = _parameters(
        mean, deviation, weight, weight_stride, bias, bias_stride, rates, run, second, real_channels, c,
        DROPS, PARTS, CHANNELS,
    )  # fmt: skip
    kept += run * kept_stride
    offset = run * rows * CHANNELS
    if CHAINS:
        only, _ = _tile(begin, end, c, CHANNELS, 1)
        pivot = _normed(
            x, kept, rise, residual, offset + only, only, (c < CHANNELS)[None, :], m, d, w, b,
            RELU_BEFORE, DROPS, ADDS,
        ).to(out.dtype.element_ty).to(tl.float32)  # fmt: skip
        pivot = tl.maximum(pivot, 0.0)
        one = tl.zeros((TILE, COLUMNS), tl.float32)
        two = tl.zeros((TILE, COLUMNS), tl.float32)
    for start in range(begin, end, TILE):
        within, inside = _tile(start, end, c, CHANNELS, TILE)
        value = _normed(
            x, kept, rise, residual, offset + within, within, inside, m, d, w, b, RELU_BEFORE, DROPS, ADDS
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


@triton.jit
def _incoming(
    grad, x, kept, rise, place, drop_place, inside, m, d, w, b,
    RELU_BEFORE: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """The gradient of the normalised values, those values, and the values before normalisation."""
    raw = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    normal = (_seen(raw, RELU_BEFORE) - m) * d
    g = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
    if DROPS:
        g *= tl.load(kept + drop_place, mask=inside, other=0).to(tl.float32) * rise
    if not RELU_BEFORE:
        g = tl.where(normal * w + b > 0.0, g, 0.0)
    return g, normal, raw


@triton.jit
def sums(
    grad, x, mean, deviation, weight, weight_stride, bias, bias_stride, kept, kept_stride, rates, plain, weighted,
    rows, first, stretch, real_channels, RELU_BEFORE: tl.constexpr, DROPS: tl.constexpr,
    PARTS: tl.constexpr, CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Σ g and Σ g·x̂ of every channel over one stretch."""
    run, number, begin, end, second = _stretch(rows, first, stretch, False)
    c = tl.arange(0, COLUMNS)
    m, d, w, b, rise = _parameters(
        mean, deviation, weight, weight_stride, bias, bias_stride, rates, run, second, real_channels, c,
        DROPS, PARTS, CHANNELS,
    )  # fmt: skip
    one = tl.zeros((TILE, COLUMNS), tl.float32)
    two = tl.zeros((TILE, COLUMNS), tl.float32)
    for start in range(begin, end, TILE):
        within, inside = _tile(start, end, c, CHANNELS, TILE)
        g, normal, _ = _incoming(
            grad, x, kept, rise, run * rows * CHANNELS + within, run * kept_stride + within, inside, m, d, w, b,
            RELU_BEFORE, DROPS,
        )  # fmt: skip
        one += g
        two += g * normal
    place = (run * tl.num_programs(0) + number) * CHANNELS + c
    tl.store(plain + place, tl.sum(one, 0), mask=c < CHANNELS)
    tl.store(weighted + place, tl.sum(two, 0), mask=c < CHANNELS)


@triton.jit
def totals(
    plain, weighted, plain_mean, weighted_mean, weight_grad, bias_grad,
    rows, first, stretch, stretches, real_channels,
    PARTS: tl.constexpr, CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, STRETCHES: tl.constexpr,
):  # fmt: skip
    """Each part's means of g and g·x̂; over both parts, the gradients of BatchNorm's parameters."""
    run = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    all_one = tl.zeros((COLUMNS,), tl.float32)
    all_two = tl.zeros((COLUMNS,), tl.float32)
    for part in tl.static_range(PARTS):
        total, _, place, mask = _partial_sums(part, run, rows, first, stretch, stretches, c, CHANNELS, STRETCHES)
        one = tl.sum(tl.load(plain + place, mask=mask, other=0.0), 0)
        two = tl.sum(tl.load(weighted + place, mask=mask, other=0.0), 0)
        out = (run * PARTS + part) * CHANNELS + c
        tl.store(plain_mean + out, one / total, mask=c < CHANNELS)
        tl.store(weighted_mean + out, two / total, mask=c < CHANNELS)
        all_one += one
        all_two += two
    tl.store(bias_grad + run * real_channels + c, all_one, mask=c < real_channels)
    tl.store(weight_grad + run * real_channels + c, all_two, mask=c < real_channels)


@triton.jit
def backward(
    grad, x, mean, deviation, weight, weight_stride, bias, bias_stride, kept, kept_stride, rates,
    plain_mean, weighted_mean, out, rows, first, stretch, real_channels,
    RELU_BEFORE: tl.constexpr, DROPS: tl.constexpr,
    PARTS: tl.constexpr, CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """∂L/∂x = w/σ · (g − mean(g) − x̂ · mean(g·x̂)), where relu let x through."""
    run, _, begin, end, second = _stretch(rows, first, stretch, True)
    c = tl.arange(0, COLUMNS)
    m, d, w, b, rise = _parameters(
        mean, deviation, weight, weight_stride, bias, bias_stride, rates, run, second, real_channels, c,
        DROPS, PARTS, CHANNELS,
    )  # fmt: skip
    part = (run * PARTS + second) * CHANNELS + c
    one = tl.load(plain_mean + part, mask=c < CHANNELS, other=0.0)[None, :]
    two = tl.load(weighted_mean + part, mask=c < CHANNELS, other=0.0)[None, :]
    for start in range(begin, end, TILE):
        within, inside = _tile(start, end, c, CHANNELS, TILE)
        place = run * rows * CHANNELS + within
        g, normal, raw = _incoming(
            grad, x, kept, rise, place, run * kept_stride + within, inside, m, d, w, b, RELU_BEFORE, DROPS
        )
        value = w * d * (g - one - normal * two)
        if RELU_BEFORE:
            value = tl.where(raw > 0.0, value, 0.0)
        tl.store(out + place, value.to(out.dtype.element_ty), mask=inside)
