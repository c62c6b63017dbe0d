"""Calibration error against a computation by hand, temperature against a known answer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kcl.models.calibration import expected_calibration_error, fit_temperature, held_out_notes


def test_the_error_by_hand() -> None:
    """Bins of width 1/2: (0.2, 0.4; 1 of 2 right) and (0.6, 0.8, 1.0; 2 of 3 right)."""
    confidence = torch.tensor([0.2, 0.4, 0.6, 0.8, 1.0])
    correct = torch.tensor([True, False, True, True, False])
    expected = 2 / 5 * abs(0.5 - 0.3) + 3 / 5 * abs(2 / 3 - 0.8)
    assert expected_calibration_error(confidence, correct, bins=2) == pytest.approx(expected)


def test_a_confidence_on_the_border_belongs_below_it() -> None:
    """(0, 1/2] holds 0.5, (1/2, 1] holds 0.6."""
    found = expected_calibration_error(torch.tensor([0.5, 0.6]), torch.tensor([False, True]), bins=2)
    assert found == pytest.approx((0.5 + 0.4) / 2)


def test_the_error_of_what_is_calibrated_is_nothing_and_of_no_samples_unknown() -> None:
    assert expected_calibration_error(torch.ones(4), torch.ones(4, dtype=torch.bool)) == 0.0
    assert expected_calibration_error(torch.zeros(4), torch.ones(4, dtype=torch.bool)) == 1.0
    assert expected_calibration_error(torch.zeros(0), torch.ones(0, dtype=torch.bool)) is None


def test_scores_that_are_not_finite_are_wrong_answers_without_confidence() -> None:
    logits = torch.tensor([[3.0, 0.0], [torch.nan, 0.0], [torch.inf, 0.0]])
    labels = torch.tensor([0, 0, 0])
    notes = held_out_notes(logits, labels)
    assert notes["held_out_accuracy"] == pytest.approx(100 / 3)
    assert notes["held_out_ece"] == pytest.approx((1 - float(logits[0].softmax(0)[0])) / 3)
    assert fit_temperature(logits, labels) == fit_temperature(logits[:1], labels[:1])
    assert fit_temperature(logits[1:], labels[1:]) == 1.0


@pytest.mark.parametrize("temperature", [0.25, 1.0, 5.0])
def test_the_temperature_that_made_the_labels_is_found(draw: Any, temperature: float) -> None:
    logits = 2.0 * draw.normal(20_000, 4)
    wheel = (logits / temperature).softmax(-1).cumsum(-1)
    labels = (draw.uniform(20_000, 1) > wheel).sum(-1).clamp_max(3)
    assert fit_temperature(logits, labels) == pytest.approx(temperature, rel=0.05)


def test_ten_right_answers_are_not_certainty() -> None:
    """The likelihood alone would send the temperature to zero."""
    labels = torch.arange(10) % 2
    logits = torch.nn.functional.one_hot(labels, 2).float()
    confidence = (logits / fit_temperature(logits, labels)).softmax(-1).amax(-1)
    assert 0.8 < confidence[0] < 0.95


def test_a_few_wrong_answers_do_not_make_answers_coin_tosses() -> None:
    """Three of four are right, as often as the scores say: that tells little, and changes little."""
    logits = torch.tensor([[1.1, 0.0]]).repeat(4, 1)
    assert fit_temperature(logits, torch.tensor([0, 0, 0, 1])) == pytest.approx(1.0, abs=0.05)
    assert 1.0 < fit_temperature(logits, torch.tensor([0, 1, 1, 1])) < 2.0


def test_the_likelihood_is_not_made_worse(draw: Any) -> None:
    logits, labels = 9.0 * draw.normal(400, 3), torch.arange(400) % 3
    before = torch.nn.functional.cross_entropy(logits, labels)
    assert torch.nn.functional.cross_entropy(logits / fit_temperature(logits, labels), labels) < before
