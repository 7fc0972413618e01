"""Handwritten digits on a cluster of Spark: a DataFrame, `fit` on all ranks, and predictions.

    spark-submit examples/spark_train.py
    python examples/spark_train.py --master 'local-cluster[2,1,1024]'

The steps are those of an estimator. Spark prepares the rows, and writes them to a folder that all
hosts share (JSON here; Parquet where ranks have pyarrow). Ranks read their shares and train a model
of Keras. Spark's own workers then predict the class of each row of the test data.

Needs scikit-learn: `pip install --editable '.[tensorflow,examples,spark]'` in the checkout.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import ringar

Weights = list[Any]


def fit(frame: DataFrame, folder: str, num_proc: int, epochs: int) -> Weights:
    """Train on the rows of `frame`; return the weights of the model."""
    frame.write.json(f"{folder}/train", mode="overwrite")
    return ringar.spark.run(train, [f"{folder}/train", epochs], num_proc=num_proc)[0]


def transform(frame: DataFrame, weights: Weights) -> DataFrame:
    """Return `frame` with a column of predicted classes."""

    def predict(rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
        import numpy as np

        batch = list(rows)
        model = build()
        model.set_weights(weights)
        images = np.array([row.image for row in batch], "float32").reshape(-1, 8, 8, 1)
        if batch:
            classes = model.predict(images, verbose=0).argmax(1)
            for row, label in zip(batch, classes, strict=True):
                yield (*row, int(label))

    schema = StructType([*frame.schema.fields, StructField("prediction", LongType())])
    return frame.sparkSession.createDataFrame(frame.rdd.mapPartitions(predict), schema)


def train(folder: str, epochs: int) -> Weights:
    """Train on this rank's share of the rows in the files of a folder."""
    import keras
    import numpy as np
    import pandas as pd

    ringar.init()
    ringar.set_random_seed(1)
    files = sorted(Path(folder).glob("*.json"))
    rows = pd.concat([pd.read_json(file, lines=True) for file in files])
    images = np.array(rows["image"].tolist(), "float32").reshape(-1, 8, 8, 1)
    x, y = ringar.data.shard((images, rows["label"].to_numpy()))
    model = build()
    optimizer = ringar.DistributedOptimizer(keras.optimizers.Adam(2e-3))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [ringar.callbacks.Distributed()]
    history = model.fit(x, y, batch_size=32, epochs=epochs, callbacks=callbacks, verbose=0).history
    if ringar.rank() == 0:
        print(f"{ringar.size()} ranks, loss of the last epoch {history['loss'][-1]:.4f}")
    return list(model.get_weights())


def build() -> Any:
    """Return the model of examples/digits.py."""
    from digits import make_model

    return make_model((8, 8, 1))


def main() -> None:
    """Prepare the data, train, predict, and print the accuracy."""
    from sklearn.datasets import load_digits

    options = parse()
    builder = SparkSession.builder.config("spark.ui.enabled", "false")
    if options.master:
        builder = builder.master(options.master)
    spark = builder.getOrCreate()
    # What a pickled function of this file needs on the other hosts.
    spark.sparkContext.addPyFile(str(Path(__file__).with_name("digits.py")))
    digits = load_digits()
    rows = [
        Row(image=[float(v) / 16 for v in image.ravel()], label=int(label))
        for image, label in zip(digits.images, digits.target, strict=True)
    ]
    frame = spark.createDataFrame(rows)
    train_rows, test_rows = frame.randomSplit([0.8, 0.2], seed=1)
    with tempfile.TemporaryDirectory() as folder:
        weights = fit(train_rows, options.folder or folder, options.num_proc, options.epochs)
    predicted = transform(test_rows, weights)
    pairs = predicted.select("label", "prediction").collect()
    print(f"accuracy: {sum(row.label == row.prediction for row in pairs) / len(pairs):.2%}")
    spark.stop()


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--master", help="of the cluster; default: as spark-submit says")
    parser.add_argument("--num-proc", type=int, default=2, help="ranks")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--folder", help="one that all hosts share; default: one of this host")
    return parser.parse_args()


if __name__ == "__main__":
    main()
