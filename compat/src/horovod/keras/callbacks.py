from farandole.core.api.keras_version import keras_2

if keras_2():
    from farandole.keras.tf_keras.callbacks import *  # noqa: F403
else:
    from farandole.keras.callbacks import *  # noqa: F403
