"""A barrier whose error names the missing ranks."""

from __future__ import annotations

import math
import time

import numpy as np

from farandole.core.groups.group import CollectiveGroup
from farandole.core.groups.inbox import Transfer, error_text
from farandole.core.groups.reasons import reason_of, restored
from farandole.errors import PeerLostError, StalledError

_TAG = -(1 << 40)  # programs use different tags
_TEXT = 1 << 10


def monitored(group: CollectiveGroup, seconds: float, *, everybody: bool) -> None:
    """Wait until all members have reached the barrier.

    Raises StalledError after ``seconds``, and PeerLostError for a lost member, on all members. On
    member 0 the error names one missing member, or all of them with ``everybody``. Member 0 reports
    the failure to the other members, and also an exception from one of its signal handlers (as
    PeerLostError).
    """
    group.barriers += 1
    tag = _TAG - group.barriers
    if group.rank:
        _report(group, tag, seconds)
        return
    unanswered, notes = list(range(1, group.size)), dict[int, Transfer]()
    try:
        for rank in unanswered:
            notes[rank] = group.messages.receive(
                rank, tag, np.empty(1, np.uint8), dtype=0, timeout=math.inf
            )
        missing = _missing(group, notes, seconds, everybody)
        lost = next((notes[rank].error for rank in missing if notes[rank].error is not None), None)
        text = _missing_text(group, missing, seconds, lost) if missing else ""
        verdict = text if lost or not text else reason_of(StalledError("", missing[0]), text)
        _answer(group, tag, verdict, notes, unanswered)
    # a signal handler raised: without an answer, the other members would wait until their timeout
    except BaseException as error:
        _answer(group, tag, f"it left the barrier: {error_text(error)}", notes, unanswered)
        raise
    if lost is not None:
        raise PeerLostError(f"{text} ({group.name})", missing[0]) from lost
    if missing:
        stopped = (
            f"{text}: they have stopped, or did not call it"
            f" ({group.name}){group.stacks_of(missing)}"
        )
        raise StalledError(stopped, missing[0])


def _missing_text(
    group: CollectiveGroup, missing: list[int], seconds: float, lost: BaseException | None
) -> str:
    """Return the error text for missing members. ``lost``: the error of a lost member."""
    who = (
        f"Rank{'s' if len(missing) > 1 else ''}"
        f" {', '.join(str(group.ranks[rank]) for rank in missing)}"
    )
    if lost is not None:
        return f"{who} failed to pass monitoredBarrier: {error_text(lost)}"
    mine = f"Rank {group.ranks[0]} timed out in monitoredBarrier after {seconds * 1000:.0f} ms"
    return f"{mine}: {who} failed to pass monitoredBarrier in {seconds * 1000:.0f} ms"


def _missing(
    group: CollectiveGroup, notes: dict[int, Transfer], seconds: float, everybody: bool
) -> list[int]:
    """Return the members that have not arrived within ``seconds``: only the first one, unless
    ``everybody`` is set.
    """
    missing: list[int] = []
    end = time.monotonic() + seconds
    for rank, note in notes.items():
        left = max(0.0, end - time.monotonic()) if everybody or not missing else 0.0
        if not group.messages.wait(note, left) or note.error is not None:
            missing.append(rank)
    return missing if everybody else missing[:1]


def _answer(
    group: CollectiveGroup, tag: int, text: str, notes: dict[int, Transfer], unanswered: list[int]
) -> None:
    """Send ``text`` to these members, including late ones, unless they are gone."""
    answer = np.frombuffer(text.encode()[:_TEXT].ljust(_TEXT), np.uint8)
    while unanswered:
        note = notes.get(unanswered[-1])
        if note is None or note.error is None:
            group.messages.send(unanswered[-1], tag, answer, dtype=0, timeout=math.inf)
        unanswered.pop()
        if note is not None and not note.done:
            group.messages.cancel(note)


def _report(group: CollectiveGroup, tag: int, seconds: float) -> None:
    """Report this member's arrival to member 0 and wait for the outcome. For all members but 0."""
    answer = np.empty(_TEXT, np.uint8)
    group.messages.send(0, tag, np.zeros(1, np.uint8), dtype=0, timeout=math.inf)
    verdict = group.messages.receive(0, tag, answer, dtype=0, timeout=math.inf)
    me = group.ranks[group.rank]
    reached = (
        f"Rank {me} successfully reached monitoredBarrier, but received errors while waiting for"
        " send/recv from "
    )
    zero = f"rank {group.ranks[0]}"
    if not group.messages.wait(verdict, 2 * seconds + 1.0):
        group.messages.cancel(verdict)
        raise StalledError(
            f"{reached}{zero}: it did not arrive within {seconds:g} s ({group.name})", 0
        )
    if verdict.error is not None:
        raise PeerLostError(f"{reached}{zero}: {verdict.error}", 0) from verdict.error
    text = answer.tobytes().decode(errors="replace").rstrip()
    if text:
        error = restored(PeerLostError(text, 0))
        kind = StalledError if isinstance(error, StalledError) else PeerLostError
        raise kind(f"{reached}{zero}: {error} ({group.name})", 0)
