"""Parameters as one flat tensor, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kcl.nets.flat import Layout


def test_what_was_flattened_is_split_again(seeded: Any) -> None:
    with seeded(0):
        model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    model[0].bias.requires_grad_(False)
    layout = Layout(model)
    flat = layout.weights(model)
    assert len(flat) == layout.size
    assert layout.size % 64 == 0
    named = dict(model.named_parameters())
    parts = layout.split(flat)
    assert parts.keys() == named.keys()
    assert all(torch.equal(parts[name], named[name]) for name in named)
    assert dict(zip(parts, layout.trained, strict=True)) == {name: p.requires_grad for name, p in named.items()}
    assert torch.equal(layout.flatten(parts), flat)
    assert not flat[layout.size - layout.padding :].any()
    stacked = layout.split(torch.stack([flat, 2 * flat]))
    assert torch.equal(stacked["1.weight"][1], 2 * named["1.weight"])
