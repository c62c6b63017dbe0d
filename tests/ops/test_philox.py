"""Philox4x32-10 against its published vectors and against whole numbers in plain Python."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kcl.ops import philox

WORD = 0xFFFFFFFF
KEYS = [[0x12345678, 0x9ABCDEF0], [0, 0], [WORD, WORD], [0x12345678, 0x9ABCDEF1]]


def _draw(size: int, kind: int, step: int = 0, keys: list[list[int]] = KEYS) -> Tensor:
    out = torch.full((len(keys), size), math.nan)
    philox.draw(out, torch.tensor(keys), torch.tensor([step]), kind)
    return out


def _plain(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Ten rounds as the paper prints them (Salmon et al. 2011, section 3.3), on Python's whole numbers."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 2**32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


def _known(key: list[int], size: int, kind: int, step: int) -> np.ndarray:
    """What a row must hold: counter (block, step, kind, 0), four draws a block, in double precision."""
    blocks = [_plain((key[0], key[1]), (block, step, kind, 0)) for block in range(-(-size // 4))]
    units = (np.array(blocks, dtype=np.int64) >> 8) / 2.0**24
    if kind == philox.NORMAL:
        radius, angle = np.sqrt(-2.0 * np.log(1.0 - units[:, ::2])), 2.0 * np.pi * units[:, 1::2]
        units = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return units.reshape(-1)[:size]


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_the_words_are_those_published_with_random123(counter: str, key: str, expected: str) -> None:
    places = tuple(torch.tensor([[int(word, 16)]]) for word in counter.split())
    found = philox.words(torch.tensor([[int(word, 16) for word in key.split()]]), places)
    assert " ".join(f"{word.item():08x}" for word in found) == expected
    assert " ".join(f"{word:08x}" for word in _plain(*_numbers(key, counter))) == expected  # the oracle used below


def _numbers(*texts: str) -> Any:
    return tuple(tuple(int(word, 16) for word in text.split()) for text in texts)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 30, 4099])
@pytest.mark.parametrize("step", [0, 1, 119_999, 2**32 - 1])
def test_uniforms_are_the_top_24_bits_of_the_words(size: int, step: int) -> None:
    drawn = _draw(size, philox.UNIFORM, step).numpy()
    for row, key in zip(drawn, KEYS, strict=True):
        assert np.array_equal(row, _known(key, size, philox.UNIFORM, step))  # 24 bits: exact in single precision


@pytest.mark.parametrize("size", [1, 3, 5, 30, 4099])
@pytest.mark.parametrize("step", [0, 119_999])
def test_normals_are_box_and_muller_s(size: int, step: int) -> None:
    drawn = _draw(size, philox.NORMAL, step).numpy()
    for row, key in zip(drawn, KEYS, strict=True):
        np.testing.assert_allclose(row, _known(key, size, philox.NORMAL, step), rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", [philox.NORMAL, philox.UNIFORM])
class TestDraws:
    def test_are_a_function_of_key_step_and_place_alone(self, kind: int) -> None:
        long = _draw(403, kind, 5)
        for size in (1, 2, 3, 4, 6, 401, 402):
            assert torch.equal(_draw(size, kind, 5), long[:, :size])
        for row, key in enumerate(KEYS):
            assert torch.equal(_draw(403, kind, 5, [key])[0], long[row])
        assert torch.equal(_draw(403, kind, 5, KEYS[::-1]), long.flip(0))

    def test_of_other_keys_steps_and_kinds_are_others(self, kind: int) -> None:
        """Of 400 draws with 24 bits, two sequences that are unrelated share none or few places."""
        sequences = [*_draw(400, kind, 0), *_draw(400, kind, 1), *_draw(400, 1 - kind, 0)]
        for one in range(len(sequences)):
            for two in range(one):
                assert (sequences[one] == sequences[two]).sum() <= 2, (one, two)

    def test_within_a_row_hardly_repeat(self, kind: int) -> None:
        """4,000 draws of 2²⁴ values have half a pair in common on average; twelve, once in 10¹² tests."""
        assert len(_draw(4000, kind, 3, KEYS[:1]).unique()) > 4000 - 12


class TestStatistics:
    """Fixed keys, so that these pass or fail for good. The limits are for a false alarm of about 10⁻⁹ each."""

    SIZE = 200_001
    LIMIT = 6.1  # standard errors: two-sided 10⁻⁹ for a normal

    def _check(self, values: Tensor, expected: float, variance: float) -> None:
        error = abs(values.mean().item() - expected) / math.sqrt(variance / values.numel())
        assert error < self.LIMIT

    def _kolmogorov_smirnov(self, probabilities: Tensor) -> None:
        """sup |F_n − F| exceeds √(ln(2/α) / 2n) with probability at most α (Dvoretzky–Kiefer–Wolfowitz, Massart)."""
        ordered, count = probabilities.sort().values, probabilities.numel()
        steps = torch.arange(count + 1, dtype=torch.float64) / count
        distance = torch.maximum(steps[1:] - ordered, ordered - steps[:-1]).max().item()
        assert distance < math.sqrt(math.log(2 / 1e-9) / (2 * count))

    @pytest.mark.parametrize("row", range(2))
    def test_uniforms_are_uniform(self, row: int) -> None:
        values = _draw(self.SIZE, philox.UNIFORM, 7)[row].double()
        assert 0.0 <= values.min() < 1e-3
        assert 1.0 - 1e-3 < values.max() < 1.0
        central = values - 0.5
        self._check(values, 1 / 2, 1 / 12)
        self._check(central**2, 1 / 12, 1 / 80 - 1 / 144)
        self._check(central**4, 1 / 80, 1 / 2304 - 1 / 6400)
        self._kolmogorov_smirnov(values)

    @pytest.mark.parametrize("row", range(2))
    def test_normals_are_normal(self, row: int) -> None:
        values = _draw(self.SIZE, philox.NORMAL, 7)[row].double()
        assert values.isfinite().all()
        self._check(values, 0.0, 1.0)
        self._check(values**2, 1.0, 2.0)
        self._check(values**3, 0.0, 15.0)
        self._check(values**4, 3.0, 105.0 - 9.0)
        self._kolmogorov_smirnov(torch.special.ndtr(values))

    @pytest.mark.parametrize("kind", [philox.NORMAL, philox.UNIFORM])
    def test_neighbours_rows_and_steps_are_not_correlated(self, kind: int) -> None:
        first, second = _draw(self.SIZE, kind, 7).double(), _draw(self.SIZE, kind, 8).double()
        first, second = (
            (values - values.mean(1, keepdim=True)) / values.std(1, keepdim=True) for values in (first, second)
        )
        pairs = [(first[0, lag:], first[0, : self.SIZE - lag]) for lag in range(1, 9)]
        pairs += [(first[0], first[1]), (first[0], first[3]), (first[0], second[0])]
        for one, two in pairs:
            self._check(one * two, 0.0, 1.0)

    def test_the_largest_uniform_gives_a_finite_normal(self) -> None:
        """1 − u is never zero: the farthest normal is √(−2 ln 2⁻²⁴) = 5.77 away."""
        four = tuple(torch.tensor([word]) for word in (WORD, 0, 0, WORD))
        values = torch.stack(philox._normals(four))
        assert values.isfinite().all()
        assert values.abs().max().item() == pytest.approx(math.sqrt(48 * math.log(2)), rel=1e-5)
