"""A net that reads handwritten digits, pruned, cut along its edges and trained on over ranks.

    ringarrun -np 2 python examples/sparse.py
    ringarrun -np 4 python examples/sparse.py --keep 0.05 --partition block

A dense net is trained on rank 0. Of each layer only the largest weights are kept, and the rest is
zero for good (Han, Pool, Tran and Dally, "Learning both weights and connections for efficient
neural networks", 2015). The neurons of the sparse net are placed on the ranks, each of which
trains the weights of its own. The table shows what three placements send, then the accuracy.

Needs scikit-learn: `pip install --editable '.[tensorflow,examples,sparse]'` in the checkout.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np
import scipy.sparse

import ringar
from ringar.parallel import SparseNet, sparse

Images = tuple[np.ndarray, np.ndarray]


def main() -> None:
    """Train, prune, cut, and train on."""
    options = parse()
    ringar.init()
    train, test = load()
    dense = ringar.broadcast_object(trained(train, options) if ringar.rank() == 0 else None)
    layers = [pruned(weights, options.keep) for weights in dense[::2]]
    grid = ringar.parallel.Grid(model=ringar.size())
    net = SparseNet(layers, biases=dense[1::2], partition=options.partition, grid=grid)
    optimizer = keras.optimizers.Adam(options.learning_rate)
    net.compile(ringar.DistributedOptimizer(optimizer, grid=grid), loss(), metrics=["accuracy"])
    _, before = net.evaluate(*test, verbose=0)
    callbacks = [ringar.callbacks.Distributed()]
    net.fit(*train, options.batch_size, options.epochs, verbose=0, callbacks=callbacks)
    _, after = net.evaluate(*test, verbose=0)
    if options.output:
        net.save(options.output)
    if ringar.rank() == 0:
        print_words(layers)
        entries = sum(layer.nnz for layer in layers)
        print(f"\n{entries:,} weights kept, {options.keep:.0%} of the dense net's.")
        print(f"Accuracy pruned {before:.1%}, trained on over {ringar.size()} ranks {after:.1%}.")


def trained(train: Images, options: argparse.Namespace) -> list[np.ndarray]:
    """Return kernels and biases of a dense net, one after the other, trained in this process."""
    keras.utils.set_random_seed(options.seed)
    dense = keras.layers.Dense
    units = options.units
    model = keras.Sequential(
        [keras.Input((64,)), dense(units, "relu"), dense(units, "relu"), dense(10)]
    )
    model.compile("adam", loss())
    model.fit(*train, options.batch_size, options.dense_epochs, verbose=0)
    return [np.asarray(weight) for weight in model.get_weights()]


def pruned(kernel: np.ndarray, keep: float) -> scipy.sparse.csr_array:
    """Return the largest weights of a dense layer, and at least one of each neuron.

    Args:
        kernel: the weights, float32 [inputs, neurons].
        keep: which fraction to keep.
    """
    sizes = np.abs(kernel.T)
    limit = np.quantile(sizes, 1 - keep)
    return scipy.sparse.csr_array(kernel.T * (sizes >= np.minimum(limit, sizes.max(1)[:, None])))


def loss() -> keras.losses.Loss:
    """Return the loss of logits of 10 classes."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def load() -> tuple[Images, Images]:
    """Return 1,000 images to train on, float32 [n, 64], and their classes; and 797 for tests."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 16).astype("float32"), y[order]
    return (x[:1000], y[:1000]), (x[1000:], y[1000:])


def print_words(layers: list[scipy.sparse.csr_array]) -> None:
    """Print the words that each placement sends per image, forward."""
    print("| placement  | words per image |")
    print("|:-----------|----------------:|")
    for method in ("hypergraph", "block", "random"):
        words = sum(sparse.partition(layers, ringar.size(), method).words(layers))
        print(f"| {method:10} | {words:15,} |")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=float, default=0.1, help="the fraction of weights to keep")
    parser.add_argument("--units", type=int, default=256, help="neurons of the hidden layers")
    parser.add_argument("--partition", default="hypergraph", help="or block, or random")
    parser.add_argument("--dense-epochs", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--output", default="", help="a file for the net, .npz")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
