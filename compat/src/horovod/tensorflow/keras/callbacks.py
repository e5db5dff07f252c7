from farandole.tensorflow.keras.callbacks import *  # noqa: F403
