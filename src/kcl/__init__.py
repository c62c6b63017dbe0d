"""Kernel continual learning: task after task, without forgetting and without replay (Derakhshani et al., ICML 2021)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kcl.benchmarks.arrays import ArrayStream
    from kcl.benchmarks.mnist import PermutedDigits, PermutedMNIST, RotatedDigits, RotatedMNIST
    from kcl.benchmarks.split import SplitCIFAR100, SplitClasses, SplitFolder, SplitMiniImageNet
    from kcl.benchmarks.task import Examples, Task, View
    from kcl.continual import ContinualModel
    from kcl.errors import KclError
    from kcl.estimator import KernelContinualClassifier
    from kcl.learner import KernelContinualLearner
    from kcl.model_folder import load_model, save_model
    from kcl.onnx_export import export_onnx
    from kcl.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "ArrayStream",
    "ContinualModel",
    "Examples",
    "KclError",
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
    "Task",
    "View",
    "__version__",
    "export_onnx",
    "load_model",
    "save_model",
]

# Looked up when asked for: the command line can then answer an interrupt while PyTorch is still being loaded.
_HOMES = {
    "ArrayStream": "kcl.benchmarks.arrays",
    "ContinualModel": "kcl.continual",
    "Examples": "kcl.benchmarks.task",
    "KclError": "kcl.errors",
    "KernelContinualClassifier": "kcl.estimator",
    "KernelContinualLearner": "kcl.learner",
    "PermutedDigits": "kcl.benchmarks.mnist",
    "PermutedMNIST": "kcl.benchmarks.mnist",
    "RotatedDigits": "kcl.benchmarks.mnist",
    "RotatedMNIST": "kcl.benchmarks.mnist",
    "Settings": "kcl.settings",
    "SplitCIFAR100": "kcl.benchmarks.split",
    "SplitClasses": "kcl.benchmarks.split",
    "SplitFolder": "kcl.benchmarks.split",
    "SplitMiniImageNet": "kcl.benchmarks.split",
    "Task": "kcl.benchmarks.task",
    "View": "kcl.benchmarks.task",
    "export_onnx": "kcl.onnx_export",
    "load_model": "kcl.model_folder",
    "save_model": "kcl.model_folder",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kcl' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
