"""Features of a network that stays as it is: from images, texts or arrays, each computed once.

The features of an input are kept on disk under the digest of its content, in a folder for the digest of the network and
of how inputs are prepared for it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kcl.core.devices import choose_device
from kcl.core.opening import regular
from kcl.core.shapes import Float
from kcl.data import file_cache, image_files, user_data
from kcl.data.feature_cache import KEY_BYTES, FeatureCache
from kcl.data.file_cache import Say, quiet
from kcl.data.user_data import Samples
from kcl.errors import KclError
from kcl.nets.frozen_network import FrozenModule, OnnxNetwork
from kcl.nets.preparation import Preparation

FORMAT = "kcl features 1"
"""Changes if inputs are prepared in another way, so that features from before are not found."""
SAVE_SECONDS = 30.0
Array = np.ndarray
Inputs = Array | list[str] | list[Path]


class FrozenFeatures:
    """Features of a backbone that does not learn; `transform` computes those that are not known yet.

    With `size`, `mean` and `std` inputs are images; a module of timm knows these by itself. Otherwise a network gets
    arrays as they are, and a function parts of what `transform` is given, such as a list of texts. Feature maps are
    averaged over all places.

    Parameters
    ----------
    backbone : torch.nn.Module, path or function
        A module, which is copied (those of timm and torchvision are modules); the path of an ONNX file; or a function
        from a batch to one row of numbers for each item.
    size : int, optional
        Side of the square images that the network takes, in pixels.
    mean, std : sequence of float, optional
        Of each channel, for pixels in 0 … 1.
    crop : float
        Share of the side that is kept, in the middle.
    filter : "bicubic" or "bilinear"
        How images are resized.
    name : str
        Of a function, under which its features are kept on disk; change it with the function. Without one they are not.
    batch : int
        Inputs at once.
    device : str
        "auto" is a GPU if there is one.
    onnx : bool
        Run a module by ONNX Runtime, which on a CPU is often several times as fast.
    cache : bool or path
        The folder to keep features in; True is the user's cache (`kcl data list`, `kcl data clear`).
    progress : bool
        Show a bar on a terminal if it takes longer than a second.
    """

    def __init__(
        self,
        backbone: nn.Module | str | Path | Callable[[Any], Any],
        size: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        crop: float = 1.0,
        filter: str = "bicubic",
        *,
        name: str = "",
        batch: int = 64,
        device: str = "auto",
        onnx: bool = False,
        cache: bool | str | Path = True,
        progress: bool = True,
    ) -> None:
        if batch < 1:
            raise KclError(f"batch must be at least 1, not {batch}")
        self.batch, self.onnx, self.progress = batch, onnx, progress
        self.device = torch.device(choose_device(device) if device in ("auto", "cpu", "cuda") else device)
        self.preparation = _preparation(backbone, size, mean, std, crop, filter)
        self._network: FrozenModule | OnnxNetwork | None = None
        """None for a function."""
        if isinstance(backbone, nn.Module):
            self._network = FrozenModule(backbone, torch.device("cpu") if onnx else self.device)
        elif isinstance(backbone, (str, Path)):
            self._network = OnnxNetwork(Path(backbone).expanduser(), self.device)
        elif callable(backbone):
            self._function = backbone
        else:
            raise KclError(f"a backbone is a module, an ONNX file or a function, not {type(backbone).__name__}")
        about = name if self._network is None else self._network.identity.hex()
        self.identity = hashlib.sha256(f"{FORMAT} {about} {self.preparation}".encode()).hexdigest() if about else ""
        """Of the network and of how inputs are prepared for it; empty for a function without a name."""
        folder = file_cache.cache_dir() / "features" if cache is True else Path(cache or "")
        self.cache = FeatureCache(folder / self.identity[:32]) if cache and self.identity else None

    def transform(self, inputs: Any) -> Float[Array, "n d"]:
        """Features, one row for each of n inputs.

        Parameters
        ----------
        inputs : (n, …), list of str, list of Path, or path
            Arrays or tensors; texts; image files; or a folder with images at any depth, in the order of their names.
        """
        inputs = self._checked(inputs)
        keys = _keys(inputs)
        rows = {} if self.cache is None else self.cache.find(set(keys))
        missing = {key: place for place, key in enumerate(keys) if key not in rows}
        rows |= self._computed(inputs, missing) if missing else {}
        return np.stack([rows[key] for key in keys])

    def read(self, path: str | Path, labelled: bool = True, say: Say = quiet) -> Samples:
        """Features, labels and names of a folder of images by class, or of an .npz file with arrays of inputs."""
        path = Path(path).expanduser()
        inputs: Any
        if path.suffix.lower() == ".npz":
            inputs, labels, names, _ = user_data.read(path, labelled)
        else:
            inputs, labels, names = user_data.image_paths(path, labelled, say)
        features = self.transform(inputs)
        named = range(features.shape[1]) if self.identity else ()
        return Samples(features, labels, names, tuple(f"{self.identity[:12]} {column}" for column in named))

    def _checked(self, inputs: Any) -> Inputs:
        """Inputs as arrays, texts or paths, each of which the backbone can take."""
        bare = self.preparation is None and self._network is None
        if isinstance(inputs, (str, Path)):
            inputs = user_data.image_paths(Path(inputs).expanduser(), labelled=False)[0]
        elif isinstance(inputs, (list, tuple)) and inputs and isinstance(inputs[0], (str, Path)):
            inputs = list(inputs)
        elif isinstance(inputs, Tensor):
            inputs = inputs.detach().cpu().numpy()
        else:
            try:
                inputs = np.asarray(inputs)
            except ValueError as error:
                raise KclError(f"the inputs are not an array: {error}") from None
            inputs = inputs.tolist() if inputs.dtype.kind in "OU" else inputs
        if len(inputs) == 0:
            raise KclError("there are no inputs")
        if isinstance(inputs, list):
            of_files = self.preparation is not None and len(self.preparation.mean) == 3
            kind = Path if of_files else str
            if not (of_files or bare) or not all(isinstance(item, kind) for item in inputs):
                raise KclError(
                    "expected arrays; texts, for a function that embeds a list of them; or paths of image files, with "
                    "size and three channels of mean and std"
                )
        elif inputs.ndim < 2 or inputs.dtype.kind not in "biuf":
            raise KclError(f"inputs have shape {inputs.shape} and type {inputs.dtype}; expected rows of numbers")
        elif self.preparation is not None:
            self.preparation.check(inputs)
        elif not bare and inputs.dtype == np.uint8:
            raise KclError("these inputs are bytes: say by size, mean and std how images are prepared")
        return inputs

    def _computed(self, inputs: Inputs, missing: dict[bytes, int]) -> dict[bytes, Array]:
        """The rows of missing inputs, each at its place. What was computed is kept, whatever happens then."""
        rows, unsaved, saved = dict[bytes, Array](), dict[bytes, Array](), time.monotonic()
        with _bar(len(missing), self.progress) as advance:
            try:
                for part, features in self._batches(inputs, list(missing.items())):
                    rows |= (new := dict(zip(part, features, strict=True)))
                    unsaved |= new
                    advance(len(new))
                    if self.cache is not None and time.monotonic() - saved > SAVE_SECONDS:
                        self.cache.add(unsaved)
                        unsaved, saved = {}, time.monotonic()
            finally:
                if self.cache is not None and unsaved:
                    self.cache.add(unsaved)
        return rows

    def _batches(self, inputs: Inputs, missing: list[tuple[bytes, int]]) -> Iterator[tuple[list[bytes], Array]]:
        """Keys and features. A GPU computes while the images of the next batch are decoded."""
        waiting = None
        for start in range(0, len(missing), self.batch):
            keys, places = map(list, zip(*missing[start : start + self.batch], strict=True))
            batch = self._batch(inputs, places)
            if waiting is not None:
                yield waiting[0], _as_rows(waiting[1], len(waiting[0]))
            waiting = keys, self._passed(batch)
        if waiting is not None:
            yield waiting[0], _as_rows(waiting[1], len(waiting[0]))

    def _batch(self, inputs: Inputs, places: list[int]) -> Any:
        if isinstance(inputs, np.ndarray):
            return inputs[places]
        if self.preparation is None:
            return [inputs[place] for place in places]
        files = [Path(inputs[place]) for place in places]
        return np.concatenate(list(image_files.decode_all(files, self.preparation.side, self.preparation.filter)))

    def _passed(self, batch: Any) -> Any:
        if self.preparation is not None:
            batch = self.preparation(torch.from_numpy(batch).to(self.device))
        if self._network is None:
            return self._function(batch)
        x = torch.as_tensor(batch).float()
        if self.onnx and isinstance(self._network, FrozenModule):
            self._network = OnnxNetwork.of_module(self._network.module, x[:2].cpu(), self.device)
        try:
            return self._network(x)
        except (KclError, MemoryError, torch.OutOfMemoryError):
            raise
        # Whatever a network raises, it raises about what it was given.
        except Exception as error:
            raise KclError(f"the backbone does not take inputs of shape {tuple(x.shape[1:])}: {error}") from error


def _as_rows(output: Any, count: int) -> Float[Array, "n d"]:
    """What a backbone returned, as rows of finite numbers."""
    try:
        x = output if isinstance(output, Tensor) else torch.from_numpy(np.array(output, np.float32))
    except (TypeError, ValueError):
        raise KclError(f"the backbone returned {type(output).__name__}; expected one tensor: wrap it") from None
    if x.ndim not in (2, 4) or len(x) != count or 0 in x.shape:
        raise KclError(
            f"the backbone returned shape {tuple(x.shape)}; expected one row of features for each of {count}"
        )
    rows = (x.float().mean((2, 3)) if x.ndim == 4 else x.float()).cpu().numpy()
    if not np.isfinite(rows).all():
        raise KclError("the backbone returned features that are not finite")
    return rows


def _keys(inputs: Inputs) -> list[bytes]:
    """A digest of each input's content."""
    if isinstance(inputs, np.ndarray):
        kind = f"{inputs.dtype.str} {inputs.shape[1:]}"
        return [_key(kind, np.ascontiguousarray(row).data) for row in inputs]
    if isinstance(inputs[0], str):
        return [_key("text", str(text).encode(errors="surrogatepass")) for text in inputs]
    with ThreadPoolExecutor() as pool:
        return list(pool.map(_file_key, map(Path, inputs)))


