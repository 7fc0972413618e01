"""Parts that Horovod's modules share: errors, process sets, states of elastic jobs, helpers."""

from ringar.horovod import absent

__getattr__ = absent.getter(__name__)
