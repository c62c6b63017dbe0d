"""Seeds for everything random, derived from the run's seed and the purpose of the draw.

Every draw has an address (seed, purpose, indices…), so that one part's draws never shift another's, and a task's data
are the same whether or not the tasks before it were used.
"""

from __future__ import annotations

import zlib

import numpy as np

from kcl.errors import KclError

LARGEST_SEED = 2**63 - 1


def check_seed(seed: int) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= LARGEST_SEED:
        raise KclError(f"a seed must be a whole number from 0 to 2⁶³ − 1, not {seed!r}")


def derive(seed: int, purpose: str, *indices: int) -> int:
    """A 64-bit seed for one purpose of one run; different addresses give unrelated seeds."""
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(zlib.crc32(purpose.encode()), *indices))
    return int(sequence.generate_state(1, np.uint64)[0])


def numpy_generator(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """For choices on the host: permutations, angles, coresets, batch orders."""
    return np.random.Generator(np.random.PCG64(derive(seed, purpose, *indices)))
