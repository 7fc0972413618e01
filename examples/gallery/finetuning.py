# %% [markdown]
"""
# Fine-tuning: new classes, few images

A net that knows the digits 0 to 4 learns 5 to 9 from ten images of each. Its convolutions stay as
they are, only a new last layer learns. A net that begins anew has the same images, to compare with.
"""

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

import ringar

EPOCHS = 10


def load(classes: range) -> tuple[np.ndarray, np.ndarray]:
    """Return the images of these classes, which count from 0."""
    digits = load_digits()
    chosen = np.random.default_rng(0).permutation(np.flatnonzero(np.isin(digits.target, classes)))
    images = (digits.images[chosen, ..., None] / 16).astype("float32")
    return images, digits.target[chosen] - classes[0]


# %%
def features() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.Flatten(),
        ]
    )


def fit(model: keras.Model, data: tuple, test: tuple, epochs: int) -> list[float]:
    """Train the weights that are trainable, and return the accuracy in percent after each epoch."""
    optimizer = ringar.DistributedOptimizer(keras.optimizers.Adam(3e-3))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(
        *ringar.data.shard(data),
        batch_size=8,
        epochs=epochs,
        validation_data=ringar.data.shard(test),
        callbacks=[ringar.callbacks.Distributed()],
        verbose=0,
    )
    return [100 * accuracy for accuracy in history.history["val_accuracy"]]


# %% [markdown]
"""
The first `fit` trains the base, which is then frozen. `DistributedOptimizer` exchanges the
gradients of weights that are trainable: 20 KB in a step of the second `fit`, 96 KB in the third.
"""


# %%
def train() -> dict[str, list[float]]:
    ringar.init()
    ringar.set_random_seed(1)
    base = features()
    images, labels = load(range(5))
    data, test = (images[:800], labels[:800]), (images[800:], labels[800:])
    accuracies = fit(keras.Sequential([base, layers.Dense(5, "softmax")]), data, test, epochs=4)
    if ringar.rank() == 0:
        print(f"digits 0 to 4: {accuracies[-1]:.1f}% of new images")

    images, labels = load(range(5, 10))
    data, test = (images[:50], labels[:50]), (images[50:], labels[50:])
    base.trainable = False
    tuned = keras.Sequential([base, layers.Dense(5, "softmax")])
    anew = keras.Sequential([features(), layers.Dense(5, "softmax")])
    return {
        "fine-tuned": fit(tuned, data, test, EPOCHS),
        "from scratch": fit(anew, data, test, EPOCHS),
    }


# %% [markdown]
"""
With frozen convolutions the net needs fewer epochs. Later the other one catches up, for its
convolutions learn the new digits, too.
"""

# %%
accuracies = ringar.run(train, np=2)[0]
for name, values in accuracies.items():
    print(f"digits 5 to 9, {name}: {values[2]:.1f}% after 3 epochs, {values[-1]:.1f}% in the end")
assert accuracies["fine-tuned"][2] > accuracies["from scratch"][2]
assert accuracies["fine-tuned"][-1] > 85

# %%
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for name, values in accuracies.items():
    axes.plot(range(1, EPOCHS + 1), values, "o-", label=name, markersize=4)
axes.set(
    title="Five new digits from 50 images", xlabel="epoch", ylabel="accuracy on new images (%)"
)
axes.legend()
figure.savefig("finetuning.png")

# %% [markdown] tags=["output"]
"""
## Output

```text
[0] digits 0 to 4: 100.0% of new images
digits 5 to 9, fine-tuned: 86.3% after 3 epochs, 92.4% in the end
digits 5 to 9, from scratch: 59.1% after 3 epochs, 92.1% in the end
```

![What the example draws](../pictures/gallery/finetuning.png)
"""
