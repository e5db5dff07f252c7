"""Models that accept only one number of rows, because they were exported with an example's shapes.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from farandole.base.types import Array


def fixed_rows(shapes: Iterable[Sequence[Any] | None]) -> int:
    """Return the common number of rows of all inputs and outputs; 0 if they accept any number, or
    differ.
    """
    lengths = {shape[0] if shape and isinstance(shape[0], int) else 0 for shape in shapes}
    return int(lengths.pop()) if len(lengths) == 1 else 0


def run_in_fixed_batches(
    compute: Callable[[dict[str, Array]], Any], inputs: Mapping[str, Array], rows: int
) -> Any:
    """Return ``compute``'s results for all rows of ``inputs``, from calls with ``rows`` rows each
    (0: a single call). The last part is padded by repeating its last row.
    """
    there = len(next(iter(inputs.values())))
    if not rows or there in (0, rows):
        return compute(dict(inputs))
    outputs = []
    for begin in range(0, there, rows):
        places = np.minimum(np.arange(begin, begin + rows), there - 1)
        outputs.append(compute({name: array[places] for name, array in inputs.items()}))
    return _joined(outputs, there)


def _joined(parts: Sequence[Any], rows: int) -> Any:
    first = parts[0]
    if isinstance(first, Mapping):
        return {name: _joined([part[name] for part in parts], rows) for name in first}
    if isinstance(first, (tuple, list)):
        return type(first)([_joined(several, rows) for several in zip(*parts, strict=True)])
    return np.concatenate(parts)[:rows]
