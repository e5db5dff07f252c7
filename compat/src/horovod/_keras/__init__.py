"""What Horovod's two modules for Keras share: here they are one."""

from farandole.keras import *  # noqa: F403
from farandole.keras import __all__ as _names
from horovod._keras import callbacks, elastic

__all__ = [*_names, "callbacks", "elastic"]
