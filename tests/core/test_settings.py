"""Every setting of every method by name: types, ranges, and words for what is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl.core.settings import Settings, nearest, setting
from kcl.errors import KclError
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.recipes import METHODS
from kcl.methods.ridge_kernels import KERNELS

TYPES = {name: method.settings_type for method in METHODS.values() for name in method.settings_type.names()}
"""The settings class that has each setting."""
FIELDS = {name: settings_type.field(name) for name, settings_type in TYPES.items()}
NUMBERS = {name: field for name, field in FIELDS.items() if not isinstance(field.default, str | bool)}
WORDS = {name: field for name, field in FIELDS.items() if isinstance(field.default, str)}


def _limits(name: str) -> tuple[float, float]:
    """The smallest and the largest value that is out of range, or the nearest infinity."""
    limits, whole = FIELDS[name].metadata, isinstance(FIELDS[name].default, int)

    def beyond(value: float, towards: float) -> float:
        return value + math.copysign(1, towards) if whole else math.nextafter(value, towards)

    low = limits["above"] if limits["low"] is None else beyond(limits["low"], -math.inf)
    high = limits["below"] if limits["high"] is None else beyond(limits["high"], math.inf)
    return (-math.inf if low is None else low), (math.inf if high is None else high)


class TestEverySetting:
    @pytest.mark.parametrize("name", FIELDS)
    def test_its_default_parses_to_itself(self, name: str) -> None:
        value = TYPES[name].parse(name, str(FIELDS[name].default))
        assert value == FIELDS[name].default
        assert type(value) is type(FIELDS[name].default)

    @pytest.mark.parametrize("name", FIELDS)
    def test_is_explained(self, name: str) -> None:
        assert FIELDS[name].metadata["help"]
        assert TYPES[name].describe_range(name)

    @pytest.mark.parametrize("name", FIELDS)
    def test_what_zero_switches_off_is_a_number_that_stacks(self, name: str) -> None:
        if FIELDS[name].metadata["off_at_zero"]:
            assert FIELDS[name].metadata["stackable"]
            assert FIELDS[name].metadata["low"] == 0.0

    @pytest.mark.parametrize("name", NUMBERS)
    def test_has_bounds_and_keeps_them(self, name: str) -> None:
        """Just beyond either end is refused, by text and by value, and the message says what is expected."""
        for value in _limits(name):
            text = repr(int(value)) if isinstance(FIELDS[name].default, int) and math.isfinite(value) else repr(value)
            with pytest.raises(KclError, match=name) as refusal:
                TYPES[name].parse(name, text)
            assert TYPES[name].describe_range(name) in str(refusal.value)
            with pytest.raises(KclError, match=name):
                TYPES[name](**{name: value})

    @pytest.mark.parametrize("name", NUMBERS)
    def test_takes_its_ends(self, name: str) -> None:
        limits = FIELDS[name].metadata
        for value in (limits["low"], limits["high"]):
            if value is not None:
                kind = type(FIELDS[name].default)
                assert TYPES[name].parse(name, str(kind(value))) == value
                assert getattr(TYPES[name](**{name: kind(value)}), name) == value

    @pytest.mark.parametrize(
        "text", ["", " ", "abc", "nan", "inf", "-inf", "1e999", "0x10", "1,2", "None", "True", "½"]
    )
    @pytest.mark.parametrize("name", NUMBERS)
    def test_refuses_what_is_no_number(self, name: str, text: str) -> None:
        with pytest.raises(KclError, match=name):
            TYPES[name].parse(name, text)

    @pytest.mark.parametrize("name", [name for name in NUMBERS if isinstance(FIELDS[name].default, int)])
    def test_whole_numbers_are_whole(self, name: str) -> None:
        for text in ("2.5", "1e1", "2.0"):
            with pytest.raises(KclError, match="whole number"):
                TYPES[name].parse(name, text)
        with pytest.raises(KclError, match="whole number"):
            TYPES[name](**{name: 2.5})

    @pytest.mark.parametrize("value", [None, True, "10", [1], {}])
    @pytest.mark.parametrize("name", NUMBERS)
    def test_refuses_values_of_another_type(self, name: str, value: Any) -> None:
        with pytest.raises(KclError, match=name):
            TYPES[name](**{name: value})

    @pytest.mark.parametrize("name", NUMBERS)
    def test_refuses_numbers_too_large_for_a_computer(self, name: str) -> None:
        for text in ("9" * 400, "-" + "9" * 400, "9" * 5000):
            with pytest.raises(KclError, match=name):
                TYPES[name].parse(name, text)
        with pytest.raises(KclError, match=name):
            TYPES[name](**{name: 10**400})

    @pytest.mark.parametrize("name", WORDS)
    def test_takes_each_of_its_words_and_no_other(self, name: str) -> None:
        for choice in FIELDS[name].metadata["choices"]:
            assert TYPES[name].parse(name, choice) == choice
        with pytest.raises(KclError, match=name):
            TYPES[name].parse(name, "no-such-word")
        with pytest.raises(KclError, match=name):
            TYPES[name](**{name: 3})


class TestWords:
    @pytest.mark.parametrize(
        ("mistake", "meant"),
        [
            ("coreset_size", "coreset_size_per_class"),
            ("coreset-size-per-class", "coreset_size_per_class"),
            ("learning_rate", "lr"),
            ("basis", "bases"),
            ("Dropout", "dropout"),
            ("batchsize", "batch_size"),
            ("momentun", "momentum"),
        ],
    )
    def test_an_unknown_name_lists_the_nearest(self, mistake: str, meant: str) -> None:
        for refused in (lambda: KclSettings.parse(mistake, "1"), lambda: KclSettings().replace(**{mistake: 1})):
            with pytest.raises(KclError, match=rf"unknown setting '{mistake}'.*\b{meant}\b"):
                refused()

    def test_an_unknown_kernel_lists_the_nearest(self) -> None:
        with pytest.raises(KclError, match="laplacian"):
            KclSettings.parse("kernel", "laplace")
        with pytest.raises(KclError, match="polynomial"):
            KclSettings(kernel="poly")

    def test_nothing_near_lists_all(self) -> None:
        assert all(name in nearest("@@@@", list(KERNELS)) for name in KERNELS)


class TestSettings:
    def test_replace_changes_a_copy(self) -> None:
        before = KclSettings()
        after = before.replace(lr=0.5, kernel="rbf")
        assert (after.lr, after.kernel) == (0.5, "rbf")
        assert before == KclSettings()
        assert after.replace(lr=before.lr, kernel=before.kernel) == before

    def test_replace_checks_ranges(self) -> None:
        with pytest.raises(KclError, match="dropout"):
            Settings().replace(dropout=1.0)

    @pytest.mark.parametrize("settings_type", dict.fromkeys(TYPES.values()))
    def test_to_dict_is_everything(self, settings_type: type[Settings]) -> None:
        assert settings_type(**settings_type(lr=0.5).to_dict()) == settings_type(lr=0.5)
        assert tuple(settings_type().to_dict()) == settings_type.names()


@dataclass(frozen=True)
class _OutsideSettings(KclSettings):
    """What a user's program adds to KCL's settings."""

    sharpness: float = setting(1.0, "a number that stacks", above=0.0, stackable=True, since=4)
    blur: float = setting(0.0, "off at zero", 0.0, stackable=True, off_at_zero=True, since=4)
    shape: str = setting("round", "a choice", choices={"round": "no corners", "square": "four"}, since=4)
    looks: int = setting(1, "at test only", 1, 9, at_test=True, since=4)


class TestFieldsFromOutside:
    """A field declared in a subclass works everywhere without another line."""

    def test_are_parsed_described_and_checked(self) -> None:
        assert _OutsideSettings.names() == (*KclSettings.names(), "sharpness", "blur", "shape", "looks")
        assert _OutsideSettings.parse("sharpness", "2.5") == 2.5
        assert _OutsideSettings.describe_range("looks") == "a whole number from 1 to 9"
        assert _OutsideSettings.describe_range("shape") == "one of round, square"
        with pytest.raises(KclError, match="shape"):
            _OutsideSettings(shape="oval")
        with pytest.raises(KclError, match="did you mean sharpness"):
            _OutsideSettings().replace(sharpnes=2.0)
        with pytest.raises(KclError, match="unknown setting"):
            KclSettings().replace(sharpness=2.0)

    def test_decide_which_runs_go_together(self) -> None:
        base = _OutsideSettings()
        assert base.stacking_key() == base.replace(sharpness=2.0, looks=3, lr=0.3).stacking_key()
        assert base.replace(blur=0.1).stacking_key() == base.replace(blur=0.2).stacking_key()
        for apart in ({"blur": 0.1}, {"shape": "square"}, {"kernel": "rbf"}, {"dropout": 0.0}):
            assert base.stacking_key() != base.replace(**apart).stacking_key()
        assert base.testing_key() != base.replace(looks=3).testing_key()
        assert base.testing_key() == base.replace(sharpness=2.0, average_ramp=2.0).testing_key()
        assert base.testing_key() != base.replace(weight_average=0.5).testing_key()
        assert base.replace(looks=3, test_draws=2, blur=0.1).as_trained() == base.replace(blur=0.1)
        assert base.as_trained() is base
        assert "looks" in base.names_at_test()

    def test_are_json(self) -> None:
        settings = _OutsideSettings(sharpness=2.0, shape="square")
        assert _OutsideSettings(**json.loads(json.dumps(settings.to_dict()))) == settings

    @pytest.mark.parametrize("default", [None, (1, 2), "a word without choices"])
    def test_have_a_type_that_can_be_parsed(self, default: Any) -> None:
        with pytest.raises(TypeError):
            setting(default, "of no use")


def _attempt(function: Callable[[], Any]) -> tuple[Any, str]:
    """What a call gives: a value, or the message of the one exception it may raise."""
    try:
        return function(), ""
    except KclError as error:
        return None, str(error)


class TestAnything:
    """Whatever is typed, the answer is a value in range or a message."""

    @given(st.text(max_size=30), st.text(max_size=30))
    def test_any_text_for_any_name(self, name: str, text: str) -> None:
        value, message = _attempt(lambda: KclSettings.parse(name, text))
        assert value is not None or message

    @given(st.sampled_from(sorted(FIELDS)), st.text(max_size=40) | st.integers().map(str) | st.floats().map(repr))
    def test_any_text_for_a_setting(self, name: str, text: str) -> None:
        value, message = _attempt(lambda: TYPES[name].parse(name, text))
        assert name in message or getattr(TYPES[name](**{name: value}), name) == value

    @given(st.sampled_from(sorted(FIELDS)), st.none() | st.booleans() | st.integers() | st.floats() | st.text())
    def test_any_value_for_a_setting(self, name: str, value: Any) -> None:
        settings, message = _attempt(lambda: TYPES[name](**{name: value}))
        assert name in message or getattr(settings, name) == value
