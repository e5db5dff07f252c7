"""Models of Keras 3 whose layers live on different ranks, on PyTorch and TensorFlow.

``chain`` finds the layers of a model, and ``cuts`` (pure) where to cut them; ``steps`` runs a batch
through the stages, over ``messages``; ``computation`` says what the files of the backends do;
``model`` is what users see, to which ``callbacks`` and ``weights`` belong.
"""

from farandole.keras.pipeline.model import Pipeline

__all__ = ["Pipeline"]
