"""The coreset: how many of each class, which, and what is left to train on."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl.errors import KclError
from kcl.methods.coreset import split_coreset

seeds = st.integers(0, 2**32)
counts_per_class = st.dictionaries(st.integers(-5, 50), st.integers(1, 12), min_size=1, max_size=6)


def _shuffled(counts: dict[int, int]) -> st.SearchStrategy[np.ndarray]:
    return st.permutations([label for label, count in counts.items() for _ in range(count)]).map(np.array)


# Labels and a size per class; the largest class has more samples than asked for, so that some are left, or it has not.
leaving_some = counts_per_class.filter(lambda counts: max(counts.values()) > 1).flatmap(
    lambda counts: st.tuples(_shuffled(counts), st.integers(1, max(counts.values()) - 1))
)
leaving_none = counts_per_class.flatmap(
    lambda counts: st.tuples(_shuffled(counts), st.integers(max(counts.values()), 100))
)


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


class TestEverySplit:
    @given(leaving_some, seeds)
    def test_every_class_gives_the_size_or_what_it_has(self, asked: tuple[np.ndarray, int], seed: int) -> None:
        labels, size = asked
        coreset, _ = split_coreset(labels, size, _generator(seed))
        expected = {label: min(size, count) for label, count in Counter(labels.tolist()).items()}
        assert Counter(labels[coreset].tolist()) == expected

    @given(leaving_some, seeds)
    def test_every_sample_is_in_one_of_the_two_parts_once(self, asked: tuple[np.ndarray, int], seed: int) -> None:
        labels, size = asked
        coreset, rest = split_coreset(labels, size, _generator(seed))
        assert sorted([*coreset.tolist(), *rest.tolist()]) == list(range(len(labels)))
        assert len(rest) > 0

    @given(leaving_none, seeds)
    def test_nothing_left_to_train_on_is_refused(self, asked: tuple[np.ndarray, int], seed: int) -> None:
        labels, size = asked
        with pytest.raises(KclError, match="none to train on") as refusal:
            split_coreset(labels, size, _generator(seed))
        assert str(size) in str(refusal.value)
        assert str(len(labels)) in str(refusal.value)

    @given(leaving_some, seeds)
    def test_the_generator_decides(self, asked: tuple[np.ndarray, int], seed: int) -> None:
        labels, size = asked
        one, two = (split_coreset(labels, size, _generator(seed)) for _ in range(2))
        assert np.array_equal(one.coreset, two.coreset)
        assert np.array_equal(one.rest, two.rest)


def test_another_seed_draws_another_coreset() -> None:
    labels = np.arange(1000) % 10
    drawn = [frozenset(split_coreset(labels, 20, _generator(seed)).coreset.tolist()) for seed in range(5)]
    assert len(set(drawn)) == 5


def test_every_choice_is_equally_likely() -> None:
    """Classes of six, five and one samples, three wanted: 20 · 10 · 1 choices, all equally likely.

    χ² over the 200 choices, 20,000 draws (100 expected of each). Refused below a p-value of 1e-6: were the seed
    changed, a right drawing would fail once in a million times.
    """
    chi2 = pytest.importorskip("scipy.stats").chi2
    labels, draws, cells = np.array([7, 0, 0, 7, 7, 0, 3, 0, 7, 0, 7, 0]), 20_000, 200
    rng = _generator(2021)
    counts = Counter(frozenset(split_coreset(labels, 3, rng).coreset.tolist()) for _ in range(draws))
    assert len(counts) == cells
    expected = draws / cells
    statistic = sum((count - expected) ** 2 for count in counts.values()) / expected
    assert 1e-6 < chi2.sf(statistic, cells - 1) < 1.0 - 1e-6
