"""Images as rows of channels, in Triton."""

# mypy: ignore-errors
import triton
import triton.language as tl


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
