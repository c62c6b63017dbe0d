"""
A curve, piece by piece
=======================

Kernel ridge regression onto numbers. Each lesson shows another part of a curve, never to be seen again; the model is
always the exact solution for all parts so far.
"""

import matplotlib.pyplot as plt
import numpy as np

import kcl

random = np.random.default_rng(0)
x = np.linspace(0.0, 12.0, 400)[:, None]
true = np.sin(x[:, 0]) + 0.4 * np.cos(2.3 * x[:, 0])
noisy = true + random.normal(0, 0.15, len(x))

model = kcl.StreamingKernelRegressor(width=1.0, normalise="none", random_state=0)
figure, axes = plt.subplots(1, 4, figsize=(8, 2.4), sharey=True)
for part, place in enumerate(axes):
    rows = slice(100 * part, 100 * part + 100)
    model.partial_fit(x[rows], noisy[rows])
    seen = slice(0, rows.stop)
    error = np.abs(model.predict(x[seen]) - true[seen]).mean()
    print(f"{part + 1} of 4 parts learned: mean error on them {error:.3f}")
    place.plot(x[rows, 0], noisy[rows], ".", color="lightgray")
    place.plot(x[:, 0], true, color="gray", linewidth=1)
    place.plot(x[:, 0], model.predict(x), color="C1")
    place.set(title=f"lesson {part + 1}", xlabel="x", ylim=(-2, 2))
figure.tight_layout()
plt.show()
