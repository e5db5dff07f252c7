from horovod.keras.callbacks import *  # noqa: F403
