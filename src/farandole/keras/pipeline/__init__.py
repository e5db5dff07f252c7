"""Keras 3 models whose layers are on different ranks, on PyTorch and TensorFlow.

``chain`` finds the layers of a model and ``cuts`` (pure) where to cut them; ``steps`` runs a batch
through the stages, over ``messages``; ``computation`` is the interface of the backends' files;
``model`` is the user's interface, with ``callbacks`` and ``weights``.
"""

from farandole.keras.pipeline.model import Pipeline

__all__ = ["Pipeline"]