def _file_key(path: Path) -> bytes:
    try:
        with open(path, "rb", opener=regular) as file:
            return _key("file", hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        raise KclError(f"{path} cannot be read: {error.strerror or error}") from None


def _key(kind: str, content: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(f"{kind}\0".encode())
    digest.update(content)
    return digest.digest()[:KEY_BYTES]


def _preparation(
    backbone: Any,
    size: int | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    crop: float,
    filter: str,
) -> Preparation | None:
    about = getattr(backbone, "pretrained_cfg", None)
    if size is not None and mean is not None and std is not None:
        return Preparation(size, tuple(map(float, mean)), tuple(map(float, std)), crop, filter)
    if (size, mean, std) != (None, None, None):
        raise KclError("size, mean and std prepare images: give all three")
    if not isinstance(about, dict):
        return None
    side = about["input_size"][-1]
    return Preparation(side, tuple(about["mean"]), tuple(about["std"]), about["crop_pct"], about["interpolation"])


@contextmanager
def _bar(total: int, shown: bool) -> Iterator[Callable[[int], Any]]:
    if not shown:
        yield lambda _: None
        return
    from tqdm import tqdm

    with tqdm(desc="features", total=total, unit=" inputs", leave=False, disable=None, delay=1.0) as bar:
        yield bar.update
