"""Handwritten digits, each cut into strips over the ranks: convolutions and local connections.

    ringarrun -np 2 python examples/partitioned.py
    ringarrun -np 4 python examples/partitioned.py --tiles 2 2

Dean et al., "Large scale distributed deep networks" (2012), cut a net over machines so that each
has a part of the images and of the layers' units. Here each rank is given its strip, or tile, of
scikit-learn's digits, enlarged to 32 x 32 pixels, and no rank ever has a whole image. Before each
layer the ranks exchange the rows and columns within the kernels' reach. The table tells how many
bytes that took, and the net of one process, made of the ranks' parts, classifies the test images.

Needs scikit-learn: `pip install --editable '.[tensorflow,examples]'` in the checkout.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np
import tensorflow as tf

import ringar

SIDE, CLASSES = 32, 10
Images = tuple[np.ndarray, np.ndarray]


def main() -> None:
    """Train on strips, then print the traffic, and the accuracy of the whole net."""
    options = parse()
    ringar.init()
    keras.utils.set_random_seed(options.seed)
    tiles = options.tiles or (ringar.size(), 1)
    grid = ringar.parallel.Grid(model=(tiles[0], tiles[1]))
    (x, y), test = load()

    tile = ringar.parallel.tile(x, grid)
    model = make_model(tile.shape[1:])
    optimizer = ringar.DistributedOptimizer(keras.optimizers.Adam(options.learning_rate), grid=grid)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    # The ranks of a model group have tiles of the same images: they shuffle with the same seed.
    data = tf.data.Dataset.from_tensor_slices((tile, y)).shuffle(len(y), seed=options.seed)
    share = ringar.data.shard(data, grid=grid).batch(options.batch_size)
    callbacks = [ringar.callbacks.Distributed()]
    verbose = 2 if ringar.rank() == 0 else 0
    model.fit(share, epochs=options.epochs, shuffle=False, verbose=verbose, callbacks=callbacks)

    merged = ringar.parallel.merge(model)
    if ringar.rank() == 0:
        print_traffic()
        right = np.argmax(merged.predict(test[0], verbose=0), axis=1) == test[1]
        print(f"{100 * right.mean():.1f}% of {len(right)} test images, by the net of one process")
    ringar.shutdown()


def make_model(shape: tuple[int, ...]) -> keras.Model:
    """Return a net that reads tiles of this shape."""
    layers = ringar.layers
    tile = keras.Input(shape)
    x = layers.OwnTile(size=(SIDE, SIDE))(tile)
    x = layers.PartitionedConv2D(8, 5, padding="same", activation="relu", name="conv")(x)
    x = layers.PartitionedMaxPooling2D(2, name="pool")(x)
    x = layers.SyncBatchNormalization(name="norm")(x)
    x = layers.PartitionedLocallyConnected2D(8, 3, strides=2, activation="relu", name="local")(x)
    x = keras.layers.Flatten()(layers.GatherPlane(name="join")(x))
    return keras.Model(tile, keras.layers.Dense(CLASSES, name="classes")(x))


def load() -> tuple[Images, Images]:
    """Return training and test images, 32 x 32 pixels, and their classes."""
    from sklearn.datasets import load_digits

    data = load_digits()
    x = np.kron(data.images / 16.0, np.ones((SIDE // 8, SIDE // 8)))[..., None].astype("float32")
    order = np.random.default_rng(0).permutation(len(x))
    test, train = order[:360], order[360:]
    return (x[train], data.target[train]), (x[test], data.target[test])


def print_traffic() -> None:
    """Print the bytes that rank 0 has sent for each layer."""
    print("| layer | collectives | bytes that rank 0 has sent |\n|---|---|---|")
    traffic = ringar.stats(by="layer")
    for name in ("conv", "pool", "norm", "local", "join", "gradients"):
        if name in traffic:
            print(f"| {name} | {traffic[name].calls} | {traffic[name].bytes:,} |")


def parse() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--tiles", type=int, nargs=2, metavar=("ROWS", "COLUMNS"), help="by default strips of rows")
    add("--epochs", type=int, default=5)
    add("--batch-size", type=int, default=32)
    add("--learning-rate", type=float, default=3e-3)
    add("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
