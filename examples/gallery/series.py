# %% [markdown]
"""
# Time series: a forecast with `ScanLSTM`

An LSTM reads 100 values of a chaotic series and forecasts the value 12 steps later. The series is
that of Mackey and Glass (1977), a usual test: it almost repeats itself, but never does.
`ringar.layers.ScanLSTM` has the arguments and weights of Keras' `LSTM`, and a faster step.
"""

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np

import ringar

WINDOW, AHEAD = 100, 12

# %% [markdown]
"""
The population x grows by what it was 17 time units ago: dx/dt = 0.2 x(t-17) / (1 + x(t-17)^10) -
0.1 x(t). Euler's method computes it in tenths of a unit; the series has each tenth value.
"""


# %%
def mackey_glass(length: int) -> np.ndarray:
    x = [1.2] * 170
    while len(x) < 10 * length + 1000:
        x.append(x[-1] + 0.1 * (0.2 * x[-170] / (1 + x[-170] ** 10) - 0.1 * x[-1]))
    return np.array(x[1000::10], "float32") - 0.9


def windows(series: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all windows of the series, and the value `AHEAD` steps after each."""
    x = np.lib.stride_tricks.sliding_window_view(series, WINDOW)[:-AHEAD, :, None]
    return x, series[WINDOW + AHEAD - 1 :, None]


series = mackey_glass(2500)


# %% [markdown]
"""
The ranks share the windows. The last 500 values are for the test.
"""


# %%
def train() -> tuple[list[float], np.ndarray]:
    ringar.init()
    ringar.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((WINDOW, 1)), ringar.layers.ScanLSTM(32), keras.layers.Dense(1)]
    )
    model.compile(ringar.DistributedOptimizer(keras.optimizers.Adam(5e-3)), "mse")
    test = windows(series[2000:])
    history = model.fit(
        *ringar.data.shard(windows(series[:2000])),
        batch_size=32,
        epochs=10,
        validation_data=ringar.data.shard(test),
        callbacks=[ringar.callbacks.Distributed()],
        verbose=2,
    )
    return history.history["val_loss"], ringar.predict(model, test[0])[:, 0]


# %% [markdown]
"""
The simplest forecast is the last value of the window. The error of the LSTM must be a small part of
its error.
"""

# %%
losses, forecast = ringar.run(train, np=2)[0]
x, y = windows(series[2000:])
errors = [float(np.sqrt(np.mean((guess - y[:, 0]) ** 2))) for guess in (x[:, -1, 0], forecast)]
print(f"root of the mean square error: last value {errors[0]:.3f}, ScanLSTM {errors[1]:.3f}")
assert errors[1] < errors[0] / 4

# %%
figure, axes = plt.subplots(figsize=(7.5, 3), layout="constrained")
time = np.arange(300)
axes.plot(time, y[:300, 0] + 0.9, color="black", linewidth=1, label="series")
axes.plot(time, forecast[:300] + 0.9, "--", label=f"ScanLSTM, {AHEAD} steps before")
axes.plot(time, x[:300, -1, 0] + 0.9, ":", color="gray", label="last value")
axes.set(title="Mackey-Glass series, test", xlabel="time (units)", ylabel="x (population)")
axes.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.2))
figure.savefig("series.png")

# %% [markdown] tags=["output"]
"""
## Output

```text
[0] Epoch 1/10
[0] 30/30 - 15s - 511ms/step - loss: 0.0165 - val_loss: 0.0054
[0] Epoch 2/10
[0] 30/30 - 3s - 85ms/step - loss: 0.0048 - val_loss: 0.0037
[0] Epoch 3/10
[0] 30/30 - 3s - 100ms/step - loss: 0.0028 - val_loss: 0.0017
[0] Epoch 4/10
[0] 30/30 - 3s - 92ms/step - loss: 0.0011 - val_loss: 6.4084e-04
[0] Epoch 5/10
[0] 30/30 - 2s - 78ms/step - loss: 5.1732e-04 - val_loss: 2.9705e-04
[0] Epoch 6/10
[0] 30/30 - 2s - 72ms/step - loss: 2.9090e-04 - val_loss: 1.9069e-04
[0] Epoch 7/10
[0] 30/30 - 2s - 76ms/step - loss: 1.8762e-04 - val_loss: 1.5649e-04
[0] Epoch 8/10
[0] 30/30 - 2s - 69ms/step - loss: 1.8009e-04 - val_loss: 1.5760e-04
[0] Epoch 9/10
[0] 30/30 - 2s - 73ms/step - loss: 1.7635e-04 - val_loss: 1.1099e-04
[0] Epoch 10/10
[0] 30/30 - 2s - 77ms/step - loss: 1.5682e-04 - val_loss: 7.4035e-05
root of the mean square error: last value 0.315, ScanLSTM 0.009
```

![What the example draws](../pictures/gallery/series.png)
"""
