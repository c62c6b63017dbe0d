"""Whatever holds people's data: tables, sparse matrices, datasets; and what is refused of it, in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import kcl

rng = np.random.default_rng(0)
Y = np.arange(60) % 3
X = (rng.normal(size=(60, 4)) + 3.0 * np.eye(3, 4)[Y]).astype(np.float32)
NAMES = ["height", "width", "weight", "age"]


def _confidence(*lesson: Any) -> np.ndarray:
    model = kcl.ContinualModel()
    model.learn(*lesson)
    return model.predict(X).confidence


def _table(names: list[str] = NAMES) -> Any:
    return pytest.importorskip("pandas").DataFrame(X, columns=names[: X.shape[1]])


def _loader(pairs: Any) -> DataLoader:
    return DataLoader(pairs, batch_size=7, generator=torch.Generator())  # the global one is nobody's to draw from


class TestWhatHoldsTheSameData:
    @pytest.mark.parametrize(
        "held",
        [
            lambda: (_table(), Y),
            lambda: (pytest.importorskip("scipy.sparse").csr_matrix(X), Y),
            lambda: (torch.from_numpy(X).to_sparse(), Y),
            lambda: (TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),),
            lambda: (_loader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))),),
        ],
        ids=["table", "sparse", "sparse tensor", "dataset", "loader"],
    )
    def test_teaches_the_same(self, held: Callable[[], tuple[Any, ...]]) -> None:
        np.testing.assert_array_equal(_confidence(*held()), _confidence(X, Y))

    def test_is_answered_the_same(self) -> None:
        model = kcl.ContinualModel()
        model.learn(X, Y)
        expected, pairs = model.predict(X).confidence, TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
        for held in (_table(), pytest.importorskip("scipy.sparse").csr_matrix(X), pairs, _loader(pairs)):
            np.testing.assert_array_equal(model.predict(held).confidence, expected)
        assert model.accuracy(pairs) == model.accuracy(X, Y)

    def test_may_have_text_labels(self) -> None:
        words = [("no", "yes", "maybe")[label] for label in Y]
        model = kcl.ContinualModel()
        model.learn(_loader(_Pairs(words)))
        assert set(model.labels) == {"no", "yes", "maybe"}


class _Pairs(torch.utils.data.Dataset):
    def __init__(self, labels: list[str]) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, str]:
        return torch.from_numpy(X[place]), self.labels[place]


class TestColumnsWithNames:
    def test_are_remembered_and_checked(self, tmp_path: Path) -> None:
        model, table = kcl.ContinualModel(), _table()
        model.learn(table, Y, "people")
        assert model.columns == tuple(NAMES)
        kcl.save_model(model, tmp_path / "model")
        loaded = kcl.load_model(tmp_path / "model")
        for other, word in (
            (table[NAMES[::-1]], "another order"),
            (table.rename(columns={"age": "years"}), "lacks age and has years"),
            (table.assign(more=1.0), "more"),
        ):
            with pytest.raises(kcl.KclError, match=word):
                loaded.predict(other)
            with pytest.raises(kcl.KclError, match=word):
                loaded.learn(other, Y, "more people")
            with pytest.raises(kcl.KclError, match=word):
                loaded.forget("people", samples=(other, Y))
        np.testing.assert_array_equal(loaded.predict(table).confidence, model.predict(X).confidence)

    def test_are_in_the_onnx_file(self, tmp_path: Path) -> None:
        onnx = pytest.importorskip("onnx")
        pytest.importorskip("onnxscript")
        classifier = kcl.KernelContinualClassifier(random_state=0).fit(_table(), Y)
        path = kcl.export_onnx(classifier.model_, tmp_path / "model.onnx")
        entries = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
        assert json.loads(entries["kcl_columns"]) == NAMES

    def test_are_forgotten_with_a_lesson_that_fails(self) -> None:
        model = kcl.ContinualModel()
        with pytest.raises(kcl.KclError):
            model.learn(_table().assign(age=np.nan), Y)
        assert model.columns == ()


@pytest.mark.parametrize(
    ("lesson", "words"),
    [
        ((np.zeros((4, 32, 32, 3), np.uint8), [0, 1, 0, 1]), "channels last"),
        ((np.where(np.arange(8).reshape(4, 2) == 5, np.nan, 1.0), [0, 1, 0, 1]), "row 2, column 1 is NaN"),
        ((np.full((4, 1, 2, 2), np.inf), [0, 1, 0, 1]), r"row 0, position \(0, 0, 0\) is inf"),
        ((TensorDataset(torch.from_numpy(X)),), "pairs"),
        ((TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), Y), "dataset and labels"),
        (([],), "match labels"),
    ],
)
def test_what_is_refused_is_told_in_words(lesson: Any, words: str) -> None:
    model = kcl.ContinualModel()
    with pytest.raises(kcl.KclError, match=words):
        model.learn(*lesson)
    assert not model.tasks


def test_a_number_that_is_none_is_found_by_its_column() -> None:
    for learn, error in (
        (kcl.ContinualModel().learn, kcl.KclError),
        (kcl.KernelContinualClassifier(random_state=0).fit, ValueError),
    ):
        with pytest.raises(error, match="row 0, column 'age' is NaN"):
            learn(_table().assign(age=np.nan), Y)


def test_columns_of_text_are_named() -> None:
    with pytest.raises(kcl.KclError, match="'age'"):
        kcl.ContinualModel().learn(_table().assign(age="old"), Y)


def test_queries_with_their_channels_last_are_told_apart() -> None:
    model = kcl.ContinualModel()
    model.learn(np.zeros((4, 3, 16, 16), np.uint8), [0, 1, 0, 1])
    with pytest.raises(kcl.KclError, match="channels last"):
        model.predict(np.zeros((4, 16, 16, 3), np.uint8))


def test_all_tasks_have_the_same_columns() -> None:
    model = kcl.ContinualModel()
    model.learn(X, Y, "first")
    with pytest.raises(kcl.KclError, match="3 columns; the model takes 4"):
        model.learn(X[:, :3], Y, "second")
