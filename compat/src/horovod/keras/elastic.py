from farandole.keras.elastic import *  # noqa: F403
