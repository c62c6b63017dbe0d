"""
Texts that meet new topics
==========================

A scikit-learn classifier for short texts learns the topics of one subject after another. The sentences are made on the
spot and embedded by TF-IDF and a truncated SVD; embeddings of a language model are used in the same way.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

import kcl

TOPICS = {
    "kitchen": {
        "baking": "dough oven flour yeast crust bread cake butter sugar rise",
        "grilling": "grill charcoal smoke steak skewer marinade flame ribs tongs char",
        "brewing": "coffee beans grind espresso filter roast cup aroma milk foam",
    },
    "sports": {
        "tennis": "racket serve net court volley set match point backhand ace",
        "sailing": "sail wind mast harbour tack boat rope wave anchor helm",
    },
    "finance": {
        "taxes": "tax income return deduction form deadline refund authority receipt rate",
        "loans": "loan interest bank mortgage credit payment principal term lender debt",
        "shares": "share market dividend stock index broker trade yield price portfolio",
    },
}
COMMON = "the a and with for this that many often new good day people work"


def sentences(words: str, count: int, random: np.random.Generator) -> list[str]:
    """A few words of the topic among many that every topic has."""
    own = words.split()
    return [" ".join([*random.choice(own, 2), *random.choice(COMMON.split(), 8)]) for _ in range(count)]


torch.set_num_threads(1)  # the products are small: more threads would wait for each other
random = np.random.default_rng(0)
train, test = (
    {
        subject: (
            [text for words in topics.values() for text in sentences(words, count, random)],
            np.repeat(list(topics), count),
        )
        for subject, topics in TOPICS.items()
    }
    for count in (60, 30)
)
everything = [text for texts, _ in train.values() for text in texts]
embed = make_pipeline(TfidfVectorizer(), TruncatedSVD(40, random_state=0)).fit(everything)

# %%
# One subject after another; `normalise="l2"`, because the direction of an embedding is what counts.

model = kcl.KernelContinualClassifier(normalise="l2", random_state=0)
for subject, (texts, topics) in train.items():
    model.partial_fit(embed.transform(texts), topics, task=subject)
    print(f"learned {subject}: knows {len(model.classes_)} topics")

# %%
# Is the topic right if the subject is named, and if it is not?

shares = {"subject named": [], "subject not named": [], "subject found": []}
for subject, (texts, topics) in test.items():
    inputs = embed.transform(texts)
    shares["subject named"].append(100 * model.score(inputs, topics, task=subject))
    shares["subject not named"].append(100 * model.score(inputs, topics))
    shares["subject found"].append(100 * (model.predict_task(inputs) == subject).mean())

figure, axes = plt.subplots(figsize=(6, 3))
for place, (name, values) in enumerate(shares.items()):
    axes.bar(np.arange(len(TOPICS)) + 0.25 * (place - 1), values, width=0.25, label=name)
    print(f"{name}: " + ", ".join(f"{value:.1f} %" for value in values))
axes.set(xticks=range(len(TOPICS)), xticklabels=TOPICS, ylabel="% right", ylim=(0, 135))
axes.legend(fontsize=8, ncols=3, loc="upper center")
figure.tight_layout()
plt.show()

# %%
# A new topic of an old subject, at any time:

more = sentences("goal pitch penalty keeper league striker referee corner whistle pass", 60, random)
model.partial_fit(embed.transform(more), ["football"] * 60, task="sports")
print("sports now:", ", ".join(model.model_.tasks["sports"].labels))
