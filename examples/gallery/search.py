# %% [markdown]
"""
# Hyperparameters: Optuna, one trial per process set

A process set is some of the ranks of a job. Here each set trains one trial at a time, and the sets
work side by side; rank 0 holds Optuna's study. With `RANKS_PER_TRIAL = 2` and four ranks, two would
train each trial together, by the same code.
"""

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
import optuna
from sklearn.datasets import load_digits

import ringar

RANKS_PER_TRIAL, ROUNDS = 1, 6


def load() -> tuple[np.ndarray, np.ndarray]:
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    return (digits.data[order] / 16).astype("float32"), digits.target[order]


# %% [markdown]
"""
A trial gives its set to `shard`, `DistributedOptimizer` and `Distributed`.
"""


# %%
def accuracy_of(parameters: dict, ranks: ringar.ProcessSet) -> float:
    images, labels = load()
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(parameters["units"], activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    optimizer = keras.optimizers.SGD(parameters["rate"], momentum=0.9)
    model.compile(
        ringar.DistributedOptimizer(optimizer, process_set=ranks),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    history = model.fit(
        *ringar.data.shard((images[:1000], labels[:1000]), process_set=ranks),
        batch_size=32,
        epochs=6,
        validation_data=ringar.data.shard((images[1000:], labels[1000:]), process_set=ranks),
        callbacks=[ringar.callbacks.Distributed(process_set=ranks)],
        verbose=0,
    )
    return history.history["val_accuracy"][-1]


# %% [markdown]
"""
In each round rank 0 asks the study for one trial per set, and tells it what became of them.
"""


# %%
def search() -> list[tuple[float, int, float]]:
    ringar.init()
    ringar.set_random_seed(1)
    firsts = range(0, ringar.size(), RANKS_PER_TRIAL)
    sets = [ringar.add_process_set(range(first, first + RANKS_PER_TRIAL)) for first in firsts]
    place = ringar.rank() // RANKS_PER_TRIAL
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=1))
    for _ in range(ROUNDS):
        trials = [study.ask() for _ in sets] if ringar.rank() == 0 else []
        proposals = [
            {
                "rate": trial.suggest_float("rate", 1e-3, 1.0, log=True),
                "units": trial.suggest_int("units", 8, 128, log=True),
            }
            for trial in trials
        ]
        parameters = ringar.broadcast_object(proposals)[place]
        accuracies = ringar.allgather_object(accuracy_of(parameters, sets[place]))
        for trial, accuracy in zip(trials, accuracies[::RANKS_PER_TRIAL], strict=False):
            study.tell(trial, accuracy)
    return [(t.params["rate"], t.params["units"], t.values[0]) for t in study.trials]


# %%
trials = ringar.run(search, np=2)[0]
rate, units, accuracy = max(trials, key=lambda trial: trial[2])
print(f"best of {len(trials)} trials: learning rate {rate:.4f}, {units} units, {accuracy:.1%}")
assert accuracy > 0.9

# %%
rates, units, accuracies = np.array(trials).T
figure, axes = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
points = axes.scatter(rates, units, c=100 * accuracies, s=60, edgecolors="black")
axes.set(title=f"{len(trials)} trials on two process sets", xscale="log", yscale="log")
axes.set(xlabel="learning rate", ylabel="hidden units")
figure.colorbar(points, label="accuracy (%)")
figure.savefig("search.png")

# %% [markdown] tags=["output"]
"""
## Output

```text
best of 12 trials: learning rate 0.0181, 53 units, 93.9%
```

![What the example draws](../pictures/gallery/search.png)
"""
