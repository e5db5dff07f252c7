"""The mirror ``tensorboard``: an event file in ``tensorboard/`` of the run's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from farandole.errors import RunError
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.states import RunState
from farandole.jobs.mirrors.contract import Point


class TensorBoardMirror:
    """Scalars, and parameters as text. Each process writes its own file."""

    name: ClassVar[str] = "tensorboard"

    def __init__(self, folder: RunFolder, state: Mapping[str, Any]) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise RunError(
                f"the mirror tensorboard needs tensorboardX ({error}): pip install tensorboardX"
            ) from None
        self._writer = SummaryWriter(folder.folder("tensorboard"), flush_secs=1)
        if parameters := folder.spec().parameters:
            self.params(parameters)

    def state(self) -> Mapping[str, Any]:
        return {}

    def points(self, points: Sequence[Point]) -> None:
        for each in points:
            self._writer.add_scalar(each.name, each.value, each.step, walltime=each.time)
        self._writer.flush()

    def params(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self._writer.add_text(f"params/{name}", str(value))
        self._writer.flush()

    def end(self, state: RunState) -> None:
        self._writer.add_text("state", state.value)
        self._writer.close()
