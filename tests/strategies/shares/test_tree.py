"""Sums in the order of one tree, for any division of the shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farandole.strategies.shares.blocks import Shares, block
from farandole.strategies.shares.streams import stream
from farandole.strategies.shares.tree import Node, TreeSum, nodes
from tests.kits.messages import mentioning


def test_blocks_are_contiguous_and_complete() -> None:
    for total in range(1, 20):
        for size in range(1, total + 1):
            found = [block(rank, size, total) for rank in range(size)]
            assert [one.begin for one in found] == [0, *(one.end for one in found[:-1])]
            assert found[-1].end == total
            assert {one.held for one in found} <= {total // size, total // size + 1}
    assert block(0, 3, 8) == Shares(8, 0, 3)


@pytest.mark.parametrize(("rank", "size"), [(0, 5), (2, 2), (-1, 2)])
def test_a_rank_without_a_share_is_refused(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match=mentioning(f"rank {rank}", str(size), "--max-np")):
        block(rank, size, 4)


@pytest.mark.parametrize(
    ("begin", "end", "total", "expected"),
    [
        (0, 8, 8, [(3, 0)]),
        (0, 3, 8, [(1, 0), (0, 2)]),
        (3, 6, 8, [(0, 3), (1, 2)]),
        (1, 7, 8, [(0, 1), (1, 1), (1, 2), (0, 6)]),
        (4, 5, 5, [(2, 1)]),  # the last share has no sibling, so it is the whole right half
        (0, 1, 1, [(0, 0)]),
    ],
)
def test_a_block_is_a_few_nodes(
    begin: int, end: int, total: int, expected: list[tuple[int, int]]
) -> None:
    assert nodes(range(begin, end), total) == [Node(*each) for each in expected]


def test_a_block_has_at_most_two_nodes_a_level() -> None:
    for total in range(2, 40):
        for begin in range(total):
            for end in range(begin + 1, total + 1):
                assert len(nodes(range(begin, end), total)) <= 2 * (total - 1).bit_length()


def plain_sum(values: list[np.float32]) -> np.float32:
    """The sum over a tree, by its definition."""
    if len(values) == 1:
        return values[0]
    half = 1 << ((len(values) - 1).bit_length() - 1)
    return plain_sum(values[:half]) + plain_sum(values[half:])


@settings(max_examples=500)
@given(st.data())
def test_any_partition_gives_the_same_bits(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 24))
    values = [np.float32(data.draw(st.floats(-1e6, 1e6, width=32))) for _ in range(total)]
    cuts = sorted(data.draw(st.sets(st.integers(1, total - 1)))) if total > 1 else []
    whole: TreeSum[np.float32] = TreeSum(total, lambda left, right: left + right)
    for begin, end in zip([0, *cuts], [*cuts, total], strict=True):
        part: TreeSum[np.float32] = TreeSum(total, lambda left, right: left + right)
        for share in data.draw(st.permutations(range(begin, end))):
            part.put(Node(0, share), values[share])
        assert [node for node, _ in part.parts()] == nodes(range(begin, end), total)
        for node, value in part.parts():
            whole.put(node, value)
    assert whole.result().tobytes() == plain_sum(values).tobytes()


def test_an_incomplete_sum_has_no_result() -> None:
    tree: TreeSum[int] = TreeSum(4, lambda left, right: left + right)
    tree.put(Node(1, 0), 1)
    with pytest.raises(ValueError, match=mentioning("4", "level=1")):
        tree.result()
    tree.put(Node(1, 1), 2)
    assert tree.result() == 3


def test_streams_differ_in_every_number() -> None:
    found = {stream(a, b, c) for a in range(10) for b in range(10) for c in range(10)}
    assert len(found) == 1000
    assert stream(1, 2) != stream(2, 1)
    assert stream(7, 0, 3) == stream(7, 0, 3) < 1 << 64
