"""Faults in elastic trainings of estimators. Ranks import this module, which loads no framework."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from farandole.estimators import LocalBackend

RATE = 0.01  # with which each epoch improves for any number of ranks


def begin(folder: Path, epoch: int, rank: int, size: int) -> bool:
    """End rank 1 in its third epoch. Return whether the training may end, because a new rank has
    joined. ``folder`` gets a file with the size of the job in each epoch.
    """
    killed = folder / "killed"
    (folder / f"{epoch}.{size}").touch()
    if epoch == 2 and rank == 1 and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if killed.exists() and size == 1:
        time.sleep(0.1)  # for fewer epochs until the new rank takes part
    return killed.exists() and size == 2 and epoch > 2


def backend() -> LocalBackend:
    return LocalBackend(2, env={"OMP_NUM_THREADS": "1"}, min_np=1, max_np=2)


def sizes(folder: Path) -> set[str]:
    """Return the begun epochs with the sizes of the job, such as ``2.1``."""
    return {path.name for path in folder.glob("*.*")}


def check(folder: Path, found: Any, expected: Any) -> None:
    """Check the losses of all epochs: the first two equal an undisturbed training."""
    begun = sizes(folder)
    assert {"0.2", "1.2", "2.2", "2.1", f"{len(found) - 1}.2"} <= begun
    assert {int(name.split(".")[0]) for name in begun} == set(range(len(found)))
    np.testing.assert_allclose(found[:2], expected[:2], rtol=1e-4)
    assert found[-1] < found[2]
