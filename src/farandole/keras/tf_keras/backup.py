"""``BackupAndRestore`` of Keras 2 on several ranks: one rank writes, and all resume from the same
step.

Keras handles workers with a common folder only for a model with a distribution strategy, which the
ranks of a job do not have. The callback stores its state on the model (``_training_state``), and
after ``on_train_begin`` ``fit`` asks the model for the first epoch.
"""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from farandole.core.api.objects import allgather_object
from farandole.job import context

_ASKED = "_maybe_load_initial_counters_from_ckpt"


def share(model: Any, root_rank: int) -> None:
    """Share the backup for one ``fit`` of ``model``, which begins on all ranks."""
    # a v1 fit does not ask
    if context.size() == 1 or not tf.executing_eagerly() or not hasattr(model, _ASKED):
        return
    asked = getattr(type(model), _ASKED)

    def agreed(*args: Any, **kwargs: Any) -> Any:
        model.__dict__.pop(_ASKED, None)
        begin = tuple(int(number) for number in asked(model, *args, **kwargs))
        folder = _folder_of(model)
        starts = allgather_object((begin, folder))
        # The other ranks have read the folder by now: no rank writes before the first step, which
        # is collective.
        if folder and folder in [other for _, other in starts[: context.rank()]]:
            model._training_state.write_checkpoint_manager = _Unwritten()
        return starts[root_rank][0]

    object.__setattr__(model, _ASKED, agreed)


def _folder_of(model: Any) -> str:
    """Return the folder of this rank's backup; empty without one."""
    state = getattr(model, "_training_state", None)
    return "" if state is None else os.path.abspath(state.read_checkpoint_manager.directory)


class _Unwritten:
    """A replacement for a checkpoint manager when another rank writes. Keras deletes only files
    that it wrote.
    """

    directory = ""

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Return None: nothing was written."""
