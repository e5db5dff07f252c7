from horovod.keras.elastic import *  # noqa: F403
