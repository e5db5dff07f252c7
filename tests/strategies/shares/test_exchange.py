"""The exchange of partial sums between ranks that are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from farandole.errors import HorovodInternalError
from farandole.strategies.shares.blocks import block
from farandole.strategies.shares.exchange import StepPlace, completed
from farandole.strategies.shares.tree import Node, TreeSum
from tests.kits.messages import mentioning


class Ranks:
    """Collectives of ``size`` threads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size)
        self._sent: list[Any] = [None] * size

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self._sent[rank] = value
        self._barrier.wait(10)
        found = list(self._sent)
        self._barrier.wait(10)
        return found

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(function, range(self.size)))


class Arrays:
    """Vectors of numpy. ``sent``: the bytes that this rank has sent to others."""

    def __init__(self, rank: int, ranks: Ranks) -> None:
        self._rank, self._ranks = rank, ranks
        self.sent = 0

    def add(self, left: Any, right: Any) -> Any:
        return np.add(left, right, out=left)

    def as_bytes(self, vector: Any) -> Any:
        return vector.view(np.uint8)

    def as_values(self, data: Any, like: Any) -> Any:
        assert data.ctypes.data % like.itemsize == 0
        return data.view(like.dtype)

    def concatenate(self, parts: Sequence[Any]) -> Any:
        return np.concatenate(parts)

    def numbers(self, values: Sequence[int]) -> Any:
        return np.array(values, np.int64).view(np.uint8)

    def read_numbers(self, data: Any) -> list[int]:
        found: list[int] = data.view(np.int64).tolist()
        return found

    def alltoall(self, data: Any, sizes: Sequence[int]) -> Any:
        pieces = np.split(data, np.cumsum(sizes)[:-1])
        self.sent += sum(map(len, pieces)) - len(pieces[self._rank])
        return np.concatenate(
            [found[self._rank] for found in self._ranks.exchange(self._rank, pieces)]
        )

    def allgather(self, data: Any) -> Any:
        self.sent += len(data) * (self._ranks.size - 1)
        return np.concatenate(self._ranks.exchange(self._rank, data))


def gradient(share: int) -> list[Any]:
    """Two vectors with values that are rounded when they are added."""
    chance = np.random.default_rng(share)
    return [
        chance.standard_normal(24).astype(np.float32),
        chance.standard_normal(8).astype(np.float16),
    ]


def add(left: list[Any], right: list[Any]) -> list[Any]:
    return [one + other for one, other in zip(left, right, strict=True)]


def summed(size: int, total: int, steps: Sequence[int] = (), digests: Sequence[int] = ()) -> Any:
    """The sums on each rank, rank 0's bytes, and the bytes sent."""
    ranks = Ranks(size)

    def work(rank: int) -> Any:
        own = block(rank, size, total)
        tree: TreeSum[list[Any]] = TreeSum(total, add)
        for share in range(own.begin, own.end):
            tree.put(Node(0, share), gradient(share))
        step = steps[rank] if steps else 3
        digest = digests[rank] if digests else 5
        vectors = Arrays(rank, ranks)
        place = StepPlace(rank, size, total, step, digest)
        sums, first = completed(dict(tree.parts()), np.full(16, rank + 1, np.uint8), place, vectors)
        return [vector.tobytes() for vector in sums], first.tolist(), vectors.sent

    return ranks.run(work)


@pytest.mark.parametrize("total", [1, 2, 5, 8])
def test_sums_have_the_same_bits_for_any_number_of_ranks(total: int) -> None:
    ((expected, _, _),) = summed(1, total)
    for size in range(2, total + 1):
        for bits, first, _ in summed(size, total):
            assert bits == expected
            assert first == [1] * 16


def test_a_block_that_is_one_node_sends_no_more_than_a_ring() -> None:
    nbytes = 24 * 4 + 8 * 2
    for size in (2, 4, 8):
        for _, _, sent in summed(size, 8)[1:]:  # rank 0 also sends its own bytes
            ring = 2 * nbytes * (size - 1) / size
            assert sent <= ring + (size - 1) * 16 * 3  # headers, and slices of whole units


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"steps": [3, 4]}, ("step 3", "step 4", "rank 1")),
        ({"digests": [5, 6]}, ("ranks", "model")),
    ],
)
def test_ranks_in_different_steps_get_an_error(
    options: dict[str, Any], says: tuple[str, ...]
) -> None:
    with pytest.raises(HorovodInternalError, match=mentioning(*says)):
        summed(2, 2, **options)
