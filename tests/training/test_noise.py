"""Randomness that belongs to a run: the same draws alone, beside others, or begun again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from kcl.core.randomness import derive
from kcl.functional.noise import Noise, RunNoise, dropout
from kcl.ops import philox
from kcl.training.draws import DrawnNoise, Recorder, Request, Source, merge
from like_gpu import SeparateSource

pytestmark = pytest.mark.usefixtures("_draws_without_compiler")
CPU = torch.device("cpu")
REQUESTS = [
    Request(philox.UNIFORM, (5, 3)),
    Request(philox.NORMAL, (7, 2)),
    Request(philox.UNIFORM, (4,)),
    Request(philox.NORMAL, (33,)),
    Request(philox.UNIFORM, (2, 3, 4)),
]
SEEDS = [0, 1, 2**63 - 1]


def _separate(seeds: list[int], purpose: str = "training noise", index: int = 0) -> SeparateSource:
    return SeparateSource(REQUESTS, seeds, purpose, index)


def _philox(seeds: list[int], purpose: str = "training noise", index: int = 0) -> Source:
    return Source(REQUESTS, CPU, seeds, purpose, index)


Make = Callable[..., Any]
both_sources = pytest.mark.parametrize("make", [_separate, _philox])


def _next(source: Any) -> list[Tensor]:
    source.draw()
    return [tensor.clone() for tensor in source.drawn]


def _equal(one: list[Tensor], two: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def _different(one: list[Tensor], two: list[Tensor]) -> bool:
    """Hardly a place holds the same number: of a hundred pairs of 24 bits, two agree once in 10¹¹."""
    return sum(int((a == b).sum()) for a, b in zip(one, two, strict=True)) < 2


class TestRunNoise:
    ADDRESSES: tuple[Any, ...] = (
        (0, "training noise", 0),
        (1, "training noise", 0),
        (0, "test noise", 0),
        (0, "training noise", 1),
        (0, "training noise", 0, 1),
        (0, "training noise"),
    )

    @pytest.mark.parametrize("address", ADDRESSES, ids=str)
    def test_begins_again_with_the_same_draws(self, address: tuple[Any, ...]) -> None:
        one, two = RunNoise(CPU, *address), RunNoise(CPU, *address)
        for _ in range(3):
            assert torch.equal(one.normal(4, 5), two.normal(4, 5))
            assert torch.equal(one.uniform(6), two.uniform(6))

    def test_of_every_address_is_its_own(self) -> None:
        drawn = {address: [RunNoise(CPU, *address).normal(50)] for address in self.ADDRESSES}
        for one, two in combinations(drawn, 2):
            assert _different(drawn[one], drawn[two]), (one, two)

    def test_does_not_hear_of_draws_elsewhere(self) -> None:
        alone, disturbed = RunNoise(CPU, 0, "training noise"), RunNoise(CPU, 0, "training noise")
        other = RunNoise(CPU, 1, "training noise")
        first = [alone.normal(5), alone.normal(5)]
        second = [disturbed.normal(5), other.normal(99), disturbed.normal(5)][::2]
        assert _equal(first, second)

    def test_goes_on_with_new_draws_of_the_right_kind(self) -> None:
        noise = RunNoise(CPU, 0, "training noise")
        normals, uniforms = [noise.normal(500), noise.normal(500)], [noise.uniform(500), noise.uniform(500)]
        assert _different(normals[:1], normals[1:])
        assert _different(uniforms[:1], uniforms[1:])
        assert torch.cat(normals).min() < -1.0
        assert 0.0 <= torch.cat(uniforms).min() < 0.1
        assert 0.9 < torch.cat(uniforms).max() < 1.0


class TestRecorderAndReplay:
    def test_a_recorder_notes_kind_and_shape_in_order(self) -> None:
        recorder = Recorder(CPU)
        assert isinstance(recorder, Noise)
        for kind, shape, _ in REQUESTS:
            drawn = (recorder.normal if kind == philox.NORMAL else recorder.uniform)(*shape)
            assert drawn.shape == shape
            assert 0.0 <= drawn.min() <= drawn.max() < 1.0
        assert recorder.requests == REQUESTS

    def test_a_replay_hands_out_what_was_drawn_in_order(self, draw: Any) -> None:
        tensors = [draw.normal(*request.shape) for request in REQUESTS]
        replay = DrawnNoise(tensors)
        assert isinstance(replay, Noise)
        for (kind, shape, _), expected in zip(REQUESTS, tensors, strict=True):
            assert (replay.normal if kind == philox.NORMAL else replay.uniform)(*shape) is expected
        with pytest.raises(StopIteration):
            replay.normal(1)

    def test_together_they_give_a_computation_what_a_run_would_have_given_it(self, draw: Any) -> None:
        x, rate = draw.normal(6, 5), torch.tensor(0.3)

        def compute(noise: Noise) -> Tensor:
            return dropout(dropout(x, rate, noise) + noise.normal(5), rate, noise)

        recorder = Recorder(CPU)
        compute(recorder)
        source = SeparateSource(merge([recorder.requests] * len(SEEDS)), SEEDS, "training noise")
        expected = [RunNoise(CPU, seed, "training noise") for seed in SEEDS]
        for _ in range(3):
            source.draw()
            for run, noise in enumerate(expected):
                assert torch.equal(compute(DrawnNoise([tensor[run] for tensor in source.drawn])), compute(noise))


def test_a_separate_source_gives_the_draws_of_every_run_s_own_noise() -> None:
    source = _separate(SEEDS, index=4)
    noises = [RunNoise(CPU, seed, "training noise", 4) for seed in SEEDS]
    for _ in range(3):
        source.draw()
        for run, noise in enumerate(noises):
            for (kind, shape, _), tensor in zip(REQUESTS, source.drawn, strict=True):
                expected = noise.normal(*shape) if kind == philox.NORMAL else noise.uniform(*shape)
                assert torch.equal(tensor[run], expected)


def test_a_philox_source_is_philox_under_the_key_of_the_run() -> None:
    """The two halves of the derived seed are the key; tensors of a kind lie one after another, 128 bytes apart."""
    source = _philox(SEEDS, index=4)
    for step in range(3):
        source.draw()
        for kind in (philox.NORMAL, philox.UNIFORM):
            start = 0
            for request, tensor in zip(REQUESTS, source.drawn, strict=True):
                if request.kind != kind:
                    continue
                size = tensor[0].numel()
                for run, seed in enumerate(SEEDS):
                    high, low = divmod(derive(seed, "training noise", 4), 2**32)
                    row = torch.empty(1, start + size)
                    philox.draw(row, torch.tensor([[low, high]]), torch.tensor([step]), kind)
                    assert torch.equal(tensor[run].flatten(), row[0, start:])
                start += -(-size // 128) * 128


def test_a_philox_source_stays_where_it_is() -> None:
    source = _philox(SEEDS)
    places = [tensor.data_ptr() for tensor in source.drawn]
    source.draw()
    source.begin(SEEDS, "training noise", 1)
    source.draw()
    assert [tensor.data_ptr() for tensor in source.drawn] == places
    spans = sorted((tensor[0].data_ptr(), tensor[0].numel() * 4) for tensor in source.drawn)
    assert all(first + size <= second for (first, size), (second, _) in pairwise(spans))


def test_a_philox_source_names_what_a_draw_changes() -> None:
    """With `step` put back, the same draws come again: what a CUDA graph's rehearsal relies on."""
    source = _philox(SEEDS)
    source.draw()
    saved = source.step.clone()
    first = _next(source)
    source.step.copy_(saved)
    assert _equal(_next(source), first)


