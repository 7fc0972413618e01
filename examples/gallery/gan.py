# %% [markdown]
"""
# A GAN: two optimizers, one step

A generator learns to draw digits that a discriminator takes for real ones. The model has a
`train_step` and two optimizers: each of them is made distributed.
"""

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from keras import layers, ops
from scipy.linalg import sqrtm
from sklearn.datasets import load_digits

import ringar

NOISE, EPOCHS = 16, 50
digits = (load_digits().data / 8 - 1).astype("float32")  # -1 to 1

# %% [markdown]
"""
Nothing in the step knows of ranks. Each rank draws noise of its own, for `Distributed` gives each a
different seed.
"""


# %%
class GAN(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential(
            [keras.Input((NOISE,)), layers.Dense(128, "relu"), layers.Dense(64, "tanh")]
        )
        self.discriminator = keras.Sequential(
            [
                keras.Input((64,)),
                layers.Dense(128, "leaky_relu"),
                layers.Dropout(0.3),
                layers.Dense(1),
            ]
        )
        self.generator_optimizer = ringar.DistributedOptimizer(keras.optimizers.Adam(1e-3, 0.5))
        self.discriminator_optimizer = ringar.DistributedOptimizer(keras.optimizers.Adam(1e-3, 0.5))
        self.seeds = keras.random.SeedGenerator(1)
        self.losses_of = {name: keras.metrics.Mean(name) for name in ("generator", "critic")}

    def train_step(self, real: tf.Tensor) -> dict[str, tf.Tensor]:
        noise = keras.random.normal((ops.shape(real)[0], NOISE), seed=self.seeds)
        with tf.GradientTape(persistent=True) as tape:
            fake = self.generator(noise, training=True)
            real_logits = self.discriminator(real, training=True)
            fake_logits = self.discriminator(fake, training=True)
            critic = ops.mean(ops.softplus(-real_logits) + ops.softplus(fake_logits))
            generator = ops.mean(ops.softplus(-fake_logits))
        for optimizer, part, loss in [
            (self.discriminator_optimizer, self.discriminator, critic),
            (self.generator_optimizer, self.generator, generator),
        ]:
            weights = part.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
        self.losses_of["generator"].update_state(generator)
        self.losses_of["critic"].update_state(critic)
        return {name: metric.result() for name, metric in self.losses_of.items()}


# %%
def train() -> tuple[dict[str, list[float]], np.ndarray, np.ndarray]:
    ringar.init()
    ringar.set_random_seed(1)
    model = GAN()
    model.compile()
    noise = np.random.default_rng(0).normal(size=(1000, NOISE)).astype("float32")
    before = model.generator.predict_on_batch(noise)
    history = model.fit(
        ringar.data.shard(digits),
        batch_size=32,
        epochs=EPOCHS,
        callbacks=[ringar.callbacks.Distributed()],
        verbose=0,
    )
    return history.history, before, model.generator.predict_on_batch(noise)


# %% [markdown]
"""
The Fréchet distance compares mean and covariance of the drawn images with those of the real ones.
(FID is the same for the features of an Inception net.)
"""


# %%
def distance(x: np.ndarray, y: np.ndarray) -> float:
    covariances = [np.cov(rows.T) + 1e-6 * np.eye(64) for rows in (x, y)]  # invertible
    cross = sqrtm(covariances[0] @ covariances[1]).real
    return float(((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(sum(covariances) - 2 * cross))


history, before, after = ringar.run(train, np=2)[0]
distances = distance(digits, before), distance(digits, after)
print(f"Fréchet distance to the digits: {distances[0]:.1f} before, {distances[1]:.1f} after")
assert distances[1] < distances[0] / 3

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3), layout="constrained")
for name, losses in history.items():
    left.plot(range(1, EPOCHS + 1), losses, label=name)
left.set(title="Two ranks train a GAN", xlabel="epoch", ylabel="loss (nats per image)")
left.legend()
images = np.pad(
    after[:24].reshape(4, 6, 8, 8), [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=-1
)
right.imshow(images.swapaxes(1, 2).reshape(40, 60), "gray_r")
right.set(title="Digits that the generator draws", xticks=[], yticks=[])
figure.savefig("gan.png")

# %% [markdown] tags=["output"]
"""
## Output

```text
Fréchet distance to the digits: 44.2 before, 4.2 after
```

![What the example draws](../pictures/gallery/gan.png)
"""
