"""The common part of Horovod's two modules for Keras: here they are one."""

from horovod._keras import callbacks as callbacks
from horovod._keras import elastic as elastic
from horovod.keras import *  # noqa: F403
