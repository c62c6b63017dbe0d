"""Files cut, flipped, blown up and lied in: every reader gives data or one sentence, soon, in little memory, and
nothing is ever run.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import importlib.util
import io
import json
import os
import pickle
import random
import resource
import struct
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch

from kcl.benchmarks.moved_pixels import PermutedPixels
from kcl.cli import answer_commands
from kcl.core import results
from kcl.core.devices import Compute
from kcl.core.settings import Settings
from kcl.data import mapped_images, mnist, pickles, user_data
from kcl.data.dataset import Dataset
from kcl.errors import KclError, KclWarning
from kcl.experiments import resuming
from kcl.experiments.run_folder import Folder
from kcl.experiments.run_spec import key_of
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.recipes import METHODS, published_backbone
from kcl.models import model_folder
from kcl.models.continual_model import ContinualModel
from kcl.training import checkpoint
from kcl.training.checkpointer import Checkpointer, Every
from kcl.training.stack import RunStack
from kcl.training.stopping import Interrupted, Stop
from kcl.training.stream_run import run_streams

SECONDS, MEMORY = 5.0, 2**30
# What a reader may do: open files to read them, look at folders. Everything else Python tells of would be seen.
FORBIDDEN = ("exec", "compile", "import", "os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen",
             "pickle.find_class", "socket.connect", "ctypes.dlopen", "shutil.", "os.remove", "os.rename")  # fmt: skip
LIES = [2**60, 2**63 - 1, 2**64 - 1, 2**32 - 1, 2**31, 0, 1, 255]


class Format(NamedTuple):
    """A kind of file: a whole one, and what kcl does with one."""

    whole: bytes
    name: str
    read: Callable[[Path], Any]
    sign: Callable[[bytes], bytes] = lambda content: content
    """Makes the digest right again, as one who means harm would, or packs what was changed."""
    allowed: tuple[str, ...] = ()
    """Events that would be forbidden, and are harmless here."""


class Found(NamedTuple):
    mutations: int
    refused: int
    slowest_seconds: float


def mutate(whole: bytes, randomness: random.Random) -> bytes:
    """One to three changes of the kinds that disks, networks and bad people make."""
    content = bytearray(whole)
    while content == whole:
        _change(content, randomness)
    for _ in range(randomness.randint(0, 2)):
        _change(content, randomness)
    return bytes(content) if content != whole else mutate(whole, randomness)


def _change(content: bytearray, randomness: random.Random) -> None:
    size = len(content)
    place = randomness.randrange(size) if size else 0
    if randomness.random() < 0.5:  # headers are where it hurts
        place = min(place, randomness.randrange(200))
    kind = randomness.randrange(9)
    if kind == 0 and size:
        content[place % size] ^= 1 << randomness.randrange(8)
    elif kind == 1:
        del content[place:]
    elif kind == 2:
        content[place:place] = randomness.randbytes(randomness.choice([1, 8, 1000]))
    elif kind == 3:
        lie = randomness.choice(LIES)
        kind_of = randomness.choice(["<Q", ">I", "<I", ">Q"])
        length = struct.calcsize(kind_of)
        content[place : place + length] = struct.pack(kind_of, lie & (2 ** (8 * length) - 1))
    elif kind == 4:
        del content[place : place + randomness.choice([1, 4, 100])]
    elif kind == 5:
        end = place + randomness.choice([1, 16, 500])
        content[place:place] = content[place:end] * randomness.choice([1, 50])
    elif kind == 6:
        number = str(randomness.choice([*LIES, -1, 1e308])).encode()
        digits = [at for at in range(len(content)) if 48 <= content[at] <= 57][:2000]
        if digits:
            at = randomness.choice(digits)
            content[at : at + 1] = number
    elif kind == 7:
        for word in (b"null", b"true", b"[]", b"{}", b'"x"', b"NaN", b"[" * 5000):
            if randomness.random() < 0.15:
                content[place:place] = word
    else:
        content[place : place + 1] = randomness.choice([b"\x00", b"\xff", b"\n", b'"', b"}", b"/", b"\\"])


def torture(form: Format, count: int, seed: int = 0) -> Found:
    """Read `count` changed files in a process of its own with a limit on its memory; AssertionError on anything but
    data or one sentence.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        told = "it ended without a word"
        try:
            told = json.dumps(_torture(form, count, seed))
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, told.encode()[:60_000])
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    assert told.startswith("["), told or "the reading process was killed"
    return Found(*json.loads(told))


