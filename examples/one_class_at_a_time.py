"""
One class at a time
===================

The hardest order: classes come one by one, and every query may belong to any of them. A streaming head learns each
class exactly; a linear classifier that takes gradient steps knows the last one only.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

import kcl

x, y = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(y))
x, y = x[order], y[order]
train, test = np.arange(1200), np.arange(1200, len(y))

models = {"kcl.ContinualModel": kcl.ContinualModel(), "SGDClassifier": SGDClassifier(random_state=0)}
accuracies = {name: [] for name in models}
for digit in range(10):
    rows = train[y[train] == digit]
    models["kcl.ContinualModel"].learn(x[rows], y[rows], task=f"digit {digit}")
    models["SGDClassifier"].partial_fit(x[rows] / 16, y[rows], classes=range(10))
    asked = test[y[test] <= digit]  # of all classes learned so far
    exact = models["kcl.ContinualModel"].accuracy(x[asked], y[asked])
    linear = 100 * models["SGDClassifier"].score(x[asked] / 16, y[asked])
    for name, accuracy in zip(models, (exact, linear), strict=True):
        accuracies[name].append(accuracy)

figure, axes = plt.subplots(figsize=(6, 3))
for name, values in accuracies.items():
    axes.plot(range(1, 11), values, marker="o", label=name)
    print(f"{name}: {values[-1]:.1f} % right, of ten classes")
axes.set(xlabel="classes learned", ylabel="% right", ylim=(0, 103), xticks=range(1, 11))
axes.legend()
figure.tight_layout()
plt.show()
