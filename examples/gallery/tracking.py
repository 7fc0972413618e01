# %% [markdown]
"""
# Tracking: TensorBoard and MLflow

A job has one log, as a script of one process has. Keras' `TensorBoard` writes on rank 0, and so
does each callback that has `rank_zero = True`. Metrics in the logs are those of all ranks.
"""

# %%
import keras
import matplotlib.pyplot as plt
import mlflow
import numpy as np
from sklearn.datasets import load_digits
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import ringar

STORE = "sqlite:///mlflow.db"


def load() -> tuple[np.ndarray, np.ndarray]:
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    return (digits.data[order] / 16).astype("float32"), digits.target[order]


# %% [markdown]
"""
MLflow gets a run from a callback of a few lines. On other ranks it is not called.
"""


# %%
class Tracker(keras.callbacks.Callback):
    rank_zero = True

    def on_train_begin(self, logs: dict | None = None) -> None:
        mlflow.set_tracking_uri(STORE)
        mlflow.set_experiment("digits")
        mlflow.start_run()
        rate = float(self.model.optimizer.learning_rate)
        mlflow.log_params({"ranks": ringar.size(), "learning rate": rate})

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        mlflow.log_metrics(logs or {}, step=epoch)

    def on_train_end(self, logs: dict | None = None) -> None:
        mlflow.end_run()


# %%
def train(rates: list[float]) -> None:
    ringar.init()
    images, labels = load()
    for rate in rates:
        ringar.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(32, activation="relu"),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile(
            ringar.DistributedOptimizer(keras.optimizers.Adam(rate)),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        model.fit(
            *ringar.data.shard((images[:1437], labels[:1437])),
            batch_size=16,
            epochs=10,
            validation_data=ringar.data.shard((images[1437:], labels[1437:])),
            callbacks=[
                ringar.callbacks.Distributed(),
                keras.callbacks.TensorBoard(f"logs/{rate}"),
                Tracker(),
            ],
            verbose=0,
        )


# %% [markdown]
"""
`tensorboard --logdir logs` and `mlflow ui --backend-store-uri sqlite:///mlflow.db` show the runs in
a browser. Here both are read back: two runs and no more, with one value per epoch.
"""

# %%
ringar.run(train, args=([3e-4, 3e-3],), np=2)
mlflow.set_tracking_uri(STORE)
client = mlflow.MlflowClient()
runs = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
curves = {
    float(run.data.params["learning rate"]): [
        metric.value for metric in client.get_metric_history(run.info.run_id, "val_accuracy")
    ]
    for run in runs
}
events = EventAccumulator("logs/0.003/validation").Reload()
print(f"runs: {len(runs)}, epochs: {[len(values) for values in curves.values()]}")
print(f"TensorBoard has {events.Tags()['tensors']}")
assert len(runs) == 2
assert min(map(len, curves.values())) == 10
assert max(values[-1] for values in curves.values()) > 0.93

# %%
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for rate, values in sorted(curves.items()):
    axes.plot(range(1, 11), np.multiply(values, 100), "o-", label=f"learning rate {rate:g}")
axes.set(title="Runs in MLflow", xlabel="epoch", ylabel="accuracy on new images (%)")
axes.legend()
figure.savefig("tracking.png")

# %% [markdown] tags=["output"]
"""
## Output

```text
runs: 2, epochs: [10, 10]
TensorBoard has ['evaluation_accuracy_vs_iterations', 'evaluation_loss_vs_iterations', 'epoch_accuracy', 'epoch_loss']
```

![What the example draws](../pictures/gallery/tracking.png)
"""
