"""Digits that turn a little further every week: one model keeps learning and answers for every week so far.

Needs scikit-learn for its digits. Run it: python examples/rotating_digits.py
"""

import tempfile
from pathlib import Path

import torch

import kcl

WEEKS = 4


def main() -> None:
    torch.set_num_threads(1)  # the products are small: more threads would wait for each other
    stream = kcl.RotatedDigits(tasks=WEEKS)  # the same digits, turned by about ten degrees more in every task
    model = kcl.ContinualModel(backbone="mlp", width=128, bases=256, dropout=0.1, lr_decay=0.95, held_out_share=0.1)
    weeks = {f"week {week.index}": week for week in stream}
    for name, week in weeks.items():
        turned = week.view.move(week.train.inputs[week.train.rows])
        model.learn(turned, week.train.labels, task=name)

    print("week     named %  unnamed %  the surer half %")
    for name, week in weeks.items():
        turned = week.view.move(week.test.inputs[week.test.rows])
        wanted = week.test.labels.numpy()
        named, unnamed = model.predict(turned, task=name), model.predict(turned)  # unnamed: the model finds the week
        half = sorted(named.confidence)[len(wanted) // 2]
        sure = model.predict(turned, task=name, abstain_below=half)
        answered = sure.label != None  # noqa: E711 - one comparison for each sample
        scores = [(found.label == wanted).mean() for found in (named, unnamed)]
        scores.append((sure.label[answered] == wanted[answered]).mean())
        print(f"{name:8} {100 * scores[0]:7.1f}  {100 * scores[1]:9.1f}  {100 * scores[2]:16.1f}")

    with tempfile.TemporaryDirectory() as folder:
        kept = kcl.save_model(model, Path(folder) / "digits")
        same = kcl.load_model(kept)
        print("the same after saving and loading:", bool((same.predict(turned).label == unnamed.label).all()))


if __name__ == "__main__":
    main()
