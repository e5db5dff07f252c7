"""The order over blocks, the same for any number of ranks and from any place on; and how many rows
a step has.
"""

from __future__ import annotations

import numpy as np
import pytest

from farandole.data.order import Order, ahead_for, lanes_for
from farandole.data.steps import EVEN, Steps


def whole(order: Order, blocks: list[int]) -> list[int]:
    """Return the order as row numbers of the files, by lane and step."""
    starts = np.cumsum([0, *blocks])
    lanes = []
    for lane in range(order.lanes):
        pieces = order.pieces(lane)
        lanes.append(
            [int(starts[piece.block] + row) for piece in pieces for row in order.rows_of(piece)]
        )
    return [lanes[place % order.lanes][place // order.lanes] for place in range(order.rows)]


def taken(order: Order, blocks: list[int], begin: int, rank: int, size: int) -> list[int]:
    """Return a rank's rows, by its strands."""
    starts = np.cumsum([0, *blocks])
    found: dict[int, int] = {}
    for strand in order.strands(begin, rank, size):
        place = strand.place
        for piece in order.pieces(strand.lane, strand.first):
            rows = order.rows_of(piece)
            skipped = max(strand.first, piece.step) - strand.first
            step = strand.first + -(-skipped // strand.stride) * strand.stride
            for row in rows[step - piece.step :: strand.stride]:
                found[place] = int(starts[piece.block] + row)
                place += strand.period
    assert sorted(found) == list(range(len(found)))
    return [found[place] for place in sorted(found)]


BLOCKS = [5, 1, 9, 0, 7, 3, 8, 2, 6, 4, 11, 1]


@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 12])
def test_ranks_take_turns_in_one_permutation(lanes: int) -> None:
    order = Order(BLOCKS, lanes, seed=3, epoch=1)
    expected = whole(order, BLOCKS)
    assert sorted(expected) == list(range(sum(BLOCKS)))
    for size in (1, 2, 3, 5, 6, 8, 60):
        for begin in (0, 1, 17, sum(BLOCKS) - 1):
            for rank in {0, 1, size - 1} & {*range(size)}:
                assert taken(order, BLOCKS, begin, rank, size) == expected[begin + rank :: size]
    assert all(
        expected[place] == sum(BLOCKS[:block]) + row
        for place in (0, 9, 56)
        for block, row in [order.find(place)]
    )


def test_every_seed_and_epoch_has_its_own_order() -> None:
    orders = [
        whole(Order(BLOCKS, 3, seed, epoch), BLOCKS)
        for seed, epoch in ((0, 0), (0, 1), (1, 0), (1 << 40, 0))
    ]
    assert len({tuple(order) for order in orders}) == 4
    assert whole(Order(BLOCKS, 3, 0, 0), BLOCKS) == orders[0]
    assert whole(Order([7, 5], 4, 0, 0, shuffle=False), [7, 5]) == list(range(12))


def test_the_order_is_the_same_tomorrow() -> None:
    """Training that continues with a different version of numpy, or of Farandole, has the same
    order.
    """
    order = [3, 10, 1, 11, 0, 9, 2, 8, 7, 14, 5, 15, 4, 13, 6, 12]
    assert whole(Order([4, 4, 4, 4], 2, seed=1, epoch=0), [4] * 4) == order


def test_a_rank_reads_lanes_of_its_own_where_ranks_divide_them() -> None:
    order = Order([10] * 48, 12, 0, 0)
    lanes = [{strand.lane for strand in order.strands(0, rank, 4)} for rank in range(4)]
    assert sorted(lane for each in lanes for lane in each) == list(range(12))


def test_lanes_fit_into_memory_and_have_blocks_enough() -> None:
    assert lanes_for(blocks=1000, largest=4, memory=1000) == 48
    assert lanes_for(blocks=1000, largest=100, memory=1000) == 6
    assert lanes_for(blocks=50, largest=1, memory=1000) == 12
    assert lanes_for(blocks=3, largest=1, memory=1000) == 1
    assert lanes_for(blocks=1000, largest=5000, memory=1000) == 1


def test_read_ahead_fits_into_memory() -> None:
    assert ahead_for(threads=2, lanes=48, largest=4, memory=1000) == 48
    assert ahead_for(threads=2, lanes=48, largest=16, memory=1000) == 14
    assert ahead_for(threads=2, lanes=1, largest=4, memory=1000) == 4
    assert ahead_for(threads=4, lanes=2, largest=250, memory=1000) == 2
    assert ahead_for(threads=2, lanes=1, largest=5000, memory=1000) == 1, (
        "reading goes on while training computes"
    )
    assert ahead_for(threads=0, lanes=1, largest=1, memory=1000) == 0


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("batch", [1, 4])
def test_all_ranks_have_equally_many_steps_and_each_row_once(size: int, batch: int) -> None:
    for left in range(60):
        for even in EVEN:
            deals = [Steps(left, batch, rank, size, even) for rank in range(size)]
            count = deals[0].count
            assert {deal.count for deal in deals} == {count}
            for step in range(count):
                of_all = [deal[step] for deal in deals]
                assert {each.all_rows for each in of_all} == {sum(each.rows for each in of_all)}
                assert all(1 <= max(each.rows, 1) <= each.length for each in of_all)
                assert deals[0].done(step + 1) - deals[0].done(step) == of_all[0].all_rows
            total = sum(deal.rows for deal in deals)
            assert (
                total
                == deals[0].done(count)
                == (left // (batch * size) * batch * size if even == "drop" else left)
            )
            lengths = {deal[step].length for deal in deals for step in range(count)}
            if even != "exact":
                assert lengths <= {batch}
            elif left >= size:
                assert all(
                    deal[step].rows == deal[step].length for deal in deals for step in range(count)
                )
                assert all(length <= batch + 1 for length in lengths)
