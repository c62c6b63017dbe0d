"""Means, deviations and intervals against numpy, printed tables and an integral."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl.report.summary import student_t, summarise


# Two-sided 95 %, as printed in any table of Student's t (for example NIST, Engineering Statistics Handbook, 1.3.6.7.2).
@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (10, 2.228), (29, 2.045), (100, 1.984)],
)
def test_quantiles_match_the_printed_table(degrees: int, quantile: float) -> None:
    assert student_t(degrees) == pytest.approx(quantile, abs=5e-4)


def test_other_confidences_and_the_normal_limit() -> None:
    assert student_t(4, 0.99) == pytest.approx(4.604, abs=5e-4)
    assert student_t(7, 0.90) == pytest.approx(1.895, abs=5e-4)
    assert student_t(2000) == pytest.approx(1.95996, abs=2e-3)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 20])
def test_the_density_holds_95_percent_within(degrees: int) -> None:
    """Integrates the density, which the closed form under test does not use."""
    t, width = np.linspace(0, student_t(degrees), 200_001, retstep=True)
    log_scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - 0.5 * math.log(degrees * math.pi)
    density = np.exp(log_scale - (degrees + 1) / 2 * np.log1p(t**2 / degrees))
    inside = 2 * width * (density.sum() - (density[0] + density[-1]) / 2)
    assert inside == pytest.approx(0.95, abs=1e-8)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_summary_matches_numpy(values: list[float]) -> None:
    summary = summarise(values)
    assert summary is not None
    assert summary.size == len(values)
    assert summary.mean == pytest.approx(np.mean(values), abs=1e-6)
    assert summary.deviation == pytest.approx(np.std(values, ddof=1), abs=1e-6)
    assert summary.half_width == pytest.approx(
        student_t(len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)), abs=1e-5
    )


def test_one_value_has_no_spread_and_none_has_nothing() -> None:
    assert summarise([3.0]) == (1, 3.0, None, None)
    assert summarise([]) is None
