"""Kernel continual learning: task after task, without forgetting and without replay (Derakhshani et al., ICML 2021)."""

from kcl.benchmarks.arrays import ArrayStream
from kcl.benchmarks.mnist import PermutedDigits, PermutedMNIST, RotatedDigits, RotatedMNIST
from kcl.benchmarks.task import Examples, Task, View
from kcl.errors import KclError
from kcl.learner import KernelContinualLearner
from kcl.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "ArrayStream",
    "Examples",
    "KclError",
    "KernelContinualLearner",
    "PermutedDigits",
    "PermutedMNIST",
    "RotatedDigits",
    "RotatedMNIST",
    "Settings",
    "Task",
    "View",
    "__version__",
]
