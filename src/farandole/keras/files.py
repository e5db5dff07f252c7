"""Files that callbacks of several ranks would write: only the first of these ranks writes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras

# only newer versions of Keras have it
ORBAX = tuple(kind for kind in (getattr(keras.callbacks, "OrbaxCheckpoint", None),) if kind)
_PATHS = {  # the attribute that holds the path
    keras.callbacks.ModelCheckpoint: "filepath",
    keras.callbacks.BackupAndRestore: "backup_dir",
    keras.callbacks.CSVLogger: "filename",
    keras.callbacks.TensorBoard: "log_dir",
    **dict.fromkeys(ORBAX, "directory"),
}


def path_of(callback: Any) -> str | None:
    """Return the path that a callback writes to; None if it writes no file known to Keras."""
    name = next((name for kind, name in _PATHS.items() if isinstance(callback, kind)), None)
    path = None if name is None else getattr(callback, name)
    return None if path is None else str(path)


@contextmanager
def written_once(
    users: Sequence[Any], paths: Sequence[Sequence[str | None]], rank: int
) -> Iterator[list[Any]]:
    """Yield the callbacks among ``users`` that write no files within the context, because a lower
    rank writes to the same path.

    All else stays unchanged, so that all ranks decide in the same way. ModelCheckpoints need an
    ``Unsaved`` model.

    ``paths``: the paths that the callbacks of each rank write to.
    """
    earlier = {path for theirs in paths[:rank] for path in theirs if path is not None}
    silent = [callback for callback in users if path_of(callback) in earlier]
    with ExitStack() as undo:
        for callback in silent:
            _replace(callback, _instead(callback, undo), undo)
        yield silent


def _instead(callback: Any, undo: ExitStack) -> dict[str, Any]:
    """Return the attributes with which a callback writes no files."""
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        return {"_save_model": lambda: None, "delete_checkpoint": False}
    if isinstance(callback, keras.callbacks.CSVLogger):
        return {"filename": os.devnull}
    # TensorBoard cannot be switched off, and its subclasses use its writers
    if isinstance(callback, keras.callbacks.TensorBoard):
        folder = undo.enter_context(
            tempfile.TemporaryDirectory(prefix="farandole-", ignore_cleanup_errors=True)
        )
        folders = dict.fromkeys(("log_dir", "_log_write_dir", "_train_dir", "_val_dir"), folder)
        return {**folders, "_writers": {}}
    if isinstance(callback, ORBAX):
        return {"_save_checkpoint": lambda *args, **kwargs: None}
    return {}


def _replace(callback: Any, values: dict[str, Any], undo: ExitStack) -> None:
    """Set attributes of ``callback``, until ``undo`` restores them."""
    for name, value in values.items():
        if name in callback.__dict__:
            undo.callback(setattr, callback, name, callback.__dict__[name])
        else:
            undo.callback(callback.__dict__.pop, name, None)
        setattr(callback, name, value)


class Unsaved:
    """A model that is not written to files."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_model":
            object.__setattr__(self, name, value)
        else:
            setattr(self._model, name, value)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Write nothing: another rank writes the file."""

    def save_weights(self, *args: Any, **kwargs: Any) -> None:
        """Write nothing: another rank writes the file."""
