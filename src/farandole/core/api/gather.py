"""``gather``: an alltoall with a single receiving rank. Its gradient is the framework's gradient of
that alltoall.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farandole.core.api.documented import collective
from farandole.core.api.ops import ELSEWHERE, WORLD, engine_of, place_of
from farandole.errors import RequestError, counted
from farandole.job.context import ProcessSet


def _rows(tensor: Any) -> Any:
    shape: Any = getattr(tensor, "shape", ())
    return shape[0] if len(shape) else 0  # the alltoall reports the error


def gather_by(
    alltoall: Callable[..., Any], rows: Callable[[Any], Any] = _rows
) -> Callable[..., Any]:
    """Return the ``gather`` of a framework with this ``alltoall``. ``rows(tensor)`` returns the
    number of rows.
    """

    @collective(
        "rows",
        "root",
        root_rank="rank that receives the rows, by its number among all ranks, also for a set.",
        example=(
            "rows = hvd.gather(predictions, root_rank=0)\nif hvd.rank() == 0:\n   "
            " print(rows.shape)"
        ),
    )
    def gather(
        tensor: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = WORLD
    ) -> Any:
        """Return every rank's rows on ``root_rank``, concatenated in rank order; no rows on other
        ranks.

        The tensor needs at least one dimension. The first one may differ between ranks; the other
        dimensions and the type must be the same.
        """
        size = engine_of(process_set, "Gather").size
        root = place_of(root_rank, process_set, "gather")
        if not 0 <= root < size:
            raise RequestError(
                f"gather received invalid root rank {root_rank} for provided process set of"
                f" {counted(size, 'rank')}: use one of 0 to {size - 1}"
            )
        # so that the ranks compare roots, even without rows
        splits = [ELSEWHERE] * size
        splits[root] = rows(tensor)
        label = None if name is None else f"gather.{name}"
        received: Any = alltoall(tensor, splits, name=label, process_set=process_set)[0]
        return received

    return gather
