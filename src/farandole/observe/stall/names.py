"""Collectives that the program did not name itself, called after what it did."""

from __future__ import annotations

import re
from collections.abc import Iterable

MOST = 6  # names in one text
_INTERNAL = [
    (re.compile(r"allocate\.optimizer\..*|optimizer\.\d+\..*"), "gradients of DistributedOptimizer"),
    (re.compile(r"process_set\.(add|remove)\.\d+"), r"\1_process_set"),
    (re.compile(r"broadcast\.arrays"), "broadcast of variables"),
    (re.compile(r"broadcast\.optimizer_state\.\d+"), "broadcast_optimizer_state"),
    (re.compile(r"parameters\.\d+\..*"), "broadcast_parameters"),
    (re.compile(r"allreduce\.any"), "a callback's question to all ranks"),
    (re.compile(r"native\.(.*)"), r"the collectives of a JAX program (\1)"),
    (re.compile(r"(?:allocate\.)?(Distributed\w+)[._].*"), r"gradients of \1"),
    (re.compile(r"(\w+)(\.\d+)?\.(digest|equal)"), r"gradients of \1"),
    (re.compile(r"allocate\..*"), "memory for gradients"),
]


def listed(names: Iterable[str]) -> str:
    """At most ``MOST`` of ``names``, as they are shown, once each."""
    return ", ".join(list(dict.fromkeys(map(shown, names)))[:MOST])


def shown(name: str) -> str:
    """``name`` if the program can know it, else what it stands for."""
    for pattern, text in _INTERNAL:
        found = pattern.fullmatch(name)
        if found:
            return found.expand(text)
    return name
