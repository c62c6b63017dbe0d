"""How many random bases? Average accuracy against the number of random Fourier features, on all four benchmarks."""

from kcl.paper.cell import CIFAR100, MINIIMAGENET, PERMUTED, ROTATED
from kcl.paper.sweeps import Sweep


class Bases(Sweep):
    name = "bases"
    place = "Figure 6 and its supplement for miniImageNet"
    title = "How many random bases?"
    note = "The paper draws this figure and prints no numbers; it says only that 256 bases do well already."
    setting, axis = "bases", "random Fourier features D"
    values = dict.fromkeys((PERMUTED, ROTATED, CIFAR100, MINIIMAGENET), (256, 512, 1024, 2048))
    reference = "1024"
