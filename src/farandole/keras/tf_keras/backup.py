"""``BackupAndRestore`` of Keras 2 on several ranks: one rank writes, and all go on from the same
step.

Keras itself knows how workers share a folder, by the model's strategy; ranks of a job have none.
The callback puts what it does on the model (``_training_state``), and ``fit`` asks the model where
to begin once callbacks have begun.
"""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from farandole.core.api.objects import allgather_object
from farandole.job import context

_ASKED = "_maybe_load_initial_counters_from_ckpt"


def share(model: Any, root_rank: int) -> None:
    """For one ``fit`` of ``model``, which begins on all ranks."""
    # a v1 fit does not ask
    if context.size() == 1 or not tf.executing_eagerly() or not hasattr(model, _ASKED):
        return
    asked = getattr(type(model), _ASKED)

    def agreed(*args: Any, **kwargs: Any) -> Any:
        model.__dict__.pop(_ASKED, None)
        begin = tuple(int(number) for number in asked(model, *args, **kwargs))
        folder = _folder_of(model)
        starts = allgather_object((begin, folder))
        # The others have read the folder by now: nobody writes before the first step, which needs
        # them all.
        if folder and folder in [other for _, other in starts[: context.rank()]]:
            model._training_state.write_checkpoint_manager = _Unwritten()
        return starts[root_rank][0]

    object.__setattr__(model, _ASKED, agreed)


def _folder_of(model: Any) -> str:
    """Where this rank keeps its backup; empty without one."""
    state = getattr(model, "_training_state", None)
    return "" if state is None else os.path.abspath(state.read_checkpoint_manager.directory)


class _Unwritten:
    """In the place of a manager of checkpoints: another rank writes. Keras deletes only what it
    wrote.
    """

    directory = ""

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Nothing was written, says None."""
