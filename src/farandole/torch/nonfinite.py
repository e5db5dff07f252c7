"""The first step that makes weights NaN: the rank whose own gradient did it says so.

After the reduction all ranks have that NaN, and nobody knows from where.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from farandole.base.log import logger
from farandole.errors import RanksDifferError
from farandole.job import context

Named = Sequence[tuple[str, Any]]


class Spoilt:
    """Of one optimizer. ``parameters``: those of ``BucketReducer.unfit``, by its numbers."""

    def __init__(self, parameters: Named) -> None:
        self._parameters = parameters
        self._doubtful: int | None = None  # has a gradient that is not finite, but was so itself

    def before_step(self, unfit: int | None) -> None:
        """The gradient of parameter ``unfit`` is not finite on this rank (None: all are)."""
        self._doubtful = unfit if unfit is not None and self._finite(unfit) else None

    def after_step(self, step: int) -> None:
        """Raises RanksDifferError with ``--check raise``."""
        index, self._doubtful = self._doubtful, None
        mode = context.settings().check
        # finite: the program has seen to it
        if index is None or mode == "off" or self._finite(index):
            return
        text = (
            f"the gradient of {self._parameters[index][0]!r} that this rank computed for step"
            f" {step} is NaN or infinite, and so are the weights of all ranks now, which were"
            " finite before. Look at the rows and the loss of this rank in that step"
            " (torch.autograd.set_detect_anomaly(True) names the operation). If all ranks say"
            " this, the learning rate may be too high"
        )
        if mode == "raise":
            raise RanksDifferError(text)
        logger.warning(text)

    def _finite(self, index: int) -> bool:
        weights = self._parameters[index][1].detach()
        return bool(torch.isfinite(weights[(0,) * weights.ndim]))
