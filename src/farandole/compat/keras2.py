"""Habits of programs for Horovod on Keras 2, on Keras 3: ``optimizer.variables()``."""

from __future__ import annotations

import sys
from typing import Any

_CLASSES = {
    "keras.src.optimizers.base_optimizer": "BaseOptimizer",
    "keras.src.optimizers.loss_scale_optimizer": "LossScaleOptimizer",
    "keras.src.optimizers.multi_optimizer": "MultiOptimizer",
}


class Variables(list[Any]):
    """A list that may be called."""

    def __call__(self) -> Variables:
        return self


def let_variables_be_called() -> None:
    """Keras 3 made ``variables`` of its optimizers a property: its list can be called, too, and
    gives itself.

    Does nothing where Keras 3 is not loaded (TensorFlow loads it, unless it was told to take Keras
    2).
    """
    for module, name in _CLASSES.items():
        optimizer: Any = getattr(sys.modules.get(module), name, None)
        given = vars(optimizer).get("variables") if optimizer is not None else None
        if isinstance(given, property) and given.fget is not None:
            optimizer.variables = property(_callable(given.fget), doc=given.__doc__)


def _callable(read: Any) -> Any:
    return lambda optimizer: Variables(read(optimizer))
