# %% [markdown]
"""
# Embeddings: word vectors with Hogwild!

Skip-gram (word2vec) gives each word a vector, such that words of like surroundings have like
vectors. A step changes a few rows of a table, so ranks need not wait for each other: with
`ringar.Hogwild` they all write into one table, in memory that they share, without locks.
"""

# %%
import re
from pydoc_data.topics import topics

import keras
import matplotlib.pyplot as plt
import numpy as np
from keras import layers

import ringar

# %% [markdown]
"""
The text is the reference manual that comes with Python. A pair is a word and one of the four around
it, or, for half of the pairs, any word of the text. The model tells which.
"""

# %%
text = re.findall("[a-z_]+", " ".join(topics.values()).lower())
names, counts = np.unique(text, return_counts=True)
frequent = np.argsort(-counts, kind="stable")[30:1030]  # the 30 first are "the", "of", …
rows = {str(name): row for row, name in enumerate(names[frequent])}
words = np.array([rows[word] for word in text if word in rows], "int32")


def pairs(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    after = np.concatenate([np.stack([words[:-n], words[n:]], 1) for n in (1, 2)])
    neighbours = np.concatenate([after, after[:, ::-1]])
    strangers = np.stack([neighbours[:, 0], rng.permutation(neighbours[:, 1])], 1)
    labels = np.repeat(np.array([1, 0], "float32"), len(neighbours))
    order = rng.permutation(2 * len(neighbours))
    return np.concatenate([neighbours, strangers])[order], labels[order, None]


# %% [markdown]
"""
The loss is a sum and no mean, so that a pair moves its vectors as much in a batch of 64 as alone.
"""


# %%
def train() -> tuple[list[float], np.ndarray]:
    ringar.init()
    ringar.set_random_seed(1)
    pair = keras.Input((2,), dtype="int32")
    vectors = ringar.layers.HogwildEmbedding(len(rows), 32, name="vectors")(pair[:, 0])
    contexts = ringar.layers.HogwildEmbedding(len(rows), 32)(pair[:, 1])
    model = keras.Model(pair, layers.Activation("sigmoid")(layers.Dot(1)([vectors, contexts])))
    model.compile(
        ringar.Hogwild(keras.optimizers.SGD(0.15)),
        keras.losses.BinaryCrossentropy(reduction="sum"),
        metrics=["accuracy"],
    )
    history = model.fit(
        *ringar.data.shard(pairs(seed=0)),
        batch_size=64,
        epochs=4,
        callbacks=[ringar.callbacks.Distributed()],
        verbose=0,
    )
    return history.history["accuracy"], model.get_layer("vectors").get_weights()[0]


# %% [markdown]
"""
Two runs differ a little, for the order in which ranks write is not fixed.
"""

# %%
accuracies, vectors = ringar.run(train, np=2)[0]
for epoch, accuracy in enumerate(accuracies, 1):
    print(f"epoch {epoch}: tells {accuracy:.1%} of pairs from pairs by chance")
assert accuracies[-1] > 0.68

# %% [markdown]
"""
The picture has some words' vectors on their two principal axes. Words of one kind lie together.
"""

# %%
groups = {
    "types": ["int", "float", "str", "bytes", "tuple", "list", "dict"],
    "statements": ["return", "yield", "raise", "break", "continue", "import"],
    "numerals": ["one", "two", "three"],
    "places in an order": ["first", "second", "last"],
}
chosen = [name for group in groups.values() for name in group if name in rows]
matrix = vectors[[rows[name] for name in chosen]]
matrix = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
matrix = matrix - matrix.mean(0)
places = dict(zip(chosen, matrix @ np.linalg.svd(matrix)[2][:2].T, strict=True))
figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
for group, members in groups.items():
    points = np.array([places[name] for name in members if name in places])
    axes.scatter(*points.T, label=group)
    for name in members:
        if name in places:
            axes.annotate(name, places[name], xytext=(4, 3), textcoords="offset points")
axes.set(title="Word vectors of two ranks", xlabel="first axis", ylabel="second axis")
axes.margins(0.1)
axes.legend()
figure.savefig("embeddings.png")

# %% [markdown] tags=["output"]
"""
## Output

```text
epoch 1: tells 58.8% of pairs from pairs by chance
epoch 2: tells 66.5% of pairs from pairs by chance
epoch 3: tells 69.7% of pairs from pairs by chance
epoch 4: tells 70.7% of pairs from pairs by chance
```

![What the example draws](../pictures/gallery/embeddings.png)
"""
