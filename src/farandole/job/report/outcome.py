"""Outcome: a rank's end, as reported to the driver."""

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
# The driver's description of a silent host.
SILENT = "it no longer answers: the host or the network is down"
STATUSES = ("ok", "error", "victim")
_OF_A_VICTIM = PeerLostError, ShutDownError


def parsed(data: bytes | bytearray) -> dict[str, Any]:
    """Parse the JSON object sent by a process of the job. Raises ValueError if it is not one."""
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError("too many nested brackets") from None
    if not isinstance(found, dict):
        raise ValueError(f"not a JSON object: {str(found)[:100]}")
    return found


class Outcome(NamedTuple):
    """A rank's report of its end.

    - ``status``: ok, error or victim (the rank failed because another rank left).
    - ``kind``: The class of the error. With status ok, the program caught a victim's error, and its
      exit code will show whether it could continue.
    - ``lost``: The rank that left. With status error, it left earlier and the program may have
      raised its own error because of that.
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
        """Invert ``to_bytes``. Raises ValueError for other data."""
        facts = parsed(data)
        kinds = {name: int if name == "lost" else str for name in cls._fields}
        if facts.keys() != kinds.keys():
            raise ValueError(f"an outcome must have the fields {', '.join(kinds)}")
        wrong = [name for name, kind in kinds.items() if type(facts[name]) is not kind]
        if wrong or facts["status"] not in STATUSES:
            raise ValueError(f"wrong type in an outcome: {', '.join(wrong) or 'status'}")
        return cls(**facts)

    @property
    def interrupted(self) -> bool:
        """True if the rank ended by SIGINT or KeyboardInterrupt."""
        return self.kind == KeyboardInterrupt.__name__

    @property
    def words(self) -> str:
        """The error in one line, as the end of "rank 1 ..."."""
        first = _summary(self.message)
        return (
            f"{'was interrupted' if self.interrupted else 'failed'}:"
            f" {': '.join(filter(None, (self.kind, first)))}"
        )

    @classmethod
    def of(cls, error: BaseException, skip: int = 0) -> Outcome:
        """Return the outcome of a rank that ends with ``error``; ``skip`` omits Farandole's
        frames from its traceback.
        """
        import socket
        import traceback  # imported here because most ranks end successfully

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
        """Return the outcome of a rank that ends without an error, or that has caught the
        errors in ``caught``.
        """
        found = [outcome for outcome in map(cls.of, caught[:1]) if outcome.status == "victim"]
        return found[0]._replace(status="ok") if found else cls(status="ok")


def _summary(message: str) -> str:
    """Return a message's first line; for Keras the next one too, because its first line only names
    the layer.
    """
    import re  # imported here because most ranks end successfully

    lines = [line for line in re.sub(r"\x1b\[\d*m", "", message).splitlines() if line.strip()]
    keras = lines[:1] and lines[0].startswith("Exception encountered when calling")
    return " ".join(line.strip() for line in lines[: 2 if keras else 1])


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_TEXT_LIMIT]
    except Exception as mistake:  # raised by the user's own class; the error must still be reported
        return f"<no text: {type(mistake).__name__} in {type(error).__name__}.__str__>"


def _is_of_a_victim(error: BaseException) -> bool:
    late = isinstance(error, RendezvousError) and error.missing != ()
    return late or isinstance(error, _OF_A_VICTIM) or _repeats_farandole_error(error)


def _repeats_farandole_error(error: BaseException) -> bool:
    """Return whether the error repeats the message of one of Farandole's errors.

    XLA, TensorFlow and autograd callbacks raise their own errors with that message.
    """
    return not isinstance(error, HorovodInternalError) and reports_loss(_text(error))


def follows_loss(error: BaseException) -> bool:
    """Return whether ``error`` is a consequence of the loss of another rank, even if wrapped in a
    framework's error.
    """
    # The text of an error that a compiled function raised.
    wrapped = f"{HorovodInternalError.__name__}: "
    chain = _chain(error)
    return any(_is_of_a_victim(link) or wrapped in _text(link) for link in chain)


def reports_loss(text: str) -> bool:
    """Return whether ``text``, from an error or from output, reports the loss of another rank."""
    return SHUT_DOWN in text or any(f"{kind.__name__}: " in text for kind in _OF_A_VICTIM)


def _lost(error: BaseException) -> int:
    if isinstance(error, RendezvousError):
        return error.missing[0]
    return error.rank if isinstance(error, _OF_A_VICTIM) else -1


def _chain(error: BaseException) -> list[BaseException]:
    """Return the exception with its causes and contexts."""
    found: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        link = todo.pop()
        if link is not None and not any(link is known for known in found):
            found.append(link)
            todo += [link.__cause__, link.__context__, *getattr(link, "exceptions", ())]
    return found
