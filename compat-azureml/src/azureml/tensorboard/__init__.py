"""TensorBoard for runs."""

from azureml._farandole import lazy

__getattr__, __all__ = lazy.names(__name__, {"Tensorboard": "azureml.tensorboard.tensorboard"})
