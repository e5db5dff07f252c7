"""The common part of Horovod's two Keras modules, which are the same module here."""

from horovod._keras import callbacks as callbacks
from horovod._keras import elastic as elastic
from horovod.keras import *  # noqa: F403