def _torture(form: Format, count: int, seed: int) -> Found:
    randomness, refused, slowest = random.Random(seed), 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / form.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(form.sign(form.whole))
        form.read(path)  # the whole file is read, and everything it needs is imported
        _limit_memory()
        with _watching(form.allowed) as seen:
            for number in range(count):
                path.write_bytes(form.sign(mutate(form.whole, randomness)))
                begun = time.process_time()  # what others do on this machine is not the reader's fault
                told = ""
                seen.clear()
                try:
                    form.read(path)
                except KclError as error:
                    refused += 1
                    told = str(error)
                except BaseException as error:
                    kept = Path(tempfile.gettempdir()) / f"mutation-{seed}-{number}-{path.name}"
                    kept.write_bytes(path.read_bytes())
                    raise AssertionError(f"{number}: {type(error).__name__}: {str(error)[:300]}; see {kept}") from error
                took = time.process_time() - begun
                assert "\n" not in told, f"{number}: more than one line: {told}"
                assert len(told) < 1000, f"{number}: a message of {len(told)} characters"
                assert took < SECONDS, f"{number}: took {took:.1f} s"
                assert not seen, f"{number}: it did {seen[:3]}"
                slowest = max(slowest, took)
        return Found(count, refused, slowest)


def _limit_memory() -> None:
    """No more than a gigabyte beyond what is there."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))


@contextlib.contextmanager
def _watching(allowed: tuple[str, ...]) -> Iterator[list[str]]:
    seen: list[str] = []
    on = [True]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        written = event == "open" and isinstance(arguments[1], str) and any(letter in arguments[1] for letter in "wax+")
        if on[0] and (written or (event.startswith(FORBIDDEN) and event not in allowed)):
            seen.append(f"{event} {str(arguments)[:200]}")

    sys.addaudithook(hook)
    try:
        yield seen
    finally:
        on[0] = False


# The formats


def formats() -> dict[str, Format]:
    made = {
        "checkpoint": _checkpoint(),
        "checkpoint, signed again": _checkpoint()._replace(sign=sign),
        "results.jsonl": _results(),
        "settings.json": _settings(),
        "MNIST file": _mnist(gzipped=False),
        "MNIST file, gzipped": _mnist(gzipped=True),
        "prepared images": _prepared(),
        "model.json": _model(model_folder.ABOUT),
        "a model's tensors": _model(model_folder.TENSORS),
        "a model's tensors, signed again": _model(model_folder.TENSORS, signed=True),
        "model.json, sums": _model(model_folder.ABOUT, head="streaming"),
        "sums of a model, signed again": _model(model_folder.TENSORS, signed=True, head="streaming"),
        "table.csv": _table("csv"),
        "arrays.npz": _arrays(inner=False),
        "arrays.npz, an array in it": _arrays(inner=True),
    }
    if importlib.util.find_spec("pyarrow") is not None:
        made["table.parquet"] = _table("parquet")
    for protocol in (2, 5):
        content = {
            "data": np.arange(3 * 3072, dtype=np.uint8).reshape(3, 3072),
            "fine_labels": [1, 2, 3],
            "filenames": ["a.png", "b.png", "c.png"],
            "batch_label": "training batch 1 of 1",
        }
        made[f"CIFAR pickle, protocol {protocol}"] = Format(pickle.dumps(content, protocol), "train", pickles.read)
    return made


def sign(content: bytes) -> bytes:
    """A checkpoint's digest made right, where there is still a place for one."""
    changed = bytearray(content)
    place = changed.find(b'"sha256":"') + 10
    if place < 10 or place + 64 > len(changed):
        return content
    changed[place : place + 64] = b"0" * 64
    changed[place : place + 64] = hashlib.sha256(changed).hexdigest().encode()
    return bytes(changed)


