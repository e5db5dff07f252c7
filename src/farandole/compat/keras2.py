"""Keras 2 habits of Horovod programs, supported on Keras 3: ``optimizer.variables()``."""

from __future__ import annotations

import sys
from typing import Any

_CLASSES = {
    "keras.src.optimizers.base_optimizer": "BaseOptimizer",
    "keras.src.optimizers.loss_scale_optimizer": "LossScaleOptimizer",
    "keras.src.optimizers.multi_optimizer": "MultiOptimizer",
}


class Variables(list[Any]):
    """A list that returns itself when called."""

    def __call__(self) -> Variables:
        return self


def let_variables_be_called() -> None:
    """Make ``variables`` of Keras 3's optimizers callable: in Keras 3 it is a property that
    returns a list.

    Does nothing if Keras 3 is not loaded. (TensorFlow loads it, unless set to use Keras 2.)
    """
    for module, name in _CLASSES.items():
        optimizer: Any = getattr(sys.modules.get(module), name, None)
        given = vars(optimizer).get("variables") if optimizer is not None else None
        if isinstance(given, property) and given.fget is not None:
            optimizer.variables = property(_callable(given.fget), doc=given.__doc__)


def _callable(read: Any) -> Any:
    return lambda optimizer: Variables(read(optimizer))
