"""Seeds derived from a run's seed and a purpose: apart from each other, and the same for good."""

from __future__ import annotations

import numpy as np
import torch

from kcl.core.randomness import derive, numpy_generator
from kcl.functional.noise import RunNoise


def test_different_addresses_give_different_seeds() -> None:
    purposes = ["initial weights", "coreset", "batch order", "training noise", "test noise", "permutation", "angle"]
    addresses = [(seed, purpose, index) for seed in range(30) for purpose in purposes for index in range(20)]
    addresses += [(seed, purpose) for seed in range(30) for purpose in purposes]
    addresses += [(0, "batch order", task, epoch) for task in range(20) for epoch in range(20)]
    addresses += [(2**63 - 1 - seed, "coreset", 0) for seed in range(200)]
    seeds = {derive(*address) for address in addresses}
    assert len(seeds) == len(addresses) > 4000
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_a_derived_seed_spreads_over_all_64_bits() -> None:
    """Each bit of 2,000 seeds is set in about half of them; six standard errors are 10⁻⁹ a bit."""
    seeds = np.array([derive(seed, "coreset", 3) for seed in range(2000)], dtype=np.uint64)
    set_bits = [np.count_nonzero(seeds >> np.uint64(bit) & np.uint64(1)) for bit in range(64)]
    assert all(abs(count - 1000) < 6.1 * np.sqrt(2000) / 2 for count in set_bits)


def test_the_seeds_are_those_of_results_kept_before() -> None:
    """Golden: were one of these to change, so would every result ever kept."""
    assert derive(0, "initial weights") == 7112945516734978692
    assert derive(7, "batch order", 3, 1) == 4429095788609468175
    raw = numpy_generator(7, "batch order", 3, 1).bit_generator.random_raw(2)
    assert raw.tolist() == [8181240167962146631, 16973044284194713733]
    noise = RunNoise(torch.device("cpu"), 7, "batch order", 3, 1).generator
    assert noise.initial_seed() % 2**64 == derive(7, "batch order", 3, 1)
