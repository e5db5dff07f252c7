"""``import horovod.tensorflow.keras as hvd``: farandole.tensorflow.keras."""

from importlib import import_module as _import

from horovod.common.util import check_extension

check_extension("horovod.keras", "HOROVOD_WITH_TENSORFLOW", __file__)

from farandole.tensorflow.keras import *  # noqa: E402,F403

_import("horovod.tensorflow.keras.callbacks")  # replaces farandole's module
_import("horovod.tensorflow.keras.elastic")
