"""Horovod's service for tf.data, which is absent: TensorFlow's own takes its place."""

from ringar.horovod import absent

__getattr__ = absent.getter(__name__)
