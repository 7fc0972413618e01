# %% [markdown]
"""
# Spot machines: ranks that are taken away

Machines at a low price may be taken away at any time. Here one of two ranks is killed in the third
epoch. The other one goes back to the last commit and trains on alone; meanwhile the launcher starts
a new process, which joins. Every image counts once in each epoch, whatever happens.
"""

# %%
import os
import signal
import time

import keras
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import ringar

EPOCHS = 30


def load() -> tuple[np.ndarray, np.ndarray]:
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    return (digits.images[order, ..., None] / 16).astype("float32"), digits.target[order]


# %% [markdown]
"""
A callback plays the owner of the machines, and another one notes the number of ranks.
"""


# %%
class Owner(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        if epoch == 2 and ringar.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


class Notes(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[float, int, float]] = []

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self.rows.append((time.time(), ringar.size(), (logs or {})["accuracy"]))


# %% [markdown]
"""
Two things differ from a job that is not elastic: the arrays are in a `ringar.elastic.Dataset`, and
`Elastic` commits.
"""


# %%
def train() -> tuple[list[tuple[float, int, float]], float]:
    ringar.init()
    ringar.set_random_seed(1)
    images, labels = load()
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        ringar.DistributedOptimizer(keras.optimizers.Adam(1e-3)),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    data = ringar.elastic.Dataset((images[:1437], labels[:1437]), batch_size=16, shuffle=True)
    notes = Notes()
    callbacks = [ringar.callbacks.Distributed(), ringar.callbacks.Elastic(every=10)]
    model.fit(data, epochs=EPOCHS, callbacks=[*callbacks, Owner(), notes], verbose=0)
    _, accuracy = model.evaluate(images[1437:], labels[1437:], verbose=0)
    return notes.rows, accuracy


# %% [markdown]
"""
`min_np` is the number of ranks that the job needs to go on.
"""

# %%
rows, accuracy = ringar.run(train, np=2, min_np=1)[0]
times, ranks, accuracies = (np.array(column) for column in zip(*rows, strict=True))
print(f"epochs with two ranks, then with one: {np.argmin(ranks)}, {np.sum(ranks == 1)}")
print(f"accuracy on new images: {accuracy:.1%}")
assert ranks.min() == 1
assert len(rows) == EPOCHS
assert accuracy > 0.95

# %%
figure, (top, bottom) = plt.subplots(
    2, sharex=True, figsize=(6.5, 3.6), height_ratios=[1, 2], layout="constrained"
)
top.step(times - times[0], ranks, where="mid", color="tab:red")
top.set(title="A rank is lost, and a new one joins", ylabel="ranks", yticks=[0, 1, 2])
bottom.plot(times - times[0], 100 * accuracies, ".-")
bottom.set(xlabel="time since the end of the first epoch (s)", ylabel="training accuracy (%)")
figure.savefig("spot.png")

# %% [markdown] tags=["output"]
"""
## Output

```text
epochs with two ranks, then with one: 2, 7
accuracy on new images: 99.4%
```

![What the example draws](../pictures/gallery/spot.png)
"""
