"""Checkpoints of a run in its store: one file after each epoch, with everything needed to
resume.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from typing import Any, NamedTuple

from farandole.data import Store
from farandole.errors import DataError

KEPT = 2  # on some file systems a crash may truncate the last one


class Checkpoint(NamedTuple):
    """A checkpoint.

    ``epoch``: the last completed epoch. ``state``: the framework's state. ``data``: the reader's
    state. ``best``: the weights of ``best_epoch``, if there is a best epoch. ``steps``: the batches
    of all epochs, if their number is fixed. ``fingerprint``: the training's fingerprint.
    """

    epoch: int
    history: list[dict[str, Any]]
    data: dict[str, int]
    state: bytes
    best: bytes | None
    best_epoch: int | None
    steps: int = 0
    fingerprint: dict[str, Any] | None = None


def write(store: Store, run_id: str, checkpoint: Checkpoint) -> None:
    facts = {
        name: getattr(checkpoint, name)
        for name in ("epoch", "history", "data", "best_epoch", "steps", "fingerprint")
    }
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("facts.json", json.dumps(facts))
        archive.writestr("state", checkpoint.state)
        if checkpoint.best is not None:
            archive.writestr("best", checkpoint.best)
    store.write(f"{store.get_run_path(run_id)}/epoch-{checkpoint.epoch}.ckpt", file.getvalue())
    for path in _own(store, run_id)[:-KEPT]:
        store.delete(path)


def _own(store: Store, run_id: str) -> list[str]:
    """Return the checkpoints written by ``write``, oldest first. Callbacks may keep others in the
    run's folder.
    """
    form = re.compile(re.escape(store.get_run_path(run_id)) + r"/epoch-\d+\.ckpt")
    return [path for path in store.get_checkpoints(run_id) if form.fullmatch(path)]


def last_of(store: Store, run_id: str) -> Checkpoint | None:
    """Return the last checkpoint of a run. Raises DataError if the last ones cannot be read."""
    errors = []
    for path in reversed(_own(store, run_id)):
        try:
            with zipfile.ZipFile(io.BytesIO(store.read(path))) as archive:
                facts = json.loads(archive.read("facts.json"))
                best = archive.read("best") if "best" in archive.namelist() else None
                return Checkpoint(**facts, state=archive.read("state"), best=best)
        except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
            errors.append(f"{path} is not a checkpoint of an estimator ({error})")
    if errors:
        raise DataError(f"{'; '.join(errors)}. Use another run_id, or remove the run's folder")
    return None
