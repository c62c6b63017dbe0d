"""A text classifier that meets new topics: sentences made on the spot, embedded by TF-IDF and a truncated SVD.

Any embeddings will do in their place, such as those of a language model. Needs scikit-learn.
Run it: python examples/new_topics.py
"""

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
COMMON = ["the", "a", "and", "with", "for", "this", "that", "many", "often", "new", "good", "day", "people", "work"]


def sentences(words: str, count: int, random: np.random.Generator) -> list[str]:
    own = words.split()
    return [" ".join([*random.choice(own, 4), *random.choice(COMMON, 6)]) for _ in range(count)]


def main() -> None:
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

    model = kcl.KernelContinualClassifier(normalise="l2", random_state=0)
    for subject, (texts, topics) in train.items():
        model.partial_fit(embed.transform(texts), topics, task=subject)
        print(f"learned {subject}: knows {len(model.classes_)} topics")

    for subject, (texts, topics) in test.items():
        inputs = embed.transform(texts)
        named, free = model.score(inputs, topics, task=subject), model.score(inputs, topics)
        found = (model.predict_task(inputs) == subject).mean()
        print(f"{subject:8} topic right {100 * named:5.1f} %, without naming the subject {100 * free:5.1f} %, "
              f"subject found {100 * found:5.1f} %")  # fmt: skip

    more = sentences("goal pitch penalty keeper league striker referee corner whistle pass", 60, random)
    model.partial_fit(embed.transform(more), ["football"] * 60, task="sports")  # a new topic of an old subject
    print("sports now:", ", ".join(model.model_.tasks["sports"].labels))


if __name__ == "__main__":
    main()
