"""The image backbones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kcl.errors import KclError
from kcl.nets.resnet import ResNet18, cifar_resnet, miniimagenet_resnet


@pytest.fixture(params=[1, 3])
def narrow(seeded: Any, request: pytest.FixtureRequest) -> ResNet18:
    with seeded(0):
        return ResNet18((3, 3, 4, 5, 6), (1, 1, 2, 2, 2), stem=3, dropout=0.0, feature_stages=request.param)


@pytest.mark.parametrize(
    ("make", "side", "features"), [(cifar_resnet, 32, 160), (miniimagenet_resnet, 84, 512)], ids=["cifar", "mini"]
)
def test_has_the_published_number_of_features(seeded: Any, draw: Any, make: Any, side: int, features: int) -> None:
    with seeded(0):
        net = make()
    assert net.features == features
    assert net.mixes_samples
    assert net(draw.uniform(2, 3, side, side)).shape == (2, features)


@pytest.mark.parametrize(("make", "side"), [(cifar_resnet, 32), (miniimagenet_resnet, 84)], ids=["cifar", "mini"])
def test_several_stages_give_what_each_gives(seeded: Any, draw: Any, make: Any, side: int) -> None:
    """The last stage's features are those of the same network without the others; earlier ones', those at their end."""
    with seeded(0):
        net = make(feature_stages=3)
    with seeded(0):
        alone = make()
    assert net.parts == tuple(block.convolution.out_channels for block in net.blocks[3::2])
    assert (net.features, alone.parts) == (sum(net.parts), (alone.features,))
    seen: list[torch.Tensor] = []
    for block in net.blocks[3::2]:
        block.register_forward_hook(lambda _, __, made: seen.append(made.mean((-2, -1))))
    x = draw.uniform(2, 3, side, side)
    found = net(x)
    assert torch.equal(found, torch.cat(seen, dim=1))
    assert torch.equal(found[:, -alone.features :], alone(x))


@pytest.mark.parametrize("stages", [0, 5])
def test_stages_that_are_not_there_are_refused(stages: int) -> None:
    with pytest.raises(KclError, match=f"1 to 4.* {stages}"):
        cifar_resnet(feature_stages=stages)


def test_parts_have_batch_statistics_of_their_own(narrow: ResNet18, draw: Any) -> None:
    """Passing a batch and a coreset together gives what two passes give, and leaves the same running statistics."""
    batch, coreset = draw.uniform(5, 3, 16, 16), 3.0 * draw.uniform(4, 3, 16, 16)
    state = {name: tensor.clone() for name, tensor in narrow.state_dict().items()}
    together = narrow.forward_parts([batch, coreset], draw)
    after = {name: tensor.clone() for name, tensor in narrow.state_dict().items()}
    narrow.load_state_dict(state)
    for found, part in zip(together, (batch, coreset), strict=True):
        torch.testing.assert_close(found, narrow(part, draw), rtol=1e-4, atol=1e-5)
    for name, tensor in narrow.state_dict().items():
        torch.testing.assert_close(after[name], tensor, rtol=1e-4, atol=1e-5)
    assert any(not torch.equal(state[name], tensor) for name, tensor in after.items() if "running" in name)


def test_at_test_a_sample_does_not_depend_on_its_batch(narrow: ResNet18, draw: Any) -> None:
    x = draw.uniform(6, 3, 16, 16)
    before = {name: tensor.clone() for name, tensor in narrow.state_dict().items()}
    torch.testing.assert_close(narrow(x)[:2], narrow(x[:2]), rtol=1e-4, atol=1e-6)
    assert all(torch.equal(before[name], tensor) for name, tensor in narrow.state_dict().items())
