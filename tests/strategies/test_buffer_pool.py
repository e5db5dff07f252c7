"""Memory that is lent until it is released."""

from __future__ import annotations

from typing import Any

import numpy as np

from farandole.strategies.buffer_pool import ALIGNMENT, BufferPool


def place(array: Any) -> int:
    return int(array.ctypes.data)


def test_memory_comes_back_when_the_last_view_goes() -> None:
    lending, memory = BufferPool(), np.zeros(4096, np.uint8)
    lending.add(memory)
    lent, wanting = lending.lend(4096, 0)
    assert place(lent) == place(memory)
    assert not wanting
    view = lent[64:128].view(np.float32).reshape(4, 4)[1]
    del lent
    other, wanting = lending.lend(4096, 0)
    assert wanting  # a second piece would have helped
    assert not np.shares_memory(other, memory)
    assert place(other) % ALIGNMENT == 0
    del view
    assert place(lending.lend(4096, 0)[0]) == place(memory)


def test_two_pieces_take_turns_and_no_third_is_wanted() -> None:
    lending, pieces = BufferPool(), [np.zeros(4096, np.uint8) for _ in range(2)]
    for piece in pieces:
        lending.add(piece)
    assert [place(lending.lend(100, turn)[0]) for turn in range(4)] == [
        place(pieces[turn % 2]) for turn in range(4)
    ]
    kept = [lending.lend(100, turn) for turn in range(4)]
    assert [wanting for _, wanting in kept] == [False] * 4
    assert not any(np.shares_memory(one, piece) for one, _ in kept[2:] for piece in pieces)


def test_buffers_too_small_are_not_lent() -> None:
    lending = BufferPool()
    assert lending.lend(10, 0)[1]
    small, large = np.zeros(1000, np.uint8), np.zeros(9000, np.uint8)
    lending.add(large)
    lending.add(small)
    for turn in range(4):
        lent, wanting = lending.lend(5000, turn)
        assert place(lent) == place(large)
        assert not wanting
        del lent
    lending.add(np.zeros(9000, np.uint8))  # the small one goes
    assert {place(lending.lend(10, turn)[0]) for turn in range(4)}.isdisjoint({place(small)})