def test_a_philox_source_draws_uniforms_ahead_and_the_rest_after_them() -> None:
    """A step that begins with uniforms need not wait for the rest: only for that is a replay's `ready` called."""
    whole, parts, waited = _philox(SEEDS), _philox(SEEDS), []
    for _ in range(3):
        for tensor in parts.drawn:
            tensor.fill_(9.0)
        parts.draw_uniforms()
        expected = _next(whole)
        early = [request.kind == philox.UNIFORM for request in REQUESTS]
        assert [torch.equal(a, b) for a, b in zip(parts.drawn, expected, strict=True)] == early
        replay = DrawnNoise(parts.drawn, lambda: waited.append(parts.draw_others()))
        assert torch.equal(replay.uniform(5, 3), expected[0])
        assert waited == []
        assert torch.equal(replay.normal(7, 2), expected[1])
        assert waited == [None]
        assert _equal(parts.drawn, expected)
        waited.clear()


class TestWhatDropoutKeeps:
    """Drawn as booleans: each run at its own rate, whatever the rates beside it."""

    SHAPES = ((40, 50), (7,), (30, 4, 5))

    def _requests(self, *rates: tuple[float, ...]) -> list[Request]:
        kept = [Request(philox.KEPT, shape, run_rates) for shape, run_rates in zip(self.SHAPES, rates, strict=True)]
        return [Request(philox.NORMAL, (9,)), *kept, Request(philox.UNIFORM, (9,))]

    def test_a_separate_source_gives_what_a_run_s_own_noise_keeps(self) -> None:
        source = SeparateSource(self._requests((0.1, 0.5), (0.2, 0.6), (0.3, 0.7)), (0, 1), "training noise")
        source.draw()
        for run in (0, 1):
            noise = RunNoise(CPU, run, "training noise")
            assert torch.equal(source.drawn[0][run], noise.normal(9))
            for shape, rates, drawn in zip(
                self.SHAPES, ((0.1, 0.5), (0.2, 0.6), (0.3, 0.7)), source.drawn[1:], strict=False
            ):
                assert torch.equal(drawn[run], noise.uniform(*shape) >= torch.tensor(rates[run]))

    def test_a_philox_source_keeps_where_its_number_reaches_the_rate(self) -> None:
        """The same numbers in one stretch, each against the rate of its own request."""
        rates = ((0.1, 0.5), (0.2, 0.5), (0.2, 0.5))
        source = Source(self._requests(*rates), CPU, [5, 6], "training noise", 3)
        source.draw()
        start = 0
        for shape, run_rates, drawn in zip(self.SHAPES, rates, source.drawn[1:], strict=False):
            size = int(torch.tensor(shape).prod())
            for run, seed in enumerate((5, 6)):
                high, low = divmod(derive(seed, "training noise", 3), 2**32)
                words = torch.arange(start // 4, start // 4 + -(-size // 4))[None]
                fixed = torch.full_like(words, philox.KEPT)
                four = philox.words(
                    torch.tensor([[low, high]]), (words, torch.zeros_like(words), fixed, torch.zeros_like(words))
                )
                numbers = torch.stack([(word >> 8).float() * 2.0**-24 for word in four], -1).flatten()[:size]
                assert torch.equal(drawn[run].flatten(), numbers >= run_rates[run])
            start += -(-size // 128) * 128

    @pytest.mark.parametrize("make", [SeparateSource, Source])
    def test_a_run_s_draws_do_not_depend_on_the_rates_beside_it(self, make: Any) -> None:
        def drawn(*rates: tuple[float, ...]) -> list[Tensor]:
            seeds = [4, 9][: len(rates[0])]
            requests, address = self._requests(*rates), (seeds, "training noise")
            source = Source(requests, CPU, *address) if make is Source else SeparateSource(requests, *address)
            source.draw()
            return [tensor[0] for tensor in source.drawn]

        alone = drawn((0.2,), (0.2,), (0.4,))
        assert _equal(alone, drawn((0.2, 0.2), (0.2, 0.2), (0.4, 0.4)))
        assert _equal(alone, drawn((0.2, 0.9), (0.2, 0.1), (0.4, 0.4)))

    @pytest.mark.parametrize("rate", [0.02, 0.5, 0.9])
    def test_they_are_kept_as_often_as_the_rate_says(self, rate: float) -> None:
        """100,000 draws: five standard deviations, so one false alarm in a million."""
        source = Source([Request(philox.KEPT, (100_000,), (rate,))], CPU, [0], "training noise")
        source.draw()
        dropped = 1.0 - source.drawn[0].float().mean().item()
        assert abs(dropped - rate) < 5 * (rate * (1 - rate) / 100_000) ** 0.5


@both_sources
class TestSources:
    def test_a_run_s_draws_do_not_depend_on_the_runs_beside_it(self, make: Make) -> None:
        together, alone = make(SEEDS), [make([seed]) for seed in SEEDS]
        other = make([7, SEEDS[1], 9, 10])
        for _ in range(3):
            drawn, beside = _next(together), _next(other)
            for run, source in enumerate(alone):
                assert _equal([tensor[run : run + 1] for tensor in drawn], _next(source))
            assert _equal([tensor[1] for tensor in drawn], [tensor[1] for tensor in beside])

    def test_every_run_step_purpose_and_task_has_its_own(self, make: Make) -> None:
        sources = [make(SEEDS), make(SEEDS, "test noise"), make(SEEDS, "training noise", 1)]
        steps = [_next(source) for source in sources for _ in range(2)]
        drawn = [[tensor[run] for tensor in step] for step in steps for run in range(len(SEEDS))]
        for one, two in combinations(drawn, 2):
            assert _different(one, two)

    def test_tensors_of_a_step_hold_different_draws_of_the_right_kind(self, make: Make) -> None:
        drawn = _next(make(SEEDS))
        assert [tensor.shape for tensor in drawn] == [(len(SEEDS), *request.shape) for request in REQUESTS]
        values = torch.cat([tensor.flatten() for tensor in drawn])
        assert len(values.unique()) > len(values) - 3
        for request, tensor in zip(REQUESTS, drawn, strict=True):
            inside = ((tensor >= 0.0) & (tensor < 1.0)).all()
            assert inside == (request.kind == philox.UNIFORM)

    def test_begun_again_gives_the_same(self, make: Make) -> None:
        one, two = make(SEEDS), make(SEEDS)
        assert all(_equal(_next(one), _next(two)) for _ in range(3))

    def test_one_that_shares_takes_its_turn_in_the_other_s_steps(self, make: Make) -> None:
        """As the source of a smaller last batch does: whoever draws takes the next step of one sequence."""
        first, second, alone = make(SEEDS), make(SEEDS), make(SEEDS)
        second.share(first)
        turns = [_next(source) for source in (first, second, first, second)]
        assert all(_equal(turn, _next(alone)) for turn in turns)

    def test_one_that_is_begun_again_goes_on_as_a_new_one(self, make: Make) -> None:
        source, fresh = make(SEEDS), make(SEEDS, "training noise", 1)
        for _ in range(3):
            source.draw()
        source.begin(SEEDS, "training noise", 1)
        assert all(_equal(_next(source), _next(fresh)) for _ in range(3))

    def test_sharing_outlives_another_beginning(self, make: Make) -> None:
        """A second task: both sources are begun again by the first."""
        first, second = make(SEEDS), make(SEEDS)
        second.share(first)
        first.draw()
        second.draw()
        alone = make(SEEDS, "training noise", 1)
        first.begin(SEEDS, "training noise", 1)
        turns = [_next(source) for source in (first, first, second, first)]
        assert all(_equal(turn, _next(alone)) for turn in turns)
