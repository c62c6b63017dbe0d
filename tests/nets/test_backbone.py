"""Any module as a backbone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kcl.errors import KclError
from kcl.nets.backbone import ModuleBackbone


def _convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.5))


@pytest.fixture
def module(seeded: Any) -> nn.Module:
    with seeded(0):
        return _convolutions()


@pytest.fixture
def backbone(module: nn.Module) -> ModuleBackbone:
    return ModuleBackbone(module, (1, 6, 6))


def test_counts_and_flattens_the_features(backbone: ModuleBackbone, draw: Any) -> None:
    assert backbone.features == 3 * 4 * 4
    assert backbone(draw.normal(5, 1, 6, 6)).shape == (5, 48)
    assert backbone(draw.normal(5, 1, 6, 6), draw).shape == (5, 48)


def test_the_module_given_is_left_alone(module: nn.Module, backbone: ModuleBackbone, draw: Any) -> None:
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    optimizer = torch.optim.SGD(backbone.parameters(), lr=1.0)
    backbone(draw.normal(5, 1, 6, 6), draw).square().sum().backward()
    optimizer.step()
    assert module.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert not torch.equal(backbone.module[0].weight, module[0].weight)


def test_without_noise_it_is_in_evaluation_mode(module: nn.Module, backbone: ModuleBackbone, draw: Any) -> None:
    x = draw.normal(5, 1, 6, 6)
    backbone(x, draw)  # training in between must leave no trace in the mode
    statistics = backbone.module[1].running_mean.clone()
    expected = backbone.module.eval()(x).flatten(1)
    torch.testing.assert_close(backbone(x), expected)
    torch.testing.assert_close(backbone(x)[:2], backbone(x[:2]))
    assert torch.equal(backbone.module[1].running_mean, statistics)


def test_with_noise_it_is_in_training_mode(backbone: ModuleBackbone, draw: Any, make_noise: Any) -> None:
    x, statistics = draw.normal(50, 1, 6, 6), backbone.module[1].running_mean.clone()
    assert not torch.equal(backbone(x, make_noise(1)), backbone(x, make_noise(2)))
    assert not torch.equal(backbone.module[1].running_mean, statistics)


def test_its_dropout_follows_the_noise(backbone: ModuleBackbone, draw: Any, make_noise: Any) -> None:
    x, noise = draw.normal(5, 1, 6, 6), make_noise(1)
    first = backbone(x, noise)
    assert torch.equal(backbone(x, make_noise(1)), first)
    assert not torch.equal(backbone(x, noise), first)  # the next draw is another one


def test_batch_normalisation_mixes_samples(backbone: ModuleBackbone, seeded: Any) -> None:
    with seeded(0):
        alone = ModuleBackbone(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), (4,))
    assert backbone.mixes_samples
    assert not alone.mixes_samples


class _Returns(nn.Module):
    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, x: Tensor) -> Any:
        return self.output


@pytest.mark.parametrize("output", [torch.zeros(2), torch.zeros(3, 4), (torch.zeros(2, 4),), "features"])
def test_what_is_not_one_row_per_input_is_refused(output: Any) -> None:
    with pytest.raises(KclError, match="one row"):
        ModuleBackbone(_Returns(output), (4,))


def test_a_module_for_other_inputs_is_refused(module: nn.Module) -> None:
    with pytest.raises(KclError, match=r"does not accept inputs of shape \(3, 6, 6\)"):
        ModuleBackbone(module, (3, 6, 6))


class TestParts:
    """Batches passed together give what each gives alone."""

    def test_where_samples_do_not_mix(self, seeded: Any, draw: Any) -> None:
        with seeded(0):
            backbone = ModuleBackbone(nn.Linear(4, 3), (4,))
        parts = [draw.normal(5, 4), draw.normal(2, 4)]
        for found, part in zip(backbone.forward_parts(parts, draw), parts, strict=True):
            torch.testing.assert_close(found, backbone(part))

    def test_where_samples_mix(self, seeded: Any, draw: Any) -> None:
        """Each has its own batch statistics: mean zero, whatever the others are."""
        backbone = ModuleBackbone(nn.BatchNorm1d(4), (4,))
        for found in backbone.forward_parts([draw.normal(50, 4), 100.0 + draw.normal(20, 4)], draw):
            torch.testing.assert_close(found.mean(0), torch.zeros(4), rtol=0.0, atol=1e-5)
