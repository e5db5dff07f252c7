"""The board connections of a rank. Pure.

Few ranks are all connected to each other, which costs one latency. Many ranks form a tree and
forward messages. Every subtree is a range of ranks that starts with its root. Ranks of one host are
therefore near each other, and equal messages of a subtree form one run.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

# up to this number, all ranks are connected: with more, sends cost more than a tree's latencies
DIRECT = 32
# children of a rank in the tree: with 1,111 ranks the farthest is three steps from the root
FANOUT = 10


class Overlay(NamedTuple):
    """The place of ``rank`` among ``size``.

    ``reachable``: for each neighbour, the number of ranks whose messages arrive through it.
    ``subtrees``: the subtrees that contain this rank, from the complete tree to its own; empty
    without a tree.
    """

    rank: int
    size: int
    reachable: dict[int, int]
    subtrees: tuple[range, ...]

    @property
    def relays(self) -> bool:
        """True if ranks forward messages."""
        return bool(self.subtrees)

    def severed(self, gone: int) -> tuple[range, ...]:
        """Return the ranks that become unreachable if ``gone`` is lost."""
        if not self.relays:
            return (range(gone, gone + 1),)
        for above, below in pairwise(self.subtrees):
            if above.start == gone:
                return (range(below.start), range(below.stop, self.size))
        return (_descent(gone, self.size)[-1],)


def overlay(rank: int, size: int) -> Overlay:
    """Return the place of ``rank`` among ``size`` ranks. All ranks compute the same tree."""
    if size <= DIRECT:
        return Overlay(rank, size, {peer: 1 for peer in range(size) if peer != rank}, ())
    subtrees = _descent(rank, size)
    own = subtrees[-1]
    reachable = {child.start: len(child) for child in _children(own)}
    if len(subtrees) > 1:
        reachable[subtrees[-2].start] = size - len(own)
    return Overlay(rank, size, reachable, subtrees)


def _descent(rank: int, size: int) -> tuple[range, ...]:
    """Return the subtrees that contain ``rank``, from the complete tree to its own."""
    found = [range(size)]
    while found[-1].start != rank:
        found.append(next(child for child in _children(found[-1]) if rank in child))
    return tuple(found)


def _children(tree: range) -> list[range]:
    """Return the subtrees below the root of ``tree``, as equal in size as possible."""
    rest = tree[1:]
    count = min(FANOUT, len(rest))
    cuts = [rest.start + len(rest) * index // count for index in range(count + 1)] if count else []
    return [range(start, stop) for start, stop in pairwise(cuts)]
