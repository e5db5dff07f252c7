from farandole.tensorflow.keras.elastic import *  # noqa: F403
