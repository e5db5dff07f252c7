"""The user's callbacks on a rank."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from farandole.estimators.spec import Spec


@contextlib.contextmanager
def given_callbacks(keras: Any, spec: Spec, rank: int) -> Iterator[list[Any]]:
    """Yield the user's callbacks. Keras's file-writing callbacks run on rank 0 only, because ranks
    of one host would overwrite each other's files.

    With a store, TensorBoard writes to the run's log folder in the store.
    """
    store, kind = spec.store, keras.callbacks.TensorBoard
    # exact classes only: subclasses may do more
    writers = {kind, keras.callbacks.ModelCheckpoint, keras.callbacks.CSVLogger}
    callbacks = [
        each for each in spec.payload["callbacks"] if not rank or type(each) not in writers
    ]
    boards = [each for each in callbacks if isinstance(each, kind)]
    if not boards or store is None or not store.saving_runs():
        yield callbacks
        return
    others = [each for each in callbacks if not isinstance(each, kind)]
    if rank:
        yield others
        return
    sync = store.sync_fn(spec.run_id)
    with store.get_local_output_dir_fn(spec.run_id)() as folder:
        for each in boards:
            each.log_dir = os.path.join(folder, store.get_logs_subdir())
        yield [
            *others,
            *boards,
            keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: sync(folder)),
        ]
        sync(folder)  # including files written when training ends
