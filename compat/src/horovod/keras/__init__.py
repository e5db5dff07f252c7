"""``import horovod.keras as hvd``: farandole.keras; with TF_USE_LEGACY_KERAS=1, for Keras 2."""

from importlib import import_module as _import

from horovod.common.util import check_extension

check_extension("horovod.keras", "HOROVOD_WITH_TENSORFLOW", __file__)

from farandole.core.api.keras_version import keras_2 as _keras_2  # noqa: E402

if _keras_2():
    from farandole.keras.tf_keras import *  # noqa: F403
else:
    from farandole.keras import *  # noqa: F403

_import("horovod.keras.callbacks")  # replaces farandole's module
_import("horovod.keras.elastic")
