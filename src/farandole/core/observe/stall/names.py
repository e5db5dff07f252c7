"""Readable names for the program's unnamed collectives."""

from __future__ import annotations

import re
from collections.abc import Iterable

MOST = 6  # maximum number of names in a list
_INTERNAL = [  # patterns, compiled when the first collective stalls
    (r"(?:allocate\.)?optimizer\.(\d+)(?:\..*)?", r"gradients of DistributedOptimizer \1"),
    (r"process_set\.(add|remove)\.\d+", r"\1_process_set"),
    (r"broadcast\.arrays", "broadcast of variables"),
    (r"broadcast\.optimizer_state\.\d+(?:\.\d+)?", "broadcast_optimizer_state"),
    (r"parameters\.\d+\..*", "broadcast_parameters"),
    (r"allreduce\.any", "a callback's question to all ranks"),
    (r"native\.(.*)", r"the collectives of a JAX program (\1)"),
    (r"(Distributed\w+)\.weights\..*", r"weights of \1"),
    (r"(?:allocate\.)?(Distributed\w+)[._].*", r"gradients of \1"),
    (r"(\w+)(\.\d+)?\.(digest|equal)", r"gradients of \1"),
    (r"allocate\..*", "memory for gradients"),
]


def listed(names: Iterable[str]) -> str:
    """Return up to ``MOST`` distinct ``names`` as text."""
    return ", ".join(list(dict.fromkeys(map(shown, names)))[:MOST])


def shown(name: str) -> str:
    """Return ``name`` if the program chose it, else a description of the call."""
    for pattern, text in _INTERNAL:
        found = re.fullmatch(pattern, name)
        if found:
            return found.expand(text)
    return name
