"""How a rank ended, as the driver is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from farandole.errors import (
    SHUT_DOWN,
    HorovodInternalError,
    PeerLostError,
    RendezvousError,
    ShutDownError,
    StalledError,
)

_TEXT_LIMIT = 64 << 10
# of a host, as the driver sees it
SILENT = "it does not answer any more: it is down, or the network between"
STATUSES = ("ok", "error", "victim")
_OF_A_VICTIM = PeerLostError, ShutDownError


def parsed(data: bytes | bytearray) -> dict[str, Any]:
    """The JSON object that a process of the job sent; ValueError if it is none."""
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError("brackets in brackets, too many") from None
    if not isinstance(found, dict):
        raise ValueError(f"not an object but {str(found)[:100]}")
    return found


class Outcome(NamedTuple):
    """A rank's report of its own end. ``status``: ok, error, or victim (it failed because another
    rank left); ok with a ``kind``: its program has caught what a victim gets, and its exit code
    will tell whether it could go on. ``lost``: the rank that left; of an error: that left before
    it, and the program may have made its error of that.
    """

    status: str
    kind: str = ""
    message: str = ""
    traceback: str = ""
    lost: int = -1
    host: str = ""

    def to_bytes(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def from_bytes(cls, data: bytes | bytearray) -> Outcome:
        """The inverse of ``to_bytes``; ValueError for anything else."""
        facts = parsed(data)
        kinds = {name: int if name == "lost" else str for name in cls._fields}
        if facts.keys() != kinds.keys():
            raise ValueError(f"an outcome has the fields {', '.join(kinds)}")
        wrong = [name for name, kind in kinds.items() if type(facts[name]) is not kind]
        if wrong or facts["status"] not in STATUSES:
            raise ValueError(f"an outcome has another type of {', '.join(wrong) or 'status'}")
        return cls(**facts)

    @property
    def interrupted(self) -> bool:
        """Did the rank end by SIGINT, or as if by it?"""
        return self.kind == KeyboardInterrupt.__name__

    @property
    def words(self) -> str:
        """The error in one line, as the end of "rank 1 ..."."""
        first = self.message.strip().split("\n", 1)[0]
        return (
            f"{'was interrupted' if self.interrupted else 'failed'}:"
            f" {': '.join(filter(None, (self.kind, first)))}"
        )

    @classmethod
    def of(cls, error: BaseException, skip: int = 0) -> Outcome:
        """The outcome of a rank that ends with ``error``; ``skip`` frames of ours are left out of
        its traceback.
        """
        import socket
        import traceback  # here: most ranks end well

        trace = error.__traceback__
        for _ in range(skip):
            trace = trace.tb_next if trace is not None else None
        text = "".join(traceback.format_exception(type(error), error, trace))
        chain = _chain(error)
        ended_it = any(isinstance(link, StalledError) for link in chain)
        victims = [link for link in chain if _is_of_a_victim(link)]
        lost = next((_lost(victim) for victim in victims if _lost(victim) >= 0), -1)
        return cls(
            status="victim" if victims and not ended_it else "error",
            kind=type(error).__name__,
            message=_text(error),
            traceback=text[-_TEXT_LIMIT:],
            lost=lost,
            host=socket.gethostname(),
        )

    @classmethod
    def without(cls, caught: Sequence[BaseException]) -> Outcome:
        """The outcome of a rank that ends without an error, or has caught these."""
        found = [outcome for outcome in map(cls.of, caught[:1]) if outcome.status == "victim"]
        return found[0]._replace(status="ok") if found else cls(status="ok")


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_TEXT_LIMIT]
    except Exception as mistake:  # the user's own class; what it stands for is still to be told
        return (
            f"<its text cannot be made: {type(mistake).__name__} in {type(error).__name__}.__str__>"
        )


def _is_of_a_victim(error: BaseException) -> bool:
    late = isinstance(error, RendezvousError) and error.missing != ()
    return late or isinstance(error, _OF_A_VICTIM) or _is_told_by_others(error)


def _is_told_by_others(error: BaseException) -> bool:
    """XLA, TensorFlow, and autograd for its callbacks, make an error of their own of the text of
    ours.
    """
    return not isinstance(error, HorovodInternalError) and tells_of_loss(_text(error))


def tells_of_loss(text: str) -> bool:
    """Does a text, an error's or what a program has printed of one, tell that another rank was
    lost?
    """
    return SHUT_DOWN in text or any(f"{kind.__name__}: " in text for kind in _OF_A_VICTIM)


def _lost(error: BaseException) -> int:
    if isinstance(error, RendezvousError):
        return error.missing[0]
    return error.rank if isinstance(error, _OF_A_VICTIM) else -1


def _chain(error: BaseException) -> list[BaseException]:
    """The exception, its causes, and its contexts."""
    found: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        link = todo.pop()
        if link is not None and not any(link is known for known in found):
            found.append(link)
            todo += [link.__cause__, link.__context__, *getattr(link, "exceptions", ())]
    return found
