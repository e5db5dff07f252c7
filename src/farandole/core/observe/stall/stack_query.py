"""Asks ranks what they do and where their programs are.

``StoreQuery`` asks through the job's store, ``DirectQuery`` over a connection to the rank itself,
for groups of torch.distributed: they may exist without a job's store. Questions, answers and what
is known of a silent rank are the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from farandole.base.contracts import Waiting

if TYPE_CHECKING:
    from farandole.core.observe.stall.stacks import Frame


class Answer(NamedTuple):
    """A rank's activity. ``silent``: why it does not answer, empty if it does. ``waits``: names of
    collectives that others stay away from; ``stuck``: of one that has begun and does not go on, for
    it waits for the ranks ``awaited``. ``seconds``: for how long. ``stack``: the user's frames of
    the main thread, the innermost last.
    """

    silent: str = ""
    waits: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
    awaited: tuple[int, ...] = ()
    stack: tuple[Frame, ...] = ()
    seconds: float = 0.0


class StackQuery(Protocol):
    """One rank's side of the queries: its thread answers, and it may ask. ``ranks``: all that can
    be asked.
    """

    ranks: Sequence[int]

    def ask(self, ranks: Sequence[int], seconds: float) -> dict[int, Answer]:
        """Return the answers of these ranks within ``seconds``. Ranks about which nothing is known
        are left out.
        """

    def close(self) -> None: ...


def encode_own_answer(waiting: Sequence[Waiting]) -> bytes:
    """Encode this rank's answer, given its waiting collectives."""
    from farandole.core.observe.stall import stacks  # here: most jobs never stall

    waiting = [wait for wait in waiting if wait.missing]
    fields = {
        "waits": [wait.name for wait in waiting if not wait.inside],
        "stuck": [wait.name for wait in waiting if wait.inside],
        "awaited": sorted({rank for wait in waiting if wait.inside for rank in wait.missing}),
        "stack": stacks.users(),
        "seconds": max((wait.seconds for wait in waiting), default=0.0),
    }
    return json.dumps(fields).encode()


def decode_answer(content: bytes | bytearray) -> Answer:
    """Decode the answer of another rank."""
    from farandole.core.observe.stall.stacks import Frame  # here: as above

    fields = json.loads(content)
    return Answer(
        waits=tuple(fields["waits"]),
        stuck=tuple(fields["stuck"]),
        awaited=tuple(fields["awaited"]),
        stack=tuple(Frame(*frame) for frame in fields["stack"]),
        seconds=fields["seconds"],
    )
