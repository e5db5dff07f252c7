"""Merging several batches into one, for ranks with several shares of a fixed global batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from farandole.errors import SettingsError


def rows_of(batch: Any, flatten: Callable[[Any], list[Any]]) -> int:
    """Return the number of rows of ``batch``, a container of arrays or tensors.

    ``flatten``: Keras's function for nested containers.
    """
    return next(int(leaf.shape[0]) for leaf in flatten(batch) if getattr(leaf, "shape", ()))


def joined(
    batches: Sequence[Any],
    rows: int,
    pack: Callable[..., Any],
    concatenate: Callable[[Sequence[Any]], Any],
    take: Callable[[Any, Any], Any],
) -> Any:
    """Return ``batches`` as one. A batch with fewer than ``rows`` rows repeats its rows, so that
    all batches have the same weight.

    ``pack``: Keras's ``map_structure``. ``concatenate``: joins arrays or tensors by rows.
    ``take``: ``take(leaf, indices)`` returns rows. Raises SettingsError for a larger batch.
    """

    def join(*leaves: Any) -> Any:
        if leaves[0] is None:
            return None
        return concatenate([_filled(leaf, rows, take) for leaf in leaves])

    return pack(join, *batches)


def _filled(leaf: Any, rows: int, take: Callable[[Any, Any], Any]) -> Any:
    count = int(leaf.shape[0])
    if count > rows:
        raise SettingsError(
            f"a batch of {count} rows follows a first batch of {rows}. With --fixed-global-batch no"
            " batch may be larger than the first"
        )
    return leaf if count == rows else take(leaf, np.arange(rows) % count)
