"""Kernel continual learning: task after task, without forgetting and without replay (Derakhshani et al., ICML 2021)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kcl.benchmarks.array_stream import ArrayStream
    from kcl.benchmarks.moved_pixels import PermutedDigits, PermutedMNIST, RotatedDigits, RotatedMNIST
    from kcl.benchmarks.split import SplitCIFAR100, SplitClasses, SplitFolder, SplitMiniImageNet
    from kcl.benchmarks.task import Examples, Task, View
    from kcl.core.settings import Settings
    from kcl.errors import KclError, KclWarning
    from kcl.methods.kcl_settings import KclSettings
    from kcl.models.continual_model import ContinualModel
    from kcl.models.estimator import KernelContinualClassifier, StreamingKernelClassifier
    from kcl.models.kernel_learner import KernelContinualLearner
    from kcl.models.merging import merge
    from kcl.models.model_folder import load_model, save_model
    from kcl.models.onnx_export import export_onnx
    from kcl.models.posterior_frequencies import kernel_inputs, posterior_frequencies
    from kcl.models.regressor import StreamingKernelRegressor, StreamingMultilabelClassifier
    from kcl.nets.frozen import FrozenFeatures

__version__ = "0.1.0"

__all__ = [
    "ArrayStream",
    "ContinualModel",
    "Examples",
    "FrozenFeatures",
    "KclError",
    "KclSettings",
    "KclWarning",
    "KernelContinualClassifier",
    "KernelContinualLearner",
    "PermutedDigits",
    "PermutedMNIST",
    "RotatedDigits",
    "RotatedMNIST",
    "Settings",
    "SplitCIFAR100",
    "SplitClasses",
    "SplitFolder",
    "SplitMiniImageNet",
    "StreamingKernelClassifier",
    "StreamingKernelRegressor",
    "StreamingMultilabelClassifier",
    "Task",
    "View",
    "__version__",
    "export_onnx",
    "kernel_inputs",
    "load_model",
    "merge",
    "posterior_frequencies",
    "save_model",
]

# Looked up when asked for: the command line can then answer an interrupt while PyTorch is still being loaded.
_HOMES = {
    "ArrayStream": "kcl.benchmarks.array_stream",
    "ContinualModel": "kcl.models.continual_model",
    "Examples": "kcl.benchmarks.task",
    "FrozenFeatures": "kcl.nets.frozen",
    "KclError": "kcl.errors",
    "KclSettings": "kcl.methods.kcl_settings",
    "KclWarning": "kcl.errors",
    "KernelContinualClassifier": "kcl.models.estimator",
    "KernelContinualLearner": "kcl.models.kernel_learner",
    "PermutedDigits": "kcl.benchmarks.moved_pixels",
    "PermutedMNIST": "kcl.benchmarks.moved_pixels",
    "RotatedDigits": "kcl.benchmarks.moved_pixels",
    "RotatedMNIST": "kcl.benchmarks.moved_pixels",
    "Settings": "kcl.core.settings",
    "SplitCIFAR100": "kcl.benchmarks.split",
    "SplitClasses": "kcl.benchmarks.split",
    "SplitFolder": "kcl.benchmarks.split",
    "SplitMiniImageNet": "kcl.benchmarks.split",
    "StreamingKernelClassifier": "kcl.models.estimator",
    "StreamingKernelRegressor": "kcl.models.regressor",
    "StreamingMultilabelClassifier": "kcl.models.regressor",
    "Task": "kcl.benchmarks.task",
    "View": "kcl.benchmarks.task",
    "export_onnx": "kcl.models.onnx_export",
    "kernel_inputs": "kcl.models.posterior_frequencies",
    "load_model": "kcl.models.model_folder",
    "merge": "kcl.models.merging",
    "posterior_frequencies": "kcl.models.posterior_frequencies",
    "save_model": "kcl.models.model_folder",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kcl' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
