"""Muon against PyTorch's own, and against what it is meant to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import reference_run
from kcl.functional import orthogonal
from kcl.nets.flat import Layout
from kcl.training.optimizers import Muon, OptimizerState

SHAPES = [(8, 8), (5, 30), (30, 5), (1, 7), (160, 720)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_singular_values_come_near_one_and_directions_stay(draw: Any, shape: tuple[int, int]) -> None:
    matrices = draw.normal(3, *shape).double()
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    expected = values / values.norm(dim=-1, keepdim=True)
    for _ in range(5):
        expected = 3.4445 * expected - 4.7750 * expected**3 + 2.0315 * expected**5
    product = orthogonal.orthogonalised(matrices)
    torch.testing.assert_close(product, left @ torch.diag_embed(expected) @ right)
    large = values > 0.05 * values[:, :1]
    assert ((expected > 0.6) & (expected < 1.25))[large].all()


def test_nothing_is_made_out_of_nothing() -> None:
    assert torch.equal(orthogonal.update(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


class _Net(nn.Module):
    """A backbone of matrices, and a parameter beside it that is none."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 10, bias=False), nn.Linear(10, 4, bias=False), nn.LayerNorm(4))
        self.output = nn.Linear(4, 3)


@pytest.fixture
def nets(seeded: Any) -> list[_Net]:
    with seeded(0):
        return [_Net() for _ in range(3)]


class _One:
    """The optimiser for one net, whose parameters are views of the flat tensor that it moves."""

    def __init__(self, net: nn.Module, rate: float, muon_rate: float, momentum: float) -> None:
        self.net, self.layout = net, Layout(net)
        numbers = {"rate": rate, "momentum": momentum, "muon_rate": muon_rate}
        self.state = _state(self.layout.weights(net)[None], [numbers])
        for name, part in self.layout.split(self.state.weights[0]).items():
            net.get_parameter(name).data = part
        self.optimizer = Muon(net, self.layout)

    def step(self) -> None:
        zeros = {name: torch.zeros_like(parameter) for name, parameter in self.net.named_parameters()}
        gradients = {
            name: parameter.grad for name, parameter in self.net.named_parameters() if parameter.grad is not None
        }
        self.optimizer.step(self.state, self.layout.flatten(zeros | gradients)[None])


def _state(flat: Tensor, numbers: list[dict[str, float]]) -> OptimizerState:
    columns = {name: torch.tensor([run_numbers[name] for run_numbers in numbers])[:, None] for name in numbers[0]}
    return OptimizerState(flat, [torch.zeros_like(flat)], torch.ones(len(flat), 1, dtype=torch.bool), columns)


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_matrices_move_as_with_pytorchs_own_muon(nets: list[_Net], draw: Any, momentum: float) -> None:
    """PyTorch's rounds to bfloat16 in between: each step's direction agrees to about its precision."""
    mine = nets[0]
    copies = [nn.Parameter(layer.weight.detach().clone()) for layer in mine.backbone[:2]]
    optimizer = _One(mine, 0.1, 0.02, momentum)
    other = torch.optim.Muon(
        copies, lr=0.02, weight_decay=0.0, momentum=momentum, nesterov=True, adjust_lr_fn="match_rms_adamw"
    )
    before = [layer.weight.detach().clone() for layer in mine.backbone[:2]]
    for _ in range(6):
        for layer, copy in zip(mine.backbone[:2], copies, strict=True):
            layer.weight.grad = draw.normal(*layer.weight.shape)
            copy.grad = layer.weight.grad.clone()
        optimizer.step()
        other.step()
    for layer, copy, was in zip(mine.backbone[:2], copies, before, strict=True):
        moved, expected = layer.weight.detach() - was, copy.detach() - was
        assert (moved - expected).norm() < 0.03 * expected.norm()
        assert expected.norm() > 0.05


def test_all_else_moves_as_with_sgd(nets: list[_Net], draw: Any) -> None:
    mine, theirs = nets[0], nets[1]
    theirs.load_state_dict(mine.state_dict())
    optimizer, other = _One(mine, 0.1, 0.02, 0.8), torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.8)
    for _ in range(4):
        for one, two in zip(mine.parameters(), theirs.parameters(), strict=True):
            one.grad = draw.normal(*one.shape)
            two.grad = one.grad.clone()
        optimizer.step()
        other.step()
    for part in ("output.weight", "output.bias", "backbone.2.weight", "backbone.2.bias"):
        torch.testing.assert_close(mine.get_parameter(part), theirs.get_parameter(part))
    assert (mine.backbone[0].weight - theirs.backbone[0].weight).abs().max() > 0.01


def test_many_runs_move_as_each_would_alone(nets: list[_Net], draw: Any) -> None:
    """Rates and momenta of their own; a run whose loss is not finite stays where it was."""
    layout = Layout(nets[0])
    flat = torch.stack([layout.weights(net) for net in nets])
    numbers = [
        {"rate": rate, "muon_rate": muon_rate, "momentum": momentum}
        for rate, muon_rate, momentum in ((0.1, 0.02, 0.8), (0.2, 0.01, 0.0), (0.3, 0.05, 0.5))
    ]
    state, together = _state(flat, numbers), Muon(nets[0], layout)
    alone = [
        reference_run.Muon(net, run_numbers["rate"], run_numbers["muon_rate"], run_numbers["momentum"])
        for net, run_numbers in zip(nets, numbers, strict=True)
    ]
    for step in range(3):
        state.alive[2] = step == 0
        gradient = torch.zeros_like(flat)
        for run, net in enumerate(nets):
            for parameter in net.parameters():
                parameter.grad = draw.normal(*parameter.shape)
            gradient[run] = layout.flatten({name: parameter.grad for name, parameter in net.named_parameters()})
            if run != 2 or step == 0:
                alone[run].step()
        together.step(state, gradient)
    for run, net in enumerate(nets):
        torch.testing.assert_close(flat[run], layout.weights(net), rtol=1e-5, atol=1e-6)
