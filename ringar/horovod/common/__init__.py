"""What Horovod's modules share: errors, process sets, the state of elastic jobs, small helpers."""

from ringar.horovod import absent

__getattr__ = absent.getter(__name__)
