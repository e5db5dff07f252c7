from farandole.frontend.keras_callbacks import keras_2

if keras_2():
    from farandole.tensorflow.keras.elastic import *  # noqa: F403
else:
    from farandole.keras.elastic import *  # noqa: F403
