"""
A lens that gets dirty
======================

A model in use cannot see that it is wrong, but it can tell that queries are no longer like those it knows. Digits are
read by a camera whose lens gets dirtier from day to day; `drift` raises an alarm, from the queries alone.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import kcl

random = np.random.default_rng(0)
x, y = load_digits(return_X_y=True)
order = random.permutation(len(y))
x, y = x[order], y[order]
train, fine, later = np.arange(700), np.arange(700, 1100), np.arange(1100, len(y))

model = kcl.ContinualModel()
model.learn(x[train], y[train], task="digits")
model.reject_unknown(x[fine], error_rate=0.02)  # known to be fine; they need no labels
drift = model.drift(window=50)

# %%
# Fourteen days of fifty digits each. The lens is clean on the first five.

days, known, right, alarms = range(14), [], [], []
for day in days:
    rows = random.choice(later, 50, replace=False)
    dirt = max(0, day - 4) * random.exponential(0.3, (50, 64))
    answers = model.predict(np.clip(x[rows] + dirt, 0, 16))
    if drift.update(answers.known):
        alarms.append(day)
    known.append(answers.known.mean())
    right.append(100 * (answers.label == y[rows]).mean())

figure, axes = plt.subplots(2, 1, figsize=(6, 4), sharex=True)
axes[0].plot(days, right, marker="o")
axes[0].set(ylabel="% right\n(nobody sees this)", ylim=(0, 103))
axes[1].plot(days, known, marker="o", color="C2")
axes[1].plot(alarms, [known[day] for day in alarms], "rs", label="alarm")
axes[1].set(xlabel="day", ylabel="how known\n(mean)", ylim=(0, 0.75))
axes[1].legend()
figure.tight_layout()
plt.show()
print("first alarm on day", alarms[0])
