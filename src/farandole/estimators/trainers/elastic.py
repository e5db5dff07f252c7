"""Training of an estimator in an elastic job.

The state is the checkpoint of the last epoch, in the memory of every rank. When ranks are lost or
added, all ranks resume after that epoch, with the checkpoint's model and with the rows divided
among the current ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import farandole.numpy as hvd
from farandole.core.api import elastic
from farandole.core.api.state import ObjectState
from farandole.data.shares import refuse_shares
from farandole.estimators.checkpoint import Checkpoint
from farandole.estimators.spec import Result, Spec
from farandole.job.report import pickling


class EpochState(ObjectState):
    """The state of a training: the checkpoint of the last completed epoch; None before the
    first.
    """

    checkpoint: Checkpoint | None

    def __init__(self) -> None:
        super().__init__(checkpoint=None)

    def keep(self, checkpoint: Checkpoint) -> None:
        """Commit a checkpoint, which is equal on all ranks.

        Collective. Raises HostsUpdatedInterrupt before ranks change.
        """
        self.checkpoint = checkpoint
        self.commit()


def train_elastic(train: Callable[[Spec], Result | None], spec: bytes) -> Result | None:
    """Return ``train(spec)``, which is called again whenever the ranks have changed.

    Each call gets a new copy of the pickled ``spec``, because a training changes its model. Raises
    SettingsError in a job with a fixed global batch.
    """

    @elastic.run
    def attempt(state: Any) -> Result | None:
        unpacked: Spec = pickling.unpack(spec)
        return train(unpacked._replace(kept=state))

    hvd.init()
    refuse_shares("an estimator")
    result: Result | None = attempt(EpochState())
    return result