def _learner() -> tuple[RunStack, list[PermutedPixels]]:
    settings = KclSettings(bases=8, width=4, layers=1, coreset_size_per_class=2)
    images = torch.arange(60 * 4, dtype=torch.int64).remainder(251).to(torch.uint8).view(60, 1, 2, 2)
    labels = torch.arange(60) % 2
    stream = PermutedPixels(Dataset("made up", images, labels, images[:10], labels[:10], ("0", "1")), 3, 0)
    method = METHODS["kcl"](settings, 2, 6)
    return RunStack([method], [lambda: published_backbone((1, 2, 2), settings)], [0], plain=True), [stream]


def _checkpoint() -> Format:
    """A run in its second task; to read it is to stand where it stood."""
    stop, left = Stop(), [9]
    made_with = resuming.made_with(Compute(compiled=False))
    run = {"benchmark": "permuted-digits", "seed": 0, "settings": Settings().to_dict()}
    about = {"runs": [run], "made with": made_with, "command": "kcl run permuted-digits"}

    def watch(_: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            stop.signal = 15

    with tempfile.TemporaryDirectory() as folder:
        every = Every(seconds=1e9, thrifty=False)
        with contextlib.suppress(Interrupted):
            run_streams(*_learner(), watch, Checkpointer(Path(folder), about, every, stop))
        whole = sorted(Path(folder).iterdir())[-1].read_bytes()

    def read(path: Path) -> None:
        saved = checkpoint.read(path)
        group = resuming.unfinished_group(path.parent)
        assert group is not None
        resuming.check_made_with(group, made_with, False, lambda _: None)
        if key_of(run) not in group.keys:
            resuming.refuse_other(group, [run])
        stop = Stop()
        stop.signal = 15  # stop after one step
        checkpointer = Checkpointer(stop=stop)
        with contextlib.suppress(Interrupted):
            checkpointer.newest = lambda: saved  # type: ignore[method-assign]
            run_streams(*_learner(), checkpointer=checkpointer)

    return Format(whole, "checkpoints/group/00000001.safetensors", read)


def _model(name: str, signed: bool = False, head: str = "coreset") -> Format:
    """One of the two files of a model folder; to read it is to have it described, loaded, asked and taught.

    `signed`: as if `model.json` held the digest of whatever tensors there are.
    """
    coreset = {"bases": 8, "width": 4, "layers": 1, "coreset_size_per_class": 2, "epochs": 1, "backbone": "mlp"}
    small: dict[str, Any] = {"bases": 8} if head == "streaming" else coreset
    model = ContinualModel(0, head=head, standardise=True, **small)
    inputs, labels = torch.arange(24 * 4).remainder(17).float().view(24, 4), torch.arange(24) % 2
    model.learn(inputs, labels, "a task")
    model.learn(inputs + 1, labels, "another")
    if head == "streaming":
        model.reject_unknown(inputs + 0.5)
    with tempfile.TemporaryDirectory() as folder:
        saved = model_folder.save_model(model, Path(folder) / "model")
        whole = {path.name: path.read_bytes() for path in saved.iterdir()}

    def read(path: Path) -> None:
        for other, content in whole.items():
            if not (path.parent / other).exists():
                (path.parent / other).write_bytes(content)
        digest = mock.Mock(hexdigest=lambda: json.loads(whole[model_folder.ABOUT])["sha256"])
        with mock.patch.object(hashlib, "file_digest", return_value=digest) if signed else contextlib.nullcontext():
            with contextlib.redirect_stdout(io.StringIO()):
                answer_commands._inspect(argparse.Namespace(model=path.parent, json=False))
            loaded = model_folder.load_model(path.parent)
            loaded.predict(inputs[:3], "a task")
            answers = loaded.predict(inputs[:3])
            given = [label is not None for label in answers.label]
            assert np.isfinite(answers.confidence[given]).all(), "an answer whose confidence is not finite"
            loaded.learn(inputs[:8], labels[:8], "a task")

    return Format(whole[name], f"model/{name}", read)


def _table(kind: str) -> Format:
    """A table of numbers and labels; to read it is to teach a model with it."""
    columns: dict[str, list[Any]] = {"a": [row / 7 for row in range(30)], "b": [row % 5 for row in range(30)]}
    columns["label"] = [f"class {row % 3}" for row in range(30)]
    if kind == "csv":
        rows = zip(*columns.values(), strict=True)
        whole = "\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]).encode()
    else:
        import pyarrow.parquet

        buffer = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
        whole = buffer.getvalue()
    return Format(whole, f"table.{kind}", _taught)


def _arrays(inner: bool) -> Format:
    """An .npz file, or one with whole checksums in which an array was changed."""
    import tokenize  # noqa: F401 - NumPy's reader of headers imports it late

    x, y = io.BytesIO(), io.BytesIO()
    np.save(x, np.arange(30 * 4, dtype=np.float32).reshape(30, 4))
    np.save(y, np.arange(30) % 3)

    def packed(array: bytes) -> bytes:
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("x.npy", array)
            file.writestr("y.npy", y.getvalue())
        return archive.getvalue()

    plain = x.getvalue()
    allowed = ("compile",)  # headers are Python literals, which NumPy parses and does not run
    if inner:
        return Format(plain, "arrays.npz", _taught, packed, allowed)
    return Format(packed(plain), "arrays.npz", _taught, allowed=allowed)


def _taught(path: Path) -> None:
    samples = user_data.read(path, labelled=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KclWarning)
        model = ContinualModel(head="streaming", bases=8)
        model.learn(samples.inputs, samples.labels, "a task")
        model.predict(samples.inputs[:3])


def _results() -> Format:
    matrix = [[90.0, None], [80.0, 95.0]]
    record = {
        "format": 1, "benchmark": "permuted-digits", "method": "kcl", "kernel": "vrf", "seed": 0, "tasks": 2,
        "settings": KclSettings().to_dict(), "versions": {"kcl": "0.1.0"}, "device": "cpu", "seconds": 1.5,
        "accuracy_matrix": matrix, "initial_accuracy": None, "average_accuracy": 87.5, "forgetting": 0.1,
        "learning_accuracy": 92.5, "backward_transfer": -0.1, "forward_transfer": None, "diverged": False,
        "memory": {"samples": 4, "bytes": 400}, "command": "kcl run",
    }  # fmt: skip
    line = json.dumps(record).encode() + b"\n"

    def read(path: Path) -> None:
        results.read(path)
        Folder.reload(_Unmade(path))  # type: ignore[arg-type]

    return Format(line * 3, "results.jsonl", read)


class _Unmade:
    """As much of a folder as reading its results needs: to make one would write to it."""

    def __init__(self, path: Path) -> None:
        self.results, self.say, self.finished = path, lambda _: None, {}


def _settings() -> Format:
    runs = [{"benchmark": "permuted-digits", "seed": seed, "settings": KclSettings().to_dict()} for seed in range(2)]
    whole = json.dumps({"format": 1, "command": "kcl run", "runs": runs}, indent=2).encode()

    def read(path: Path) -> None:
        from kcl.experiments.run_folder import merged_settings

        merged_settings(path, runs, "another")

    return Format(whole, "settings.json", read)


def _mnist(gzipped: bool) -> Format:
    content = mnist.header((20, 5, 5)) + bytes(range(250)) * 2
    file = mnist.FILES[0]._replace(shape=(20, 5, 5), md5=hashlib.md5(content).hexdigest())
    whole, name = (gzip.compress(content, mtime=0), "a.gz") if gzipped else (content, "a-idx")
    return Format(whole, name, lambda path: mnist._read(file, path))


def _prepared() -> Format:
    images = np.arange(4 * 3 * 16, dtype=np.uint8).reshape(4, 3, 4, 4)
    image_set = mapped_images.ImageSet("made up", 4, ("a", "b"), (1, 1), (1, 1), [], lambda: [images])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.safetensors"
        mapped_images.write(path, image_set, "source")
        whole = path.read_bytes()

    def read(path: Path) -> None:
        dataset, _ = mapped_images.read(path)
        int(dataset.train_inputs.sum())
        mapped_images.verify(path)

    return Format(whole, "a.safetensors", read)
