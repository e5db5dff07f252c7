"""Queries for the ranks' activities and stacks.

``StoreQuery`` uses the job's store; ``DirectQuery`` uses a connection to each rank, for groups of
torch.distributed, which may exist without a store. Both have the same questions, answers and
information on silent ranks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from farandole.base.contracts import Waiting

if TYPE_CHECKING:
    from farandole.core.observe.stall.stacks import Frame


class Answer(NamedTuple):
    """A rank's activity.

    - ``silent``: The reason for its silence; empty if it answers.
    - ``waits``: Names of collectives in which other ranks are missing.
    - ``stuck``: Names of started collectives that make no progress, because they wait for the ranks
      ``awaited``.
    - ``seconds``: The longest wait.
    - ``stack``: The user's frames of the main thread, innermost last.
    """

    silent: str = ""
    waits: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
    awaited: tuple[int, ...] = ()
    stack: tuple[Frame, ...] = ()
    seconds: float = 0.0


class StackQuery(Protocol):
    """One rank's side of the queries: its thread answers queries, and it may send queries.
    ``ranks``: all ranks that can be queried.
    """

    ranks: Sequence[int]

    def ask(self, ranks: Sequence[int], seconds: float) -> dict[int, Answer]:
        """Return the answers of these ranks within ``seconds``, without ranks that give no
        information.
        """

    def close(self) -> None: ...


def encode_own_answer(waiting: Sequence[Waiting]) -> bytes:
    """Encode this rank's answer, given its waiting collectives."""
    from farandole.core.observe.stall import stacks  # imported here: most jobs never stall

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
    from farandole.core.observe.stall.stacks import Frame  # imported here for the same reason

    fields = json.loads(content)
    return Answer(
        waits=tuple(fields["waits"]),
        stuck=tuple(fields["stuck"]),
        awaited=tuple(fields["awaited"]),
        stack=tuple(Frame(*frame) for frame in fields["stack"]),
        seconds=fields["seconds"],
    )
