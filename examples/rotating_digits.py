"""
Digits that turn every week
===========================

The classes stay the same, the inputs change: a network with coresets learns digits that turn a little further every
week, and answers for every week so far, with and without being told which.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import kcl

torch.set_num_threads(1)  # the products are small: more threads would wait for each other
stream = kcl.RotatedDigits(tasks=4)  # the same digits, about ten degrees further in every task
model = kcl.ContinualModel(backbone="mlp", width=128, bases=256, dropout=0.1, lr_decay=0.95, held_out_share=0.1)
for week in stream:
    turned = week.view.move(week.train.inputs[week.train.rows])
    model.learn(turned, week.train.labels, task=f"week {week.index}")

# %%
# With the week named, without it, and with it for the half of the images that the model is surest of:

scores = {"week named": [], "week not named": [], "the surer half": []}
for name, week in zip(model.tasks, stream, strict=True):
    turned = week.view.move(week.test.inputs[week.test.rows])
    wanted = week.test.labels.numpy()
    named, unnamed = model.predict(turned, task=name), model.predict(turned)
    half = np.median(named.confidence)
    sure = model.predict(turned, task=name, abstain_below=half)
    answered = np.array([label is not None for label in sure.label])
    scores["week named"].append(100 * (named.label == wanted).mean())
    scores["week not named"].append(100 * (unnamed.label == wanted).mean())
    scores["the surer half"].append(100 * (sure.label[answered] == wanted[answered]).mean())
for name, values in scores.items():
    print(f"{name}: " + ", ".join(f"{value:.1f} %" for value in values))

# %%
# The first image of each week, and what the model makes of its week:

figure, axes = plt.subplots(2, 4, figsize=(7, 4), height_ratios=(1, 1.4), sharey="row")
for number, week in enumerate(stream):
    image = week.view.move(week.test.inputs[week.test.rows[:1]])
    axes[0, number].imshow(image.view(8, 8).numpy(), cmap="gray_r")
    axes[0, number].set_title(f"week {number}", fontsize=9)
    axes[0, number].axis("off")
    heights = [values[number] for values in scores.values()]
    axes[1, number].bar(range(3), heights, color=["C0", "C1", "C2"])
    axes[1, number].set_xticks(range(3), scores, rotation=60, ha="right", fontsize=8)
axes[1, 0].set(ylim=(50, 100), ylabel="% right")
figure.tight_layout()
plt.show()

# %%
# A saved model gives the same answers:

kept = kcl.save_model(model, Path(tempfile.mkdtemp()) / "digits")
same = kcl.load_model(kept)
equal = (same.predict(turned).label == unnamed.label).all()
print("the same after saving and loading:", bool(equal))
