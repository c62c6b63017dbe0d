"""Features of CLINC150's and Banking77's queries from WordLlama 0.4 (Miller, 2024), which stays as it is.

python benches/streaming/text_features.py --data FOLDER --out DIR

FOLDER has clinc150/data_full.json, clinc150/domains.json, banking77/train.csv and banking77/test.csv. WordLlama's
weights (MIT) lie in its wheel: nothing is fetched. A query's 768 features are two pooled ones, of length 1 and
`--token-weight`: the mean of its tokens' 256-dimensional embeddings, and that of 512 random Fourier features of each
token's embedding, which tell rare words apart where the plain mean blurs them. Width and weight were chosen on
CLINC150's validation queries and a fifth of Banking77's training queries; `--token-weight 0` leaves the mean alone.

DIR/clinc150.npz holds {train,val,test,oos_val,oos_test}_features, {train,val,test}_labels, `classes` and `domains` (the
domain of each class, by number); DIR/banking77.npz holds the same of train and test, without domains.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

WEIGHTS = "weights/l2_supercat_256.safetensors"
WEIGHTS_SHA256 = "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5"
TOKEN_FEATURES = 512
Embed = Callable[[list[str]], np.ndarray]


def load_model(width: float, weight: float) -> Embed:
    """Features of queries by WordLlama, from its package folder. Its weights are checked."""
    import wordllama

    folder = Path(wordllama.__file__).parent
    digest = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    if digest != WEIGHTS_SHA256:
        raise SystemExit(f"{folder / WEIGHTS} is not the published file: its sha256 is {digest}, not {WEIGHTS_SHA256}")
    model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
    table = token_features(np.asarray(model.embedding, np.float32), width)

    def embed(queries: list[str]) -> np.ndarray:
        tokens = model.tokenizer.encode_batch(queries, add_special_tokens=False)
        kept = [[token for token, mask in zip(each.ids, each.attention_mask, strict=True) if mask] for each in tokens]
        pooled = np.stack([table[each].mean(0) for each in kept])
        return np.concatenate([unit_length(model.embed(queries)), weight * unit_length(pooled)], 1)

    return embed


def token_features(embeddings: np.ndarray, width: float) -> np.ndarray:
    """Random Fourier features of every token's embedding, divided by its length: they depend on a seed alone."""
    random = np.random.default_rng(0)
    frequencies = random.standard_normal((embeddings.shape[1], TOKEN_FEATURES)).astype(np.float32)
    phases = (2.0 * np.pi * random.random(TOKEN_FEATURES)).astype(np.float32)
    return np.cos(unit_length(embeddings) @ (frequencies / width) + phases)


def unit_length(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def read_clinc(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Queries and their classes, for each part; those out of scope have the class "oos"."""
    content = json.loads((folder / "data_full.json").read_text(encoding="utf-8"))
    return {part: [(query, label) for query, label in content[part]] for part in PARTS["clinc150"]}


def read_banking(folder: Path) -> dict[str, list[tuple[str, str]]]:
    parts = {}
    for part in PARTS["banking77"]:
        with (folder / f"{part}.csv").open(encoding="utf-8", newline="") as file:
            parts[part] = [(row["text"], row["category"]) for row in csv.DictReader(file)]
    return parts


PARTS = {"clinc150": ("train", "val", "test", "oos_train", "oos_val", "oos_test"), "banking77": ("train", "test")}
READERS = {"clinc150": read_clinc, "banking77": read_banking}


def make(embed: Embed, parts: dict[str, list[tuple[str, str]]]) -> dict[str, np.ndarray]:
    """Features and labels of each part. Classes are numbered in alphabetical order."""
    classes = sorted({label for _, label in parts["train"]})
    number = {label: place for place, label in enumerate(classes)}
    arrays: dict[str, np.ndarray] = {"classes": np.array(classes)}
    for part, pairs in parts.items():
        features = embed([query for query, _ in pairs])
        if not np.isfinite(features).all():
            raise SystemExit(f"some features of {part} are not finite")
        arrays[f"{part}_features"] = features.astype(np.float16)
        if not part.startswith("oos"):
            arrays[f"{part}_labels"] = np.array([number[label] for _, label in pairs], np.int64)
    return arrays


def domain_numbers(path: Path, classes: Sequence[str]) -> np.ndarray:
    domains = json.loads(path.read_text(encoding="utf-8"))
    numbers = {label: number for number, labels in enumerate(domains.values()) for label in labels}
    return np.array([numbers[label] for label in classes], np.int64)


def save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Written whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.part")
    with draft.open("wb") as file:
        np.savez(file, **arrays)
    draft.replace(path)
    print(f"{path}: " + ", ".join(f"{name} {array.shape}" for name, array in arrays.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--token-width", type=float, default=0.5)
    parser.add_argument("--token-weight", type=float, default=0.7)
    arguments = parser.parse_args()
    embed = load_model(arguments.token_width, arguments.token_weight)
    for name, read in READERS.items():
        arrays = make(embed, read(arguments.data / name))
        if name == "clinc150":
            arrays["domains"] = domain_numbers(arguments.data / name / "domains.json", arrays["classes"].tolist())
        save(arguments.out / f"{name}.npz", arrays)


if __name__ == "__main__":
    main()
