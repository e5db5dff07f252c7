"""Exchanges of weights with neighbours: an alltoall in which each rank sends to a few others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.base.digests import digest_of_text
from farandole.base.types import Buffer, DType, Kind, Request
from farandole.checks.consistency import check_same_weights, describe_weights, label_of
from farandole.core.engine import Engine, Entry
from farandole.errors import JoinedError
from farandole.strategies.gossip.copies import cut, joined

if TYPE_CHECKING:
    from farandole.base.types import Array


class NeighbourExchange:
    """Exchanges of one optimizer's weights.

    - ``name``: The optimizer's name, the same on all ranks.
    - ``ranks``: The engine's ranks as numbers in the job.
    - ``spec``: The strategy's spec, for messages.
    """

    def __init__(self, engine: Engine, name: str, ranks: Sequence[int], spec: str) -> None:
        self._engine = engine
        self._name = name
        self._ranks = ranks
        self._spec = spec
        self._compared = False  # whether the ranks' weights were compared
        self._digested: tuple[Any, Array] | None = None  # the last weights and their digest

    def swap(
        self, arrays: Sequence[Array], to: Sequence[int], names: Sequence[str]
    ) -> dict[int, list[Array]]:
        """See ``contracts.Peers.swap``. ``names``: the names of the arrays."""
        self.compare(arrays, names)
        messages = self.send(joined(arrays), to, arrays, names)
        return {rank: cut(message, arrays) for rank, message in messages.items()}

    def compare(self, arrays: Sequence[Array], names: Sequence[str]) -> None:
        """Raise ValueError on all ranks if their weights differ. The first call is collective;
        later ones do nothing.
        """
        if not self._compared:  # equal message sizes do not prove equal weights
            self._compared = True
            check_same_weights(self._engine, self._name, self._ranks, arrays, names)

    def send(
        self, content: Array, to: Sequence[int], arrays: Sequence[Array], names: Sequence[str]
    ) -> dict[int, Array]:
        """Send ``content`` (uint8) for the weights ``arrays`` to the ranks ``to``. Return the
        received messages by rank. Raises ValueError for a message with different weights.
        """
        head = self._digest(arrays, names)
        size = head.size + content.size
        flat = np.tile(np.concatenate([head, content]), len(to))
        request = Request(
            f"{self._name}.swap",
            Kind.ALLTOALL,
            DType.UINT8,
            flat.shape,
            splits=tuple(size if rank in to else 0 for rank in range(self._engine.size)),
        )
        try:
            ((received, counts),) = self._engine.run(
                [Entry(request, Buffer(flat, flat, DType.UINT8))]
            )
        except JoinedError:
            raise JoinedError(
                f"strategy={self._spec!r} needs the weights of all ranks, but a rank has called"
                " join(). Run the same number of steps on all ranks, or use local_sgd, easgd, ps"
                " or gossip_async, which continue without the rank"
            ) from None
        messages = {}
        for rank, (count, end) in enumerate(zip(counts, np.cumsum(counts), strict=True)):
            if not count:
                continue
            begin = end - count + head.size
            if not np.array_equal(received[end - count : begin], head):
                raise ValueError(
                    f"{label_of(self._name)}: rank {self._ranks[rank]} sent weights that do not"
                    f" match rank {self._ranks[self._engine.rank]}'s: {_listed(names)}. Add, freeze"
                    " and unfreeze parameters in the same step on all ranks"
                )
            messages[rank] = received[begin:end]
        return messages

    def _digest(self, arrays: Sequence[Array], names: Sequence[str]) -> Array:
        """Return 8 bytes that identify the weights' names, shapes and dtypes."""
        key = tuple(names), tuple((array.shape, array.dtype) for array in arrays)
        if self._digested is None or self._digested[0] != key:
            digest = digest_of_text(describe_weights(arrays, names))
            self._digested = key, np.array([digest]).view(np.uint8)
        return self._digested[1]


def move_to_mean(
    arrays: Sequence[Array], received: Mapping[int, Sequence[Array]], gamma: float = 1.0
) -> None:
    """Move each array by ``gamma`` of its distance to the mean of itself and the received
    arrays.
    """
    if gamma != 1.0:
        move_by_differences(arrays, arrays, received, gamma)
        return
    for place, array in enumerate(arrays):
        for rank in sorted(received):
            array += received[rank][place]
        np.divide(array, len(received) + 1, out=array)


def move_by_differences(
    arrays: Sequence[Array],
    own: Sequence[Array],
    received: Mapping[int, Sequence[Array]],
    gamma: float,
) -> None:
    """Move each array by ``gamma`` of the difference between ``own`` and the mean of ``own`` and
    the received arrays.
    """
    for place, array in enumerate(arrays):
        differences = (received[rank][place] - own[place] for rank in sorted(received))
        array += array.dtype.type(gamma / (len(received) + 1)) * sum(
            differences, np.zeros_like(array)
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (" ..." if len(names) > 4 else "")
