"""The MNIST backbone against its formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from jaxtyping import TypeCheckError

from kcl.nets.mlp import MLP


@pytest.fixture
def mlp(seeded: Any) -> MLP:
    with seeded(0):
        return MLP((1, 4, 4), width=6, layers=2, dropout=0.5)


def test_is_two_hidden_layers_of_256_by_default(seeded: Any) -> None:
    with seeded(0):
        mlp = MLP((1, 28, 28))
    assert mlp.features == 256
    assert [tuple(parameter.shape) for parameter in mlp.parameters()] == [(256, 784), (256,), (256, 256), (256,)]


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_equals_its_formula(seeded: Any, draw: Any, layers: int) -> None:
    with seeded(0):
        mlp = MLP((1, 4, 4), width=6, layers=layers, dropout=0.5)
    x = draw.uniform(5, 1, 4, 4)
    expected, parameters = x.reshape(5, 16), list(mlp.parameters())
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        expected = (expected @ weight.T + bias).clamp_min(0.0)
    assert len(parameters) == 2 * layers
    torch.testing.assert_close(mlp(x), expected)


def test_without_noise_nothing_is_dropped(mlp: MLP, draw: Any) -> None:
    x = draw.uniform(5, 1, 4, 4)
    assert torch.equal(mlp(x), mlp(x))


def test_with_noise_hidden_units_and_features_are_dropped(mlp: MLP, draw: Any) -> None:
    """Half of the features vanish at rate one half, also those that are positive without dropout."""
    mlp.layers[1].bias.data.fill_(100.0)  # every feature positive before dropout
    x = draw.uniform(2000, 1, 4, 4)
    found = mlp(x, draw)
    assert (found == 0.0).float().mean().item() == pytest.approx(0.5, abs=0.03)  # six standard errors of 1/√12000 / 2
    # The units of the first layer are dropped too: what is kept differs from twice the features without dropout.
    assert not torch.allclose(found[found > 0.0], 2.0 * mlp(x)[found > 0.0], rtol=1e-4)


def test_the_same_noise_gives_the_same_features(mlp: MLP, make_noise: Any, draw: Any) -> None:
    x = draw.uniform(5, 1, 4, 4)
    assert torch.equal(mlp(x, make_noise(1)), mlp(x, make_noise(1)))
    assert not torch.equal(mlp(x, make_noise(1)), mlp(x, make_noise(2)))


def test_without_a_dropout_rate_training_and_testing_agree(seeded: Any, draw: Any) -> None:
    with seeded(0):
        mlp = MLP((3,), width=5, dropout=0.0)
    x = draw.uniform(4, 3)
    assert torch.equal(mlp(x, draw), mlp(x))


def test_a_sample_does_not_depend_on_its_batch(mlp: MLP, draw: Any) -> None:
    x = draw.uniform(7, 1, 4, 4)
    assert not mlp.mixes_samples
    torch.testing.assert_close(mlp(x)[:2], mlp(x[:2]))


def test_bytes_are_not_taken_for_numbers(mlp: MLP) -> None:
    with pytest.raises(TypeCheckError):
        mlp(torch.zeros(5, 1, 4, 4, dtype=torch.uint8))
