"""Analysis of bytecode: whether two calls in one function are alternatives.

Ranks that take different branches of an ``if`` call unnamed collectives from different lines, which
is not a mistake. Only the compiled function shows whether one pass can reach both lines. An error
in this analysis only suppresses or adds a warning.
"""

from __future__ import annotations

import dis
from bisect import bisect
from collections.abc import Sequence
from types import CodeType

_JUMPS = {*dis.hasjrel, *dis.hasjabs}
# instructions without a fall-through
_AWAY = ("RETURN", "RAISE", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE")


def alternatives(code: CodeType, one: int, other: int) -> bool:
    """Return whether a pass through ``code``, without going back in a loop, reaches at most one of
    two instructions.

    ``one`` and ``other``: offsets of the instructions or of their caches (where Python locates a
    call).
    """
    instructions = list(dis.get_instructions(code))
    offsets = [instruction.offset for instruction in instructions]
    places = [bisect(offsets, offset) - 1 for offset in (one, other)]
    first, second = min(places), max(places)
    return second not in _reached(instructions, first)


def _reached(instructions: Sequence[dis.Instruction], begin: int) -> set[int]:
    """Return the indices of the instructions that may run after the one at index ``begin``."""
    index = {instruction.offset: number for number, instruction in enumerate(instructions)}
    found: set[int] = set()
    left = [begin]
    while left:
        here = left.pop()
        if here in found or here == len(instructions):
            continue
        found.add(here)
        instruction = instructions[here]
        if instruction.opcode in _JUMPS and index.get(instruction.argval, 0) > here:
            left.append(index[instruction.argval])
        if not instruction.opname.startswith(_AWAY):
            left.append(here + 1)
    return found
