"""Networks that only compute: a torch module, or an ONNX file. `identity` is a digest of all that the features depend
on.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kcl.core.opening import regular
from kcl.core.packages import load_package
from kcl.core.shapes import Float, Shaped
from kcl.errors import KclError
from kcl.nets.onnx_graph import trace
from kcl.ops.precision import TRIES_AT_TEST, products

EXTERNAL = re.compile(rb"\n\x08location\x12(.)", re.DOTALL)
"""Where an ONNX file names the file of a tensor: the field `key`, "location", and the length of the field `value`."""
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}


class FrozenModule:
    """A copy of a module, in eval mode. Full float32, so that a CPU and a GPU give the same features up to rounding."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = copy.deepcopy(module).eval().requires_grad_(False)
        self.identity = _identity(self.module)
        self.module.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.device = device

    @torch.inference_mode()
    def __call__(self, x: Shaped[Tensor, "n ..."]) -> Any:
        memory_format = torch.channels_last if x.ndim == 4 else torch.contiguous_format
        with products("float32", TRIES_AT_TEST):
            return self.module(x.to(self.device).contiguous(memory_format=memory_format))


class OnnxNetwork:
    """A graph that ONNX Runtime runs. Tensors in other files beside it are part of its identity."""

    def __init__(self, path: Path, device: torch.device) -> None:
        try:
            content = path.read_bytes() if path.is_file() else b""
            digests = [hashlib.sha256(content).digest()]
            for name in _external(content):
                with open(path.parent / name, "rb", opener=regular) as file:
                    digests.append(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise KclError(f"{error.filename} cannot be read: {error.strerror or error}") from None
        self.identity = hashlib.sha256(b"".join(digests)).digest()
        self._open(str(path), str(path), device)

    @classmethod
    def of_module(cls, module: nn.Module, example: Tensor, device: torch.device) -> OnnxNetwork:
        """What a module computes, traced with such inputs."""
        network = cls.__new__(cls)
        network._open(trace(module, (example,)).SerializeToString(), "the traced module", device)
        return network

    def _open(self, source: str | bytes, name: str, device: torch.device) -> None:
        runtime = load_package("onnxruntime", "onnx", f"{name} needs onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 4
        gpu = device.type == "cuda" and "CUDAExecutionProvider" in runtime.get_available_providers()
        providers = [("CUDAExecutionProvider", {"device_id": device.index or 0})] if gpu else []
        try:
            self.session = runtime.InferenceSession(source, options, providers=[*providers, "CPUExecutionProvider"])
        # ONNX Runtime has a class of its own for each kind of failure, without a common one.
        except Exception as error:
            raise KclError(
                f"{name} is not an ONNX network that can be run: {' '.join(str(error).split())[:200]}"
            ) from None
        inputs = self.session.get_inputs()
        if len(inputs) != 1 or inputs[0].type not in TYPES:
            given = ", ".join(f"{each.name} ({each.type})" for each in inputs)
            raise KclError(f"{name} takes {given}; expected one input of floating-point numbers")
        self.name, self.input, self.dtype = name, inputs[0], TYPES[inputs[0].type]
        self.output = self.session.get_outputs()[0].name

    def __call__(self, x: Shaped[Tensor, "n ..."]) -> Float[Tensor, "n ..."]:
        rows, *shape = self.input.shape or [None, *x.shape[1:]]
        unlike = [
            side for side, given in zip(shape, x.shape[1:], strict=False) if isinstance(side, int) and side != given
        ]
        if len(shape) != x.ndim - 1 or unlike:
            raise KclError(f"{self.name} takes inputs of shape {shape}, not {list(x.shape[1:])}")
        array = x.cpu().numpy().astype(self.dtype)
        size = rows if isinstance(rows, int) else len(array)
        padded = np.concatenate([array, np.zeros((-len(array) % size, *array.shape[1:]), self.dtype)])
        portions = [padded[start : start + size] for start in range(0, len(array), size)]
        outputs = [self.session.run([self.output], {self.input.name: portion})[0] for portion in portions]
        return torch.from_numpy(np.concatenate(outputs)[: len(array)])


def _external(content: bytes) -> list[str]:
    """The files beside it that hold tensors of an ONNX file."""
    places = [(found.end(), found[1][0]) for found in EXTERNAL.finditer(content)]
    names = {content[start : start + length].decode(errors="replace") for start, length in places}
    if outside := [name for name in names if "\0" in name or Path(name).is_absolute() or ".." in Path(name).parts]:
        raise KclError(f"the ONNX file has weights in {outside[0]!r}; expected a file beside it")
    return sorted(names)


def _identity(module: nn.Module) -> bytes:
    """A digest of a module's tensors, of its structure and of the code of its classes, but for PyTorch's own."""
    digest = hashlib.sha256()
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + content.tobytes())
    usual = set(vars(nn.Module()))
    for name, part in module.named_modules():
        attributes = {key: value for key, value in sorted(vars(part).items()) if key not in usual}
        text = f"{name} {type(part).__qualname__} {part.extra_repr()} {attributes} {_code(type(part))}"
        digest.update(re.sub(r" at 0x[0-9a-f]+", "", text).encode())
    return digest.digest()


def _code(kind: type) -> str:
    if kind.__module__.startswith("torch."):
        return ""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # typed in by hand
        code = getattr(getattr(kind, "forward", None), "__code__", None)
        return "" if code is None else f"{code.co_code!r} {code.co_consts} {code.co_names}"
