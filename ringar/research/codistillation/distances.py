"""How far the predictions of two models are apart: the distances of `ringar.Codistillation`.

Each is a loss of Keras, called with the predictions of the teacher and those of the model. So a
mask of the predictions counts as in other losses, and the mean is one over rows.
"""

from __future__ import annotations

import keras
import tensorflow as tf

NAMES = ("kl", "mse")


def make(name: str, from_logits: bool) -> keras.losses.Loss:
    """Return a distance.

    Args:
        name: one of `NAMES`.
        from_logits: whether models predict logits; "mse" takes predictions as they are.
    """
    if name == "kl":
        return KullbackLeibler(from_logits)
    return keras.losses.MeanSquaredError(name="codistillation_mse")


class KullbackLeibler(keras.losses.Loss):
    """Compute the divergence KL(teacher || model) of the distributions over the last axis.

    An output of one unit is the probability of one of two classes.

    Args:
        from_logits: whether predictions are logits.
    """

    def __init__(self, from_logits: bool) -> None:
        super().__init__(name="codistillation_kl")
        self._from_logits = from_logits

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Return the divergence of each row, of the teacher's predictions `y_true`."""
        teacher, student = self._log_probabilities(y_true), self._log_probabilities(y_pred)
        return tf.reduce_sum(tf.exp(teacher) * (teacher - student), axis=-1)

    def _log_probabilities(self, predictions: tf.Tensor) -> tf.Tensor:
        if predictions.shape.rank == 1:
            predictions = predictions[:, None]
        is_binary = predictions.shape[-1] == 1
        if self._from_logits and is_binary:
            class_logits = tf.concat([predictions, -predictions], axis=-1)
            return tf.math.log_sigmoid(class_logits)
        if self._from_logits:
            return tf.nn.log_softmax(predictions)
        if is_binary:
            predictions = tf.concat([predictions, 1 - predictions], axis=-1)
        return tf.math.log(tf.clip_by_value(predictions, keras.config.epsilon(), 1.0))
