"""Streams of data that a person would bring, for `own_data.py`.

A stream is a list of tasks, made from a seed: the seed fixes splits, permutations and the order of tasks. Rows are as a
file would hold them, unscaled; images are bytes (n, channels, height, width). The scenarios:

domain   all tasks have the same classes, and nobody names a task, neither to learn nor to answer
task     tasks are named to learn and to answer
class    tasks are named to learn; answers are among all classes of all tasks

Development and final half were fixed before anything was run: of every kind of stream (moved rows, new classes, drift
that was measured, drift that was generated, text, images) one half each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from sklearn import datasets

from own_data_sources import (
    ROWS_OF_A_MOVE,
    Missing,
    Task,
    banking77,
    by_class,
    by_quantile,
    cifar100_classes,
    clinc150_texts,
    embedded,
    folder,
    from_river,
    hashed,
    mnist,
    permuted,
    png_folders,
    split,
    tables,
    thinned,
)

HALVES = ("development", "final")
SCENARIOS = ("domain", "task", "class")


@dataclass(frozen=True)
class Stream:
    name: str
    half: str
    scenarios: tuple[str, ...]
    about: str
    make: Callable[[np.random.Generator], list[Task]]

    def tasks(self, seed: int) -> list[Task]:
        """The tasks of a seed; raises `Missing` where a package or data are not here."""
        try:
            return self.make(np.random.default_rng(seed))
        except ImportError as error:
            raise Missing(f"needs the package {error.name}") from None


STREAMS: dict[str, Stream] = {}
SHARED_CLASSES = ("domain", "task", "class")
NEW_CLASSES = ("task", "class")
Maker = Callable[[np.random.Generator], list[Task]]


def stream(name: str, half: str, scenarios: tuple[str, ...], about: str) -> Callable[[Maker], Maker]:
    def add(make: Maker) -> Maker:
        STREAMS[name] = Stream(name, half, scenarios, about, make)
        return make

    return add


# Rows that were moved: digits, MNIST


@stream("digits-permuted", "development", SHARED_CLASSES, "digits; pixels in another order in each of 5 tasks")
def digits_permuted(rng: np.random.Generator) -> list[Task]:
    digits = datasets.load_digits()
    return permuted(digits.data, digits.target, rng)


@stream("digits-turned", "final", SHARED_CLASSES, "digits, turned by 0°, 90°, 180° and 270°")
def digits_turned(rng: np.random.Generator) -> list[Task]:
    digits = datasets.load_digits()
    tasks = []
    for k in range(4):
        rows = rng.permutation(len(digits.target))[:ROWS_OF_A_MOVE]
        turned = np.rot90(digits.images[rows], k, axes=(1, 2)).reshape(-1, 64)
        tasks.append(split(f"{90 * k}°", turned, digits.target[rows], rng))
    return tasks


@stream("mnist-permuted", "final", SHARED_CLASSES, "rows of 784 pixels of MNIST, in another order in each of 5 tasks")
def mnist_permuted(rng: np.random.Generator) -> list[Task]:
    images, labels = mnist()
    return permuted(images.reshape(-1, 784).astype(np.float64), labels, rng)


# New classes


@stream("digits-by-class", "development", NEW_CLASSES, "digits, 2 classes a task")
def digits_by_class(rng: np.random.Generator) -> list[Task]:
    return by_class(*datasets.load_digits(return_X_y=True), 2, rng)


@stream("segments-by-class", "final", NEW_CLASSES, "image segments (river), 18 columns, 3, 2 and 2 of 7 classes")
def segments_by_class(rng: np.random.Generator) -> list[Task]:
    from river.datasets import ImageSegments

    return by_class(*from_river(ImageSegments()), 2, rng)


@stream("wine-then-cancer", "development", NEW_CLASSES, "wine (3 classes) and breast cancer (2), padded to 30 columns")
def wine_then_cancer(rng: np.random.Generator) -> list[Task]:
    return tables([("wine", datasets.load_wine()), ("cancer", datasets.load_breast_cancer())], rng)


@stream("four-tables", "final", NEW_CLASSES, "iris, wine, breast cancer and digits, padded to 64 columns")
def four_tables(rng: np.random.Generator) -> list[Task]:
    loaded = {"iris": datasets.load_iris(), "wine": datasets.load_wine(),
              "cancer": datasets.load_breast_cancer(), "digits": datasets.load_digits()}  # fmt: skip
    return tables(list(loaded.items()), rng)


@stream("wine-one-by-one", "development", ("class",), "wine, one class a task")
def wine_one_by_one(rng: np.random.Generator) -> list[Task]:
    return by_class(*datasets.load_wine(return_X_y=True), 1, rng)


@stream("iris-one-by-one", "final", ("class",), "iris, one class a task")
def iris_one_by_one(rng: np.random.Generator) -> list[Task]:
    return by_class(*datasets.load_iris(return_X_y=True), 1, rng)


# Drift that was measured


@stream("cancer-by-texture", "development", SHARED_CLASSES, "breast cancer, 4 tasks by rising texture")
def cancer_by_texture(rng: np.random.Generator) -> list[Task]:
    x, y = datasets.load_breast_cancer(return_X_y=True)
    return by_quantile(x, y, x[:, 1], 4, rng)


@stream("diabetes-by-age", "final", SHARED_CLASSES, "diabetes, worse than the median or not, 4 tasks by age")
def diabetes_by_age(rng: np.random.Generator) -> list[Task]:
    x, y = datasets.load_diabetes(return_X_y=True, scaled=False)
    return by_quantile(x, (y > np.median(y)).astype(int), x[:, 0], 4, rng)


@stream("phishing-in-order", "development", SHARED_CLASSES, "phishing sites (river), 5 tasks in the order of the file")
def phishing_in_order(rng: np.random.Generator) -> list[Task]:
    from river.datasets import Phishing

    x, y = from_river(Phishing())
    return by_quantile(x, y, np.arange(len(y)), 5, rng)


@stream("bananas-by-place", "final", SHARED_CLASSES, "bananas (river), 2 columns, 5 tasks from left to right")
def bananas_by_place(rng: np.random.Generator) -> list[Task]:
    from river.datasets import Bananas

    x, y = from_river(Bananas(), 2000)
    return by_quantile(x, y, x[:, 0], 5, rng)


# Drift and classes that were generated


@stream("moons-turning", "development", SHARED_CLASSES, "two moons, turned by 20° more in each of 5 tasks")
def moons_turning(rng: np.random.Generator) -> list[Task]:
    tasks = []
    for k in range(5):
        x, y = datasets.make_moons(400, noise=0.15, random_state=int(rng.integers(2**31)))
        sine, cosine = np.sin(np.pi * k / 9), np.cos(np.pi * k / 9)
        tasks.append(split(f"{20 * k}°", x @ np.array([[cosine, sine], [-sine, cosine]]), y, rng))
    return tasks


@stream("rbf-drift", "final", SHARED_CLASSES, "moving centres of 4 classes (river), 10 columns, 5 tasks in time")
def rbf_drift(rng: np.random.Generator) -> list[Task]:
    from river.datasets.synth import RandomRBFDrift

    seeds = {name: int(rng.integers(2**31)) for name in ("seed_model", "seed_sample")}
    x, y = from_river(RandomRBFDrift(n_classes=4, n_features=10, change_speed=0.001, n_centroids=20,
                                     n_drift_centroids=10, **seeds), 2000)  # fmt: skip
    return by_quantile(x, y, np.arange(len(y)), 5, rng)


@stream("agrawal", "development", SHARED_CLASSES, "Agrawal's loans (river), 9 columns, another rule in each of 4 tasks")
def agrawal(rng: np.random.Generator) -> list[Task]:
    from river.datasets.synth import Agrawal

    rules = [Agrawal(rule, seed=int(rng.integers(2**31)), perturbation=0.05) for rule in (0, 2, 4, 6)]
    return [split(f"rule {number}", *from_river(rule, 500), rng) for number, rule in enumerate(rules)]


@stream("sea", "final", SHARED_CLASSES, "SEA concepts (river), 3 columns, another threshold in each of 4 tasks")
def sea(rng: np.random.Generator) -> list[Task]:
    from river.datasets.synth import SEA

    concepts = [SEA(variant, noise=0.05, seed=int(rng.integers(2**31))) for variant in range(4)]
    return [split(f"threshold {number}", *from_river(concept, 500), rng) for number, concept in enumerate(concepts)]


@stream("clusters-by-class", "development", NEW_CLASSES, "make_classification, 20 columns, 10 classes, 2 a task")
def clusters_by_class(rng: np.random.Generator) -> list[Task]:
    x, y = datasets.make_classification(1400, 20, n_informative=10, n_classes=10, n_clusters_per_class=2,
                                        random_state=int(rng.integers(2**31)))  # fmt: skip
    return by_class(x, y, 2, rng)


@stream("blobs-by-class", "final", NEW_CLASSES, "make_blobs, 8 columns, 20 classes, 2 a task")
def blobs_by_class(rng: np.random.Generator) -> list[Task]:
    x, y = datasets.make_blobs(1400, 8, centers=20, cluster_std=4.0, random_state=int(rng.integers(2**31)))
    return by_class(x, y, 2, rng)


# Text


@stream("clinc150-embedded", "development", NEW_CLASSES, "CLINC150, WordLlama's 256 columns, 10 domains of 15 intents")
def clinc150_embedded(rng: np.random.Generator) -> list[Task]:
    return clinc150(embedded, rng)


@stream("clinc150-hashed", "final", NEW_CLASSES, "CLINC150, words hashed to 512 columns, 10 domains of 15 intents")
def clinc150_hashed(rng: np.random.Generator) -> list[Task]:
    return clinc150(hashed, rng)


@stream("banking77-hashed", "development", NEW_CLASSES, "Banking77, words hashed to 512 columns, 11 tasks of 7 intents")
def banking77_hashed(rng: np.random.Generator) -> list[Task]:
    texts, y = banking77()
    return by_class(hashed(texts), y, 7, rng, train=20, test=10)


@stream("banking77-embedded", "final", NEW_CLASSES, "Banking77, WordLlama's 256 columns, 11 tasks of 7 intents")
def banking77_embedded(rng: np.random.Generator) -> list[Task]:
    texts, y = banking77()
    return by_class(embedded(texts), y, 7, rng, train=20, test=10)


def clinc150(columns: Callable[[tuple[str, ...]], np.ndarray], rng: np.random.Generator) -> list[Task]:
    texts, intents = clinc150_texts()
    x, domains = columns(texts), json.loads((folder("clinc150") / "domains.json").read_text(encoding="utf-8"))
    numbers = {intent: number for number, intent in enumerate(name for names in domains.values() for name in names)}
    y = np.array([numbers.get(intent, -1) for intent in intents])
    tasks = []
    for name in rng.permutation(list(domains)):
        rows = np.flatnonzero(np.isin(y, [numbers[intent] for intent in domains[name]]))
        tasks.append(thinned(split(str(name), x[rows], y[rows], rng), 20, 10))
    return tasks


# Images


@stream("mnist-by-class", "development", NEW_CLASSES, "MNIST as images, 2 classes a task")
def mnist_by_class(rng: np.random.Generator) -> list[Task]:
    images, labels = mnist()
    return by_class(images, labels, 2, rng, train=100, test=50)


@stream("cifar100-folders", "development", NEW_CLASSES, "PNG folders of CIFAR-100, 4 tasks of 4 classes")
def cifar100_folders(rng: np.random.Generator) -> list[Task]:
    names = sorted(cifar100_classes())
    chosen = [names[place] for place in rng.permutation(len(names))[:16]]
    x, y = png_folders({name: cifar100_classes()[name][:60] for name in chosen})
    return by_class(x, y, 4, rng)


SUPERCLASSES = {
    "flower": ("orchid", "poppy", "rose"),
    "household furniture": ("bed", "chair", "wardrobe"),
    "large carnivore": ("bear", "leopard", "wolf"),
    "vehicle": ("bus", "pickup_truck", "train"),
}


@stream("cifar100-kinds", "final", SHARED_CLASSES, "PNG folders of CIFAR-100, 4 superclasses, 3 tasks")
def cifar100_kinds(rng: np.random.Generator) -> list[Task]:
    orders = {kind: rng.permutation(len(names)) for kind, names in SUPERCLASSES.items()}
    tasks = []
    for k in range(3):
        images = {kind: cifar100_classes()[names[orders[kind][k]]][:60] for kind, names in SUPERCLASSES.items()}
        tasks.append(split(f"kind {k}", *png_folders(images), rng))
    return tasks
