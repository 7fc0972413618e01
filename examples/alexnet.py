"""AlexNet, data-parallel, split over ranks as in its paper, or as a hybrid.

    ringarrun -np 2 python examples/alexnet.py --plan split --data FOLDER
    ringarrun -np 4 python examples/alexnet.py --plan split --parts 2 --synthetic --batch-size 32
    ringarrun -np 2 python examples/alexnet.py --plan hybrid --digits

Krizhevsky, Sutskever and Hinton, "ImageNet classification with deep convolutional neural networks"
(2012), put half of the kernels on each of two GPUs. A plan says which layers communicate:

    whole    none: every rank has the whole net and images of its own (data parallelism). One
             process can train it, too; conv2, conv4 and conv5 are grouped convolutions
    split    conv3 and the dense layers read the channels of all parts, as in the paper; conv2,
             conv4 and conv5 read those of their own part
    all      every layer reads the channels of all parts
    hybrid   convolutions as in "whole", dense layers split: Krizhevsky, "One weird trick for
             parallelizing convolutional neural networks" (2014)

FOLDER has one folder of images per class. `alexnet` and `small_alexnet`, which is for images of a
few pixels, can be imported.

Needs scikit-learn: `pip install --editable '.[tensorflow,examples]'` in the checkout.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ringar

LAYERS = ("conv1", "conv2", "conv3", "conv4", "conv5", "fc6", "fc7", "fc8")

#: The inputs of the split layers (see `ringar.parallel.split`). The other layers are whole.
READS: dict[str, dict[str, str]] = {
    "whole": {},
    "split": dict(
        zip(LAYERS, ("whole", "own", "all", "own", "own", "all", "all", "all"), strict=True)
    ),
    "all": {"conv1": "whole", **dict.fromkeys(LAYERS[1:], "all")},
    "hybrid": {"fc6": "examples", "fc7": "all", "fc8": "all"},
}

#: Layers that read one half of the channels in the paper. Their biases, and those of the hidden
#: dense layers, start at 1, so that ReLUs are active at first.
GROUPED = ("conv2", "conv4", "conv5")
AWAKE = (*GROUPED, "fc6", "fc7")


@dataclass(frozen=True)
class Sizes:
    """Hold the sizes of the eight layers.

    Attributes:
        filters: the filters of the five convolutions.
        kernels: the heights and widths of their kernels.
        stride: the stride of the first convolution.
        padding: the padding of the first convolution and of the poolings.
        units: the units of the two hidden dense layers.
    """

    filters: tuple[int, int, int, int, int]
    kernels: tuple[int, int, int, int, int]
    stride: int
    padding: str
    units: tuple[int, int]


PAPER = Sizes((96, 256, 384, 384, 256), (11, 5, 3, 3, 3), 4, "valid", (4096, 4096))
SMALL = Sizes((32, 64, 96, 96, 64), (3, 3, 3, 3, 3), 1, "same", (128, 128))


def alexnet(
    classes: int = 1000,
    input_shape: tuple[int, int, int] = (227, 227, 3),
    plan: str = "whole",
    *,
    grid: ringar.parallel.Grid | None = None,
    groups: int | None = None,
    normalization_groups: int | None = None,
    dropout: float = 0.5,
    initial: str = "paper",
    seed: int = 0,
    sizes: Sizes = PAPER,
) -> keras.Model:
    """Return the net of the paper, with 60,965,224 parameters for 1,000 classes.

    Args:
        classes: the number of outputs.
        input_shape: the shape of an image. The paper says 224 x 224, but its arithmetic needs 227.
        plan: "whole", "split", "all" or "hybrid"; see the top of this file.
        grid: the grid whose parts hold the net; needed unless `plan="whole"`.
        groups: the groups of conv2, conv4 and conv5 over all parts. By default 2 as in the paper,
            the number of parts with `plan="split"`, and 1 with `plan="all"`.
        normalization_groups: the groups of channels that normalize each other, over all parts. By
            default `groups`, and the number of parts with `plan="all"`. Set it to compare that
            plan with a whole net.
        dropout: the dropout rate of the hidden dense layers.
        initial: "paper": Gaussian of deviation 0.01, biases 0 and 1. "he": deviations by the number
            of inputs (He and others, 2015). With few inputs, as in the small net, 0.01 lets signals
            fade from layer to layer, and so do Keras' defaults, which do not account for ReLU: the
            net learns nothing.
        seed: the seed of dropout. `keras.utils.set_random_seed` sets that of the weights.
        sizes: the sizes of the layers.

    Returns:
        A model from images, `(batch, *input_shape)`, to logits, `(batch, classes)`, on every rank
        for its own images.

    Raises:
        ValueError: the plan is unknown or needs a grid, or the parts do not divide the net.
    """
    layers = _Layers(plan, grid, groups, normalization_groups, initial)
    x = images = keras.Input(input_shape, name="images")
    for number in range(1, 6):
        strides, padding = (sizes.stride, sizes.padding) if number == 1 else (1, "same")
        shape = sizes.filters[number - 1], sizes.kernels[number - 1]
        x = layers.convolution(number, *shape, strides=strides, padding=padding)(x)
        if number <= 2:
            x = layers.normalization(number)(x)
        if number in (1, 2, 5):
            x = keras.layers.MaxPooling2D(3, 2, sizes.padding, name=f"pool{number}")(x)
    # Flatten channel by channel, so that the channels of a part stay together. Split plans need
    # this order; all plans have it, so that their weights are the same.
    x = keras.layers.Flatten()(keras.layers.Permute((3, 1, 2))(x))
    for number, units in enumerate(sizes.units, 6):
        x = layers.dense(number, units, activation="relu")(x)
        # Each rank drops units of its own part: equal masks would drop unit i of all parts at once.
        own_seed = 2 * (seed + 1000 * _rank()) + number
        x = keras.layers.Dropout(dropout, seed=own_seed, name=f"dropout{number}")(x)
    x = layers.dense(8, classes)(x)
    return keras.Model(images, layers.join(x), name=f"alexnet_{plan}")


def small_alexnet(
    classes: int = 10,
    input_shape: tuple[int, int, int] = (8, 8, 1),
    plan: str = "whole",
    *,
    dropout: float = 0.25,
    initial: str = "he",
    **options: Any,
) -> keras.Model:
    """Return a net of the same layers for images of a few pixels; arguments as of `alexnet`.

    Its dense layers have few units, so the dropout rate is lower.
    """
    return alexnet(
        classes, input_shape, plan, dropout=dropout, initial=initial, sizes=SMALL, **options
    )


class _Layers:
    """Make the layers of a plan, each whole or split."""

    def __init__(
        self,
        plan: str,
        grid: ringar.parallel.Grid | None,
        groups: int | None,
        norm_groups: int | None,
        initial: str,
    ) -> None:
        if plan not in READS:
            texts = ", ".join(f'"{name}"' for name in READS)
            raise ValueError(f"`plan` must be one of {texts}. Received: plan={plan!r}")
        if initial not in ("paper", "he"):
            raise ValueError(f'`initial` must be "paper" or "he". Received: initial={initial!r}')
        if grid is None and plan != "whole":
            raise ValueError(f"`grid` must be given with this plan. Received: plan={plan!r}")
        self.plan, self.grid, self.initial = plan, grid, initial
        parts = grid.model if grid is not None else 1
        self.groups = groups or {"split": parts, "all": 1}.get(plan, 2)
        self.norm_groups = norm_groups or (parts if plan == "all" else self.groups)
        # The number of parts of the convolutions' channels.
        self.parts = parts if plan in ("split", "all") else 1
        if self.norm_groups % self.parts:
            raise ValueError(
                "`normalization_groups` must be divisible by the number of parts. "
                f"Received: normalization_groups={self.norm_groups}, model={self.parts}"
            )

    def convolution(
        self, number: int, filters: int, kernel: int, **options: object
    ) -> keras.layers.Layer:
        name = f"conv{number}"
        options.update(self._initial(name), groups=self.groups if name in GROUPED else 1)
        return self._layer(name, "Conv2D", filters, kernel, activation="relu", **options)

    def dense(self, number: int, units: int, **options: object) -> keras.layers.Layer:
        name = f"fc{number}"
        return self._layer(name, "Dense", units, **options, **self._initial(name))

    def normalization(self, number: int) -> keras.layers.Layer:
        """Return the normalization of this rank's channels."""
        return ringar.layers.LocalResponseNormalization(
            groups=self.norm_groups // self.parts, name=f"norm{number}"
        )

    def join(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Return the logits of all classes for this rank's examples."""
        if self.plan == "whole":
            return x
        if self.plan == "hybrid":
            return ringar.layers.ReturnExamples(grid=self.grid, name="join")(x)
        return ringar.layers.Gather(grid=self.grid, name="join")(x)

    def _layer(self, name: str, kind: str, *sizes: int, **options: Any) -> keras.layers.Layer:
        reads = READS[self.plan].get(name)
        if reads is None:
            grouped = options.get("groups", 1) > 1  # Keras' own are slow on processors
            module = ringar.layers if grouped else keras.layers
            kind = f"Grouped{kind}" if grouped else kind
            return getattr(module, kind)(*sizes, name=name, **options)
        split = getattr(ringar.layers, f"Split{kind}")
        return split(*sizes, reads=reads, grid=self.grid, name=name, **options)

    def _initial(self, name: str) -> dict[str, object]:
        if self.initial == "he":
            return {"kernel_initializer": "he_normal"}
        return {
            "kernel_initializer": keras.initializers.RandomNormal(stddev=0.01),
            "bias_initializer": "ones" if name in AWAKE else "zeros",
        }


def _rank() -> int:
    return int(ringar.rank()) if ringar.is_initialized() else 0


def main() -> None:
    """Train, then print speed and accuracy."""
    options = parse()
    ringar.init()
    keras.utils.set_random_seed(options.seed)
    grid = ringar.parallel.Grid(model=parts(options))
    train, held_out, shape, classes = load(options, grid)

    net = small_alexnet if options.small else alexnet
    model = net(classes, shape, options.plan, grid=grid, seed=options.seed)
    model.compile(
        ringar.DistributedOptimizer(paper_optimizer(options), grid=grid),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=True if options.jit else "auto",
    )
    parameters = ringar.allgather_object(model.count_params())
    if ringar.rank() == 0:
        print("Parameters per rank:", ", ".join(f"{count:,}" for count in parameters))
    watch = StopWatch()
    callbacks = [ringar.callbacks.Distributed(), watch]
    if held_out is not None:
        # As in the paper, when the accuracy on held-out images stops growing. All ranks decide
        # alike, since the callback before has averaged their metrics.
        callbacks.append(
            keras.callbacks.ReduceLROnPlateau("val_accuracy", 0.1, patience=options.patience)
        )
    history = model.fit(
        train,
        epochs=options.epochs,
        steps_per_epoch=options.steps,
        shuffle=False,  # the dataset does
        validation_data=held_out,
        callbacks=callbacks,
    ).history

    if ringar.rank() == 0:
        speed = watch.steps_per_second() * options.batch_size
        accuracy = "".join(
            f", {title} {history[key][-1]:.2%}"
            for title, key in (("accuracy", "accuracy"), ("on held-out images", "val_accuracy"))
            if key in history
        )
        print(f"{options.plan} on {ringar.size()} ranks: {speed:,.1f} images/s{accuracy}")


def paper_optimizer(options: argparse.Namespace) -> keras.optimizers.Optimizer:
    """Return SGD with momentum and weight decay, as in section 5 of the paper."""
    # In the paper the momentum accumulates the decay, too, which multiplies it by
    # 1 / (1 - momentum) over the steps. Keras' decay bypasses the momentum.
    optimizer = keras.optimizers.SGD(
        options.learning_rate,
        momentum=options.momentum,
        weight_decay=options.weight_decay / (1 - options.momentum),
    )
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def parts(options: argparse.Namespace) -> int:
    """Return the number of ranks over which the net is split."""
    if options.plan == "whole" and options.parts not in (None, 1):
        raise ValueError(f'`--parts` must be 1 with "--plan whole". Received: {options.parts}')
    return options.parts or (1 if options.plan == "whole" else ringar.size())


def load(
    options: argparse.Namespace, grid: ringar.parallel.Grid
) -> tuple[tf.data.Dataset, tf.data.Dataset | None, tuple[int, int, int], int]:
    """Return this rank's batches for training and test, the image shape, and the class count.

    Every rank reads the same images in the same order and alters them alike, before each takes its
    share: random numbers come from seeds that are the same on all ranks. So ranks of a model group
    get equal batches, as they must, and all plans, and one process, train on the same images.
    Keras layers for augmentation within the model would draw different numbers on each rank.
    """
    if options.plan == "hybrid":  # the convolutions' examples: each rank its own
        shares, grid_of_data = ringar.size(), None
    else:
        shares, grid_of_data = grid.data, grid
    if options.batch_size % shares:
        raise ValueError(
            "`--batch-size` must be divisible by the number of ranks or model groups that have "
            f"examples of their own. Received: {options.batch_size}, {shares} of them"
        )

    def share(dataset: tf.data.Dataset, drop: bool) -> tf.data.Dataset:
        part = ringar.data.shard(dataset, grid=grid_of_data)
        part = part.batch(options.batch_size // shares, drop_remainder=drop)
        return part.prefetch(tf.data.AUTOTUNE)

    if options.synthetic:
        train, shape = synthetic(options), (options.image_size, options.image_size, 3)
        # The same batch in all steps, made once: the speed is that of the net.
        return share(train, True).cache().repeat(), None, shape, options.classes
    train, held_out, shape, classes = digits(options) if options.digits else folder(options)
    if options.steps:
        train = train.repeat()
    return share(train, True), share(held_out, False), shape, classes


def synthetic(options: argparse.Namespace) -> tf.data.Dataset:
    """Return images of noise, one batch of all ranks."""
    shape = (options.image_size, options.image_size, 3)

    def example(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        seed = tf.stack([number, tf.constant(options.seed, tf.int64)])
        image = tf.random.stateless_normal(shape, seed, stddev=64.0)
        return image, tf.random.stateless_uniform([], seed, 0, options.classes, tf.int32)

    return tf.data.Dataset.range(options.batch_size).map(example)


def digits(
    options: argparse.Namespace,
) -> tuple[tf.data.Dataset, tf.data.Dataset, tuple[int, int, int], int]:
    """Return scikit-learn's digits: 1,797 images of 8 x 8 in 10 classes, normalized."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    x, y = ((data.images[..., None] - 5) / 6).astype("float32")[order], data.target[order]
    train = tf.data.Dataset.from_tensor_slices((x[:1437], y[:1437]))
    held_out = tf.data.Dataset.from_tensor_slices((x[1437:], y[1437:]))
    return train.shuffle(1437, seed=options.seed), held_out, (8, 8, 1), 10


def folder(
    options: argparse.Namespace,
) -> tuple[tf.data.Dataset, tf.data.Dataset, tuple[int, int, int], int]:
    """Return the images of a folder, one in ten of them held out.

    As in the paper, an image is scaled and cut to a square of 256 pixels. The net sees a square of
    227: a random one, mirrored or not, in training, and the middle one in a test.
    """
    size, margin = options.image_size, round(options.image_size * 256 / 227)
    train, held_out = keras.utils.image_dataset_from_directory(
        options.data,
        batch_size=None,
        image_size=(margin, margin),
        crop_to_aspect_ratio=True,
        seed=options.seed,
        validation_split=0.1,
        subset="both",
    )
    classes = len(train.class_names)
    # Seeds for the crop and for the flip of each image.
    seeds = tf.data.Dataset.random(options.seed, rerandomize_each_iteration=True).batch(4)

    def altered(
        example: tuple[tf.Tensor, tf.Tensor], seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        image, label = example
        image = tf.image.stateless_random_crop(image, (size, size, 3), seed[:2])
        return centered(tf.image.stateless_random_flip_left_right(image, seed[2:])), label

    def middle(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return centered(tf.image.resize_with_crop_or_pad(image, size, size)), label

    train = tf.data.Dataset.zip((train, seeds)).map(altered, num_parallel_calls=tf.data.AUTOTUNE)
    return train, held_out.map(middle, tf.data.AUTOTUNE), (size, size, 3), classes


def centered(image: tf.Tensor) -> tf.Tensor:
    """Subtract the mean color of ImageNet's photographs from an image of 0 to 255."""
    return image - tf.constant([123.7, 116.8, 103.9])


class StopWatch(keras.callbacks.Callback):
    """Time each epoch's training steps except the first, which waits for data and a trace."""

    def __init__(self) -> None:
        super().__init__()
        self.speeds: list[float] = []
        self._start: float | None = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Forget the epoch before."""
        self._start, self._steps = None, 0

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Start the watch at the second step."""
        self._steps = batch
        if batch == 1:
            self._start = time.perf_counter()

    def on_test_begin(self, logs: dict[str, float] | None = None) -> None:
        """Stop the watch, before a test within the epoch."""
        self._stop()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Stop the watch, if it still runs."""
        self._stop()

    def _stop(self) -> None:
        if self._start is not None:
            self.speeds.append(self._steps / (time.perf_counter() - self._start))
            self._start = None

    def steps_per_second(self) -> float:
        """Return the speed of the median epoch; not a number if each epoch had one step."""
        return float(np.median(self.speeds)) if self.speeds else float("nan")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plan", choices=list(READS), default="split")
    parser.add_argument("--parts", type=int, help="ranks that share a net (default: all)")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", metavar="FOLDER", help="one folder of images per class")
    source.add_argument("--synthetic", action="store_true", help="images of noise")
    source.add_argument("--digits", action="store_true", help="8 x 8 digits and the small net")
    parser.add_argument("--small", action="store_true", help="the small net")
    parser.add_argument("--image-size", type=int, help="default: 227, or 32 with --small")
    parser.add_argument("--classes", type=int, default=1000, help="of synthetic images")
    parser.add_argument(
        "--batch-size", type=int, help="images of all ranks per step (default: 128, 32 for digits)"
    )
    parser.add_argument("--epochs", type=int, help="default: 90, 15 for digits, 1 for noise")
    parser.add_argument("--steps", type=int, help="per epoch (default: all images, 10 for noise)")
    parser.add_argument("--learning-rate", type=float, help="default: 0.01, or 0.02 for digits")
    parser.add_argument(
        "--patience",
        type=int,
        help="epochs that get no better before the learning rate falls (default: 5, 2 for digits)",
    )
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jit", action="store_true", help="compile the step with XLA")
    options = parser.parse_args()
    options.small = options.small or options.digits
    options.image_size = options.image_size or (32 if options.small else 227)
    options.batch_size = options.batch_size or (32 if options.digits else 128)
    if options.synthetic:
        options.steps = options.steps or 10
    options.epochs = options.epochs or (15 if options.digits else 1 if options.synthetic else 90)
    options.learning_rate = options.learning_rate or (0.02 if options.digits else 0.01)
    options.patience = options.patience or (2 if options.digits else 5)
    return options


if __name__ == "__main__":
    main()
