"""What Horovod's two modules for Keras share: here they are one."""

from farandole.keras import *  # noqa: F403
from horovod._keras import callbacks as callbacks
from horovod._keras import elastic as elastic
