"""What `--search` accepts, and what it says of the rest."""

from __future__ import annotations

import pytest

from kcl.errors import KclError
from kcl.methods.kcl_settings import KclSettings
from kcl.tuning.space import Choice, Range, around, parse, point_of


def test_ranges_and_choices() -> None:
    space = parse(["lr=0.001..0.5:log", "dropout=0..0.5", "bases=64..512", "kernel=vrf,rbf", "width=16,32"], "kcl")
    assert space == [
        Range("lr", 0.001, 0.5, log=True),
        Range("dropout", 0.0, 0.5, log=False),
        Range("bases", 64, 512, log=False),
        Choice("kernel", ("vrf", "rbf")),
        Choice("width", (16, 32)),
    ]
    assert parse([str(dimension) for dimension in space], "kcl") == space


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("lr", "expected NAME=LOW..HIGH"),
        ("lr=0.1", "at least two values"),
        ("lr=0.1,0.1", "each once"),
        ("lr=0.5..0.1", "upwards"),
        ("lr=0.1..0.5:linear", "only :log"),
        ("dropout=0..0.5:log", "begins above 0"),
        ("dropout=0..1.5", "out of range"),
        ("kernel=vrf..rbf", "a word has no range"),
        ("bases=1.5..3", "not a whole number"),
        ("learning_rate=0.1..1", "kcl has no setting"),
        ("kernel=vrf,gauss", "unknown kernel"),
    ],
)
def test_mistakes_are_named(text: str, told: str) -> None:
    with pytest.raises(KclError, match=told):
        parse([text], "kcl")


def test_nothing_to_search_or_the_same_twice_is_refused() -> None:
    with pytest.raises(KclError, match="name what is to be searched"):
        parse([], "kcl")
    with pytest.raises(KclError, match="given twice"):
        parse(["lr=0.1..1", "lr=0.1,0.2"], "kcl")
    with pytest.raises(KclError, match="ewc has no setting 'kernel'"):
        parse(["kernel=vrf,rbf"], "ewc")


def test_the_published_settings_are_a_point_where_they_lie_inside() -> None:
    settings = KclSettings(lr=0.1, kernel="vrf")
    assert point_of(parse(["lr=0.01..1", "kernel=vrf,rbf"], "kcl"), settings) == {"lr": 0.1, "kernel": "vrf"}
    assert point_of(parse(["lr=0.2..1"], "kcl"), settings) is None
    assert point_of(parse(["kernel=rbf,linear"], "kcl"), settings) is None


def test_around_the_present_settings_lie_those_with_one_other_value() -> None:
    settings = KclSettings(lr=0.1, kernel="vrf")
    points = around(parse(["lr=0.05,0.1,0.2", "kernel=rbf,vrf"], "kcl"), settings)
    assert [tuple(point.values()) for point in points] == [(0.1, "vrf"), (0.05, "vrf"), (0.2, "vrf"), (0.1, "rbf")]
    for space in (["lr=0.05,0.2"], ["lr=0.01..1", "kernel=vrf,rbf"]):
        with pytest.raises(KclError, match="--one-at-a-time"):
            around(parse(space, "kcl"), settings)
