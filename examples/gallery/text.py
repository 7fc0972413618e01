# %% [markdown]
"""
# Text: a small Transformer writes

A Transformer learns English from the reference manual that comes with Python, and predicts the next
character from the 64 before it. Each rank draws pieces of the text at random, others than the other
rank.
"""

# %%
from pydoc_data.topics import topics

import keras
import matplotlib.pyplot as plt
import numpy as np
from keras import layers, ops

import ringar

WINDOW, WIDTH = 64, 64

# %% [markdown]
"""
The manual has half a million characters. Rare ones become a question mark.
"""

# %%
text = " ".join(" ".join(topics.values()).split())
common = sorted({char for char in set(text) if text.count(char) > 100} | {"?"})
codes = np.array([common.index(char if char in common else "?") for char in text], "int32")
print(f"{len(common)} different characters")

# %% [markdown]
"""
The model has two blocks, each of causal attention and a dense part, with normalization before them
and a residual connection around them.
"""


# %%
def build() -> keras.Model:
    tokens = keras.Input((WINDOW,), dtype="int32")
    places = ops.cumsum(ops.ones_like(tokens), axis=1) - 1
    x = layers.Embedding(len(common), WIDTH)(tokens) + layers.Embedding(WINDOW, WIDTH)(places)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, WIDTH // 4)(y, y, use_causal_mask=True)
        y = layers.Dense(4 * WIDTH, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(WIDTH)(y)
    return keras.Model(tokens, layers.Dense(len(common))(layers.LayerNormalization()(x)))


def pieces(part: np.ndarray, number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return windows of the text, and the same one character later."""
    starts = np.random.default_rng(seed).integers(0, len(part) - WINDOW, number)
    windows = part[starts[:, None] + np.arange(WINDOW + 1)]
    return windows[:, :-1], windows[:, 1:]


# %% [markdown]
"""
After the training, rank 0 continues a text: it draws one character after the other from the
probabilities that the model gives.
"""


# %%
def write(model: keras.Model, beginning: str, length: int) -> str:
    rng = np.random.default_rng(0)
    sequence = [common.index(char) for char in beginning]
    for _ in range(length):
        window = np.zeros((1, WINDOW), "int32")
        window[0, : len(sequence)] = sequence[-WINDOW:]
        logits = model.predict_on_batch(window)[0, min(len(sequence), WINDOW) - 1]
        weights = np.exp(logits.astype(float) / 0.7)
        sequence.append(int(rng.choice(len(common), p=weights / weights.sum())))
    return "".join(common[code] for code in sequence)


def train() -> tuple[list[float], str]:
    ringar.init()
    ringar.set_random_seed(1)
    model = build()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(ringar.DistributedOptimizer(keras.optimizers.Adam(3e-3)), loss)
    history = model.fit(
        *pieces(codes[:-20_000], 1600, seed=ringar.rank()),
        batch_size=16,
        epochs=5,
        validation_data=pieces(codes[-20_000:], 64, seed=ringar.rank()),
        callbacks=[ringar.callbacks.Distributed()],
        verbose=2,
    )
    sample = write(model, "The function ", 220) if ringar.rank() == 0 else ""
    return history.history["val_loss"], sample


# %% [markdown]
"""
One who knows only how often each character occurs has a loss of the entropy of the characters. The
model must know more.
"""

# %%
losses, sample = ringar.run(train, np=2)[0]
shares = np.bincount(codes) / len(codes)
entropy = float(-shares @ np.log(shares))
print(f"loss {losses[-1]:.2f}, entropy of the characters {entropy:.2f} nats per character")
assert losses[-1] < entropy - 0.5

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3), layout="constrained")
left.plot(range(1, 6), losses, "o-", label="Transformer, test")
left.axhline(entropy, color="gray", linestyle="--", label="entropy of characters")
left.set(title="Two ranks learn to write", xlabel="epoch", ylabel="loss (nats per character)")
left.legend()
lines = [sample[i : i + 34] for i in range(0, len(sample), 34)]
right.text(0.5, 0.5, "\n".join(lines), ha="center", va="center", family="monospace", size=9)
right.set_title("What the model writes")
right.axis("off")
figure.savefig("text.png")

# %% [markdown] tags=["output"]
"""
## Output

```text
76 different characters
[0] Epoch 1/5
[0] 100/100 - 72s - 717ms/step - loss: 2.8685 - val_loss: 2.4210
[0] Epoch 2/5
[0] 100/100 - 31s - 311ms/step - loss: 2.4335 - val_loss: 2.1868
[0] Epoch 3/5
[0] 100/100 - 33s - 334ms/step - loss: 2.1354 - val_loss: 1.9424
[0] Epoch 4/5
[0] 100/100 - 40s - 402ms/step - loss: 1.8750 - val_loss: 1.7817
[0] Epoch 5/5
[0] 100/100 - 43s - 434ms/step - loss: 1.6926 - val_loss: 1.6765
loss 1.68, entropy of the characters 3.27 nats per character
```

![What the example draws](../pictures/gallery/text.png)
"""
