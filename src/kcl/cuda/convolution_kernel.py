"""Convolutions of many runs at once as matrix products over patches that are never stored, in Triton.

All tensors are contiguous: inputs (s, n, C, H, W), weights (s, O, C, KY, KX), outputs (s, n, O, Y, X). A row of a
weight, (channel, ky, kx), is the inner dimension of the product; pixels of all images of a run are its columns.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def _patches(x, image, row, column, k, inside, C, H, W, KY: tl.constexpr, KX: tl.constexpr):
    """x[image, channel, row + ky, column + kx] for inner indices k (down) and pixels (across), 0 beyond the border."""
    channel, tap = k // (KY * KX), k % (KY * KX)
    y = row[None, :] + (tap // KX)[:, None]
    z = column[None, :] + (tap % KX)[:, None]
    inside = inside & (y >= 0) & (y < H) & (z >= 0) & (z < W)
    place = (image * C)[None, :] * (H * W) + channel[:, None] * (H * W) + y * W + z
    return tl.load(x + place, mask=inside, other=0.0)


@triton.jit
def forward(
    x, w, out, n, C, H, W, O, Y, X,  # noqa: E741
    KY: tl.constexpr, KX: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    BM: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BM + tl.arange(0, BM)
    outs = tl.program_id(2) * BO + tl.arange(0, BO)
    image, within = pixel // (Y * X), pixel % (Y * X)
    row, column = (within // X) * STRIDE - PAD, (within % X) * STRIDE - PAD
    x += run * n * C * H * W
    w += run * O * C * KY * KX
    K = C * KY * KX
    total = tl.zeros((BO, BM), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        inside = (k < K)[:, None] & (pixel < n * Y * X)[None, :]
        patch = _patches(x, image, row, column, k, inside, C, H, W, KY, KX)
        weight = tl.load(w + outs[:, None] * K + k[None, :], mask=(outs < O)[:, None] & (k < K)[None, :], other=0.0)
        total = tl.dot(weight, patch, total, input_precision=P)
    out += run * n * O * Y * X
    place = (image * O)[None, :] * (Y * X) + outs[:, None] * (Y * X) + within[None, :]
    tl.store(out + place, total, mask=(outs < O)[:, None] & (pixel < n * Y * X)[None, :])


@triton.jit
def backward_input(
    grad, w, out, n, C, H, W, O, Y, X,  # noqa: E741
    KY: tl.constexpr, KX: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    BM: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """∂L/∂x: every input pixel gathers from the outputs it took part in."""
    run = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BM + tl.arange(0, BM)
    channels = tl.program_id(2) * BO + tl.arange(0, BO)
    image, within = pixel // (H * W), pixel % (H * W)
    row, column = within // W + PAD, within % W + PAD
    grad += run * n * O * Y * X
    w += run * O * C * KY * KX
    K = O * KY * KX
    total = tl.zeros((BO, BM), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        source, tap = k // (KY * KX), k % (KY * KX)
        y = row[None, :] - (tap // KX)[:, None]
        z = column[None, :] - (tap % KX)[:, None]
        inside = (k < K)[:, None] & (pixel < n * H * W)[None, :] & (y >= 0) & (z >= 0)
        if STRIDE > 1:
            inside = inside & (y % STRIDE == 0) & (z % STRIDE == 0)
            y = y // STRIDE
            z = z // STRIDE
        inside = inside & (y < Y) & (z < X)
        place = (image * O)[None, :] * (Y * X) + source[:, None] * (Y * X) + y * X + z
        taken = tl.load(grad + place, mask=inside, other=0.0)
        place = source[None, :] * (C * KY * KX) + channels[:, None] * (KY * KX) + tap[None, :]
        weight = tl.load(w + place, mask=(channels < C)[:, None] & (k < K)[None, :], other=0.0)
        total = tl.dot(weight, taken, total, input_precision=P)
    out += run * n * C * H * W
    place = (image * C)[None, :] * (H * W) + channels[:, None] * (H * W) + within[None, :]
    tl.store(out + place, total, mask=(channels < C)[:, None] & (pixel < n * H * W)[None, :])


@triton.jit
def backward_weight(
    grad, x, out, n, C, H, W, O, Y, X, share,  # noqa: E741
    KY: tl.constexpr, KX: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    BM: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """∂L/∂w over one share of the pixels; the shares are added afterwards, always in the same order."""
    run = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    K = C * KY * KX
    tiles = tl.cdiv(K, BK)
    k = (tl.program_id(2) % tiles) * BK + tl.arange(0, BK)
    outs = (tl.program_id(2) // tiles) * BO + tl.arange(0, BO)
    x += run * n * C * H * W
    grad += run * n * O * Y * X
    total = tl.zeros((BO, BK), dtype=tl.float32)
    for start in range(part * share, min((part + 1) * share, n * Y * X), BM):
        pixel = start + tl.arange(0, BM)
        valid = pixel < n * Y * X
        image, within = pixel // (Y * X), pixel % (Y * X)
        row, column = (within // X) * STRIDE - PAD, (within % X) * STRIDE - PAD
        patch = _patches(x, image, row, column, k, (k < K)[:, None] & valid[None, :], C, H, W, KY, KX)
        place = (image * O)[None, :] * (Y * X) + outs[:, None] * (Y * X) + within[None, :]
        taken = tl.load(grad + place, mask=(outs < O)[:, None] & valid[None, :], other=0.0)
        total = tl.dot(taken, tl.trans(patch), total, input_precision=P)
    out += (part * tl.num_programs(0) + run) * O * K
    tl.store(out + outs[:, None] * K + k[None, :], total, mask=(outs < O)[:, None] & (k < K)[None, :])
