"""Sums over shares in the order of one binary tree. Pure.

The leaves of the tree are the shares, padded to a power of two. Node i of level l covers shares i *
2^l to (i + 1) * 2^l - 1, and its sum is the sum of its left half plus the sum of its right half; a
half without shares adds nothing. The order of all additions depends only on the number of shares,
so floating point sums have the same bits regardless of the ranks that compute the shares. A block
of consecutive shares becomes at most 2 log2(V) nodes: the largest ones that it fills. This is the
pairwise summation of Higham, "The Accuracy of Floating Point Summation", SIAM J. Sci. Comput. 14
(1993), which also keeps rounding errors small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Node(NamedTuple):
    """A node of the tree. ``level``: 0 for a share. ``number``: its index within the level."""

    level: int
    number: int

    @property
    def first(self) -> int:
        """The first share that the node covers."""
        return self.number << self.level


class TreeSum(Generic[T]):
    """A sum over ``total`` shares. Shares and nodes may be added in any order.

    ``add``: returns the sum of a left and a right half, and may reuse the memory of the left one.
    """

    def __init__(self, total: int, add: Callable[[T, T], T]) -> None:
        self.total = total
        self._add = add
        self._parts: dict[Node, T] = {}

    def put(self, node: Node, value: T) -> None:
        """Add the sum of a node, which no node added before may overlap, and complete all nodes
        above it whose halves are known.
        """
        while (1 << node.level) < self.total:
            sibling = Node(node.level, node.number ^ 1)
            if sibling.first < self.total:
                other = self._parts.pop(sibling, None)
                if other is None:
                    break
                value = self._add(other, value) if node.number & 1 else self._add(value, other)
            node = Node(node.level + 1, node.number >> 1)
        self._parts[node] = value

    def parts(self) -> Iterator[tuple[Node, T]]:
        """Yield the largest complete nodes and their sums, in the order of their shares."""
        yield from sorted(self._parts.items(), key=lambda part: part[0].first)

    def result(self) -> T:
        """Return the sum over all shares. Raises ValueError if some are missing."""
        ((node, value),) = self._parts.items() if len(self._parts) == 1 else ((None, None),)
        if node is None or value is None or (1 << node.level) < self.total:
            raise ValueError(
                f"the sum over {self.total} shares is incomplete: only the nodes"
                f" {sorted(self._parts)} are known. Add all shares first"
            )
        return value


def nodes(shares: Iterable[int], total: int) -> list[Node]:
    """Return the largest nodes that consist of ``shares``, in their order."""
    tree: TreeSum[bool] = TreeSum(total, lambda left, right: True)
    for share in shares:
        tree.put(Node(0, share), True)
    return [node for node, _ in tree.parts()]
