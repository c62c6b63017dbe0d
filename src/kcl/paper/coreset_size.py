"""How much inference memory? Average accuracy against the coreset's size, on all four benchmarks."""

from kcl.paper.cell import CIFAR100, MINIIMAGENET, PERMUTED, ROTATED
from kcl.paper.sweeps import Sweep

SIZES = (1, 2, 5, 10, 20, 30, 40, 50)


class CoresetSize(Sweep):
    name = "coreset-size"
    place = "Figure 5 and its supplement for miniImageNet"
    title = "How much inference memory?"
    note = "The paper draws this figure and prints no numbers. Sizes are samples per class."
    setting, axis = "coreset_size_per_class", "coreset samples per class"
    values = dict.fromkeys((PERMUTED, ROTATED, CIFAR100, MINIIMAGENET), SIZES)
    reference = "20"
