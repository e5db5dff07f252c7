"""Decomposition of nested containers, such as state dictionaries, into a skeleton and tensors, and
their reconstruction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Leaf(NamedTuple):
    """A placeholder for a tensor."""

    number: int


def take_apart(tree: Any, is_tensor: Callable[[Any], bool]) -> tuple[Any, list[Any]]:
    """Return the tree with a ``Leaf`` in place of each tensor, and the tensors. Searches dicts,
    lists and tuples.
    """
    tensors: list[Any] = []

    def walk(node: Any) -> Any:
        if is_tensor(node):
            tensors.append(node)
            return Leaf(len(tensors) - 1)
        return _rebuilt(node, walk)

    return walk(tree), tensors


def put_together(skeleton: Any, tensors: Sequence[Any]) -> Any:
    """Return the tree with its tensors, the inverse of ``take_apart``."""

    def walk(node: Any) -> Any:
        return tensors[node.number] if isinstance(node, Leaf) else _rebuilt(node, walk)

    return walk(skeleton)


def _rebuilt(node: Any, walk: Callable[[Any], Any]) -> Any:
    if isinstance(node, dict):
        return {key: walk(value) for key, value in node.items()}
    if isinstance(node, list):
        return [walk(value) for value in node]
    if isinstance(node, tuple):
        values = [walk(value) for value in node]
        return type(node)(*values) if hasattr(node, "_fields") else tuple(values)
    return node
