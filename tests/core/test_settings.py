"""Every setting by name: types, ranges, and words for what is wrong."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl.core.settings import KERNELS, Settings, describe_range, nearest, parse_setting
from kcl.errors import KclError

FIELDS = {field.name: field for field in dataclasses.fields(Settings)}
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
        value = parse_setting(name, str(FIELDS[name].default))
        assert value == FIELDS[name].default
        assert type(value) is type(FIELDS[name].default)

    @pytest.mark.parametrize("name", FIELDS)
    def test_is_explained(self, name: str) -> None:
        assert FIELDS[name].metadata["help"]
        assert describe_range(name)

    @pytest.mark.parametrize("name", NUMBERS)
    def test_has_bounds_and_keeps_them(self, name: str) -> None:
        """Just beyond either end is refused, by text and by value, and the message says what is expected."""
        for value in _limits(name):
            text = repr(int(value)) if isinstance(FIELDS[name].default, int) and math.isfinite(value) else repr(value)
            with pytest.raises(KclError, match=name) as refusal:
                parse_setting(name, text)
            assert describe_range(name) in str(refusal.value)
            with pytest.raises(KclError, match=name):
                Settings(**{name: value})

    @pytest.mark.parametrize("name", NUMBERS)
    def test_takes_its_ends(self, name: str) -> None:
        limits = FIELDS[name].metadata
        for value in (limits["low"], limits["high"]):
            if value is not None:
                kind = type(FIELDS[name].default)
                assert parse_setting(name, str(kind(value))) == value
                assert getattr(Settings(**{name: kind(value)}), name) == value

    @pytest.mark.parametrize(
        "text", ["", " ", "abc", "nan", "inf", "-inf", "1e999", "0x10", "1,2", "None", "True", "½"]
    )
    @pytest.mark.parametrize("name", NUMBERS)
    def test_refuses_what_is_no_number(self, name: str, text: str) -> None:
        with pytest.raises(KclError, match=name):
            parse_setting(name, text)

    @pytest.mark.parametrize("name", [name for name in NUMBERS if isinstance(FIELDS[name].default, int)])
    def test_whole_numbers_are_whole(self, name: str) -> None:
        for text in ("2.5", "1e1", "2.0"):
            with pytest.raises(KclError, match="whole number"):
                parse_setting(name, text)
        with pytest.raises(KclError, match="whole number"):
            Settings(**{name: 2.5})

    @pytest.mark.parametrize("value", [None, True, "10", [1], {}])
    @pytest.mark.parametrize("name", NUMBERS)
    def test_refuses_values_of_another_type(self, name: str, value: Any) -> None:
        with pytest.raises(KclError, match=name):
            Settings(**{name: value})

    @pytest.mark.parametrize("name", NUMBERS)
    def test_refuses_numbers_too_large_for_a_computer(self, name: str) -> None:
        for text in ("9" * 400, "-" + "9" * 400, "9" * 5000):
            with pytest.raises(KclError, match=name):
                parse_setting(name, text)
        with pytest.raises(KclError, match=name):
            Settings(**{name: 10**400})

    @pytest.mark.parametrize("name", WORDS)
    def test_takes_each_of_its_words_and_no_other(self, name: str) -> None:
        for choice in FIELDS[name].metadata["choices"]:
            assert parse_setting(name, choice) == choice
        with pytest.raises(KclError, match=name):
            parse_setting(name, "no-such-word")
        with pytest.raises(KclError, match=name):
            Settings(**{name: 3})


class TestWords:
    @pytest.mark.parametrize(
        ("given", "meant"),
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
    def test_an_unknown_name_lists_the_nearest(self, given: str, meant: str) -> None:
        for refused in (lambda: parse_setting(given, "1"), lambda: Settings().replace(**{given: 1})):
            with pytest.raises(KclError, match=rf"unknown setting '{given}'.*\b{meant}\b"):
                refused()

    def test_an_unknown_kernel_lists_the_nearest(self) -> None:
        with pytest.raises(KclError, match="laplacian"):
            parse_setting("kernel", "laplace")
        with pytest.raises(KclError, match="polynomial"):
            Settings(kernel="poly")

    def test_nothing_near_lists_all(self) -> None:
        assert all(name in nearest("@@@@", list(KERNELS)) for name in KERNELS)


class TestSettings:
    def test_replace_changes_a_copy(self) -> None:
        before = Settings()
        after = before.replace(lr=0.5, kernel="rbf")
        assert (after.lr, after.kernel) == (0.5, "rbf")
        assert before == Settings()
        assert after.replace(lr=before.lr, kernel=before.kernel) == before

    def test_replace_checks_ranges(self) -> None:
        with pytest.raises(KclError, match="dropout"):
            Settings().replace(dropout=1.0)

    def test_to_dict_is_everything(self) -> None:
        assert Settings(**Settings(lr=0.5).to_dict()) == Settings(lr=0.5)
        assert set(Settings().to_dict()) == set(FIELDS)


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
        value, message = _attempt(lambda: parse_setting(name, text))
        assert value is not None or message

    @given(st.sampled_from(sorted(FIELDS)), st.text(max_size=40) | st.integers().map(str) | st.floats().map(repr))
    def test_any_text_for_a_setting(self, name: str, text: str) -> None:
        value, message = _attempt(lambda: parse_setting(name, text))
        assert name in message or getattr(Settings(**{name: value}), name) == value

    @given(st.sampled_from(sorted(FIELDS)), st.none() | st.booleans() | st.integers() | st.floats() | st.text())
    def test_any_value_for_a_setting(self, name: str, value: Any) -> None:
        settings, message = _attempt(lambda: Settings(**{name: value}))
        assert name in message or getattr(settings, name) == value
