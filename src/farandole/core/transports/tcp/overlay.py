"""Which ranks the board of a rank is connected to. Pure.

Few ranks are all connected with each other: one latency. Many form a tree, in which each passes on
what it hears. Every subtree is a range of ranks, its root first: ranks of one host are near each
other in it, and the messages of a subtree are one run.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

# ranks up to which each is connected with each other: sending to more costs more than a tree's
# latencies
DIRECT = 32
# children of a rank in the tree: of 1,111 ranks the farthest is three steps from the root
FANOUT = 10


class Overlay(NamedTuple):
    """The place of ``rank`` among ``size``. ``beyond``: by neighbour, the number of ranks whose
    messages come from it. ``subtrees``: those that hold this rank, from the whole tree to its own;
    none where there is no tree.
    """

    rank: int
    size: int
    beyond: dict[int, int]
    subtrees: tuple[range, ...]

    @property
    def relays(self) -> bool:
        """Do ranks pass on messages?"""
        return bool(self.subtrees)

    def severed(self, gone: int) -> tuple[range, ...]:
        """The ranks that are out of reach when ``gone`` is."""
        if not self.relays:
            return (range(gone, gone + 1),)
        for above, below in pairwise(self.subtrees):
            if above.start == gone:
                return (range(below.start), range(below.stop, self.size))
        return (_descent(gone, self.size)[-1],)


def overlay(rank: int, size: int) -> Overlay:
    """The place of ``rank`` among ``size`` ranks; the same tree on all of them."""
    if size <= DIRECT:
        return Overlay(rank, size, {peer: 1 for peer in range(size) if peer != rank}, ())
    subtrees = _descent(rank, size)
    own = subtrees[-1]
    beyond = {child.start: len(child) for child in _children(own)}
    if len(subtrees) > 1:
        beyond[subtrees[-2].start] = size - len(own)
    return Overlay(rank, size, beyond, subtrees)


def _descent(rank: int, size: int) -> tuple[range, ...]:
    """The subtrees that hold ``rank``, from the whole tree to its own."""
    found = [range(size)]
    while found[-1].start != rank:
        found.append(next(child for child in _children(found[-1]) if rank in child))
    return tuple(found)


def _children(tree: range) -> list[range]:
    """The subtrees below the root of ``tree``, as even as can be."""
    rest = tree[1:]
    count = min(FANOUT, len(rest))
    cuts = [rest.start + len(rest) * index // count for index in range(count + 1)] if count else []
    return [range(start, stop) for start, stop in pairwise(cuts)]
