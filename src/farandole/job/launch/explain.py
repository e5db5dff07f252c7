"""Which rank is the cause when a job fails: a pure function from events to a verdict."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from farandole.base.package import is_own_file
from farandole.errors import (
    SHUT_DOWN,
    PeerLostError,
    RendezvousError,
    ServerLostError,
    ShutDownError,
    StalledError,
)
from farandole.job.launch.limits import processor_time
from farandole.job.report.outcome import SILENT, Outcome, tells_of_loss

VICTIM_PATIENCE = 3.0  # seconds in which a cause must show after its first victim
# the same if all that victims have lost is seen to have ended: what ended with it is seen by then
ENDED_PATIENCE = 1.0
# the same after a plain exit code, which may be a victim's that caught its exception
EXIT_PATIENCE = 0.3
_PLACES = 4  # at which ranks failed in the same way
_STALLED = StalledError.__name__  # an error that ends the job, of a rank that another kept waiting
_ABSENT = 4  # ranks that stayed away whose activity is named
_SAME_CALLS = (
    "every rank must make the same calls (the same number of batches, for instance; or hvd.join()"
    " on those that are done with theirs)."
)


class Event(NamedTuple):
    """Something that the driver saw: a rank reported its outcome, or its process ended with
    ``code``.
    """

    rank: int
    outcome: Outcome | None = None
    code: int | None = None

    @property
    def bad(self) -> bool:
        return bool(self.code) or (self.outcome is not None and self.outcome.status != "ok")


class Verdict(NamedTuple):
    """Who is the cause (-1: nobody can be named). ``patience``: seconds in which a better cause may
    still show.
    """

    rank: int
    patience: float
    exit_code: int
    message: str
    traceback: str = ""
    # ranks that failed in a way of their own: their last words are worth showing too
    apart: tuple[int, ...] = ()


class _Rank(NamedTuple):
    """``caught``: a victim whose program caught its error, and exited with a code. Its output may
    tell of more. ``bereft``: its last lines tell of the loss of another.
    """

    rank: int
    order: int  # when its failure was first seen
    outcome: Outcome | None
    code: int | None
    bereft: bool = False

    @property
    def caught(self) -> bool:
        return (
            self.standing == "victim" and self.outcome is not None and self.outcome.status == "ok"
        )

    @property
    def standing(self) -> str:
        if self.outcome is not None and self.outcome.status != "ok":
            return self.outcome.status
        if self.code is None:
            return "running"
        if self.code < 0:
            return "signal"
        if self.code and self.outcome is not None and self.outcome.kind:
            return "victim"  # see caught
        return "exit" if self.code else "finished"


def explain(
    events: Sequence[Event],
    hosts: Sequence[str],
    tails: Mapping[int, str] | None = None,
    activity: Mapping[int, str] | None = None,
) -> Verdict | None:
    """Which rank failed first in cause; None while no rank has failed.

    ``events`` in the order they were seen, without what the driver's own signals did. A rank that
    reported an error of its own or was killed by a signal is the cause before one that merely
    exited with a code (it may have caught what a victim gets), and both before one whose own error
    came after another rank had left; SIGKILL, which no failure of another rank brings about, comes
    before all. Victims are never the cause. ``hosts``: per rank; ``tails``: per rank, its last
    lines on stderr; ``activity``: its present activity.
    """
    ranks = _standings(events, len(hosts))
    ranks = [
        rank._replace(bereft=tells_of_loss((tails or {}).get(rank.rank, ""))) for rank in ranks
    ]
    failed = [rank for rank in ranks if rank.standing not in ("running", "finished")]
    if not failed:
        return None
    candidates = [rank for rank in failed if rank.standing != "victim"]
    if not candidates:
        return _without_cause(ranks, hosts, activity or {})._replace(apart=tuple(_caught(ranks)))
    cause = min(candidates, key=lambda candidate: (_weight(candidate), candidate.order))
    ended = all(rank.standing != "running" for rank in ranks)
    patience = EXIT_PATIENCE if cause.standing == "exit" else 0.0
    if _met_another(cause):
        patience = _patience([cause], ranks)
    patience *= not ended
    return _blame(cause, ranks, hosts, tails or {}, patience)


def _standings(events: Sequence[Event], size: int) -> list[_Rank]:
    ranks = [_Rank(rank, len(events), None, None) for rank in range(size)]
    for order, event in enumerate(events):
        known = ranks[event.rank]
        ranks[event.rank] = known._replace(
            order=min(known.order, order) if event.bad else known.order,
            outcome=known.outcome if event.outcome is None else event.outcome,
            code=known.code if event.code is None else event.code,
        )
    return ranks


def _weight(rank: _Rank) -> int:
    if rank.code == -signal.SIGKILL:
        return 0
    if _met_another(rank):
        return 3
    return 1 if rank.standing in ("error", "signal") else 2


def _caught(ranks: Sequence[_Rank]) -> list[int]:
    return [rank.rank for rank in ranks if rank.caught]


def _met_another(rank: _Rank) -> bool:
    """Had another rank left before it failed? Its program may have caught that, and made an error
    of its own of it, or ended by ``os._exit``, which reports nothing.
    """
    outcome = rank.outcome
    if rank.standing == "exit":
        return rank.bereft
    return (
        outcome is not None
        and outcome.status == "error"
        and outcome.lost >= 0
        and outcome.kind != _STALLED
    )


def _patience(bereft: Sequence[_Rank], ranks: Sequence[_Rank]) -> float:
    """While ranks run: how long to wait for a cause of what these ranks have lost."""
    todo = {-1 if rank.outcome is None else rank.outcome.lost for rank in bereft}
    seen: set[int] = set()
    while todo:
        number = todo.pop()
        if not 0 <= number < len(ranks) or ranks[number].code is None:
            return VICTIM_PATIENCE
        seen.add(number)
        outcome = ranks[number].outcome
        # it may have lost one itself
        if outcome is not None and outcome.lost >= 0 and outcome.lost not in seen:
            todo.add(outcome.lost)
    return ENDED_PATIENCE


def _blame(
    cause: _Rank,
    ranks: Sequence[_Rank],
    hosts: Sequence[str],
    tails: Mapping[int, str],
    patience: float,
) -> Verdict:
    outcome = cause.outcome if cause.standing == "error" else None
    status = exit_status(cause.code)
    if outcome is not None:
        how, shown = outcome.words, outcome.traceback
        # Python's own exit code for it is lost when anything is imported meanwhile
        if outcome.interrupted:
            status = 128 + signal.SIGINT
        elif cause.code:
            how += f" ({describe(cause.code)})"
    else:
        how, shown = describe(cause.code or 0), ""
    lines = [f"Rank {cause.rank} on {hosts[cause.rank]} {how}"]
    tail = tails.get(cause.rank, "").strip("\n")
    if shown:
        lines.append(shown.rstrip("\n"))
    elif tail:
        lines.append(f"Its last lines on stderr:\n{tail}")
        lines += [cure for missing, cure in _MISSING.items() if missing in tail]
    same = [rank.rank for rank in ranks if rank.rank != cause.rank and _alike(rank, cause, tails)]
    silent = [
        rank.rank
        for rank in ranks
        if rank.standing == "victim" and _silent(rank) and _silent(cause)
    ]
    victims = [
        rank.rank
        for rank in ranks
        if rank.standing == "victim" and not rank.caught and rank.rank not in silent
    ]
    caught = _caught(ranks) + [
        rank.rank for rank in ranks if rank.standing == "exit" and rank.bereft and rank != cause
    ]
    caught = sorted(rank for rank in caught if rank not in same)
    early = [rank.rank for rank in ranks if rank.standing == "finished"]
    lines += _in_the_same_way(cause, [rank for rank in ranks if rank.rank in same])
    if silent:
        lines.append(
            f"{_ranks(silent)} on {_places(silent, hosts)} {'was' if len(silent) == 1 else 'were'}"
            " lost at the same time: look for what the hosts have in common, such as a switch, or"
            " the network of the driver's machine."
        )
    if victims:
        lines.append(f"{_ranks(victims)} failed only in consequence.")
    if caught:
        lines.append(f"{_ranks(caught)} had lost another rank before exiting with a code.")
    if early and (
        victims
        or caught
        or (_met_another(cause) and cause.outcome is not None and cause.outcome.lost in early)
    ):
        lines.append(f"{_ranks(early)} had finished before.")
    apart = [
        rank.rank
        for rank in ranks
        if rank.standing in ("error", "signal", "exit") and rank.rank not in same
    ]
    apart.remove(cause.rank)
    return Verdict(
        cause.rank,
        patience,
        status,
        "\n".join(lines),
        shown,
        tuple(dict.fromkeys((*apart, *caught))),
    )


def _silent(rank: _Rank) -> bool:
    """Did its host vanish without a word, as the driver saw it?"""
    return rank.outcome is not None and SILENT in rank.outcome.message


def _alike(rank: _Rank, cause: _Rank, tails: Mapping[int, str]) -> bool:
    if rank.standing != cause.standing:
        return False
    if rank.outcome is not None and cause.outcome is not None and rank.standing == "error":
        return (rank.outcome.kind, rank.outcome.message) == (
            cause.outcome.kind,
            cause.outcome.message,
        )
    return rank.code == cause.code and tails.get(rank.rank) == tails.get(cause.rank)


def _in_the_same_way(cause: _Rank, same: Sequence[_Rank]) -> list[str]:
    """Where ranks made different calls, the line of the others tells as much as that of the
    cause.
    """
    ranks_at: dict[str, list[int]] = {}
    for rank in same:
        place = _place(rank)
        ranks_at.setdefault("" if place == _place(cause) else place, []).append(rank.rank)
    return [
        f"{_ranks(ranks)} failed in the same way{f', at {place}' if place else '.'}"
        for place, ranks in list(ranks_at.items())[:_PLACES]
    ]


def _place(rank: _Rank) -> str:
    """Where a rank's error left the user's program; empty if that cannot be seen."""
    trace = rank.outcome.traceback if rank.outcome is not None else ""
    frames = [frame for frame in re.finditer(_FRAME, trace) if not is_own_file(frame["file"])]
    if not frames:
        return ""
    own = [frame for frame in frames if not re.search(_INSTALLED, frame["file"])]
    frame = (own or frames)[-1]
    return f"{frame['file']}, line {frame['line']}" + (
        f": {frame['code']}" if frame["code"] else ""
    )


def _without_cause(
    ranks: Sequence[_Rank], hosts: Sequence[str], activity: Mapping[int, str]
) -> Verdict:
    """Only victims. Somebody finished early, or was lost without a trace that the driver
    could see.
    """
    victims = [rank for rank in ranks if rank.standing == "victim"]
    early = [rank.rank for rank in ranks if rank.standing == "finished"]
    ended = all(rank.standing != "running" for rank in ranks)
    code = next((exit_status(victim.code) for victim in victims if victim.code), 1)
    first = min(victims, key=lambda victim: victim.order)
    assert first.outcome is not None
    trace = first.outcome.traceback
    if first.outcome.kind == RendezvousError.__name__:
        rank, message = _late(ranks, hosts, first, activity)
        return Verdict(rank, 0.0, code, message, trace)
    patience = 0.0 if ended else _patience(victims, ranks)
    said = _said(first)
    waiting = _ranks([victim.rank for victim in victims])
    if server := next(
        (v.outcome for v in victims if v.outcome and v.outcome.kind == ServerLostError.__name__),
        None,
    ):
        message = (
            f"{server.message[:1].upper()}{server.message[1:]}.\n{waiting} failed only in"
            " consequence."
        )
        return Verdict(-1, patience, code, message, server.traceback)
    if early:
        message = (
            f"{_ranks(early)} on {_places(early, hosts)} finished (exit code 0) while "
            f"{waiting.lower()} still waited for an exchange with "
            f"{'it' if len(early) == 1 else 'them'}: {_SAME_CALLS}\n{said}"
        )
        return Verdict(early[0], patience, code, message, trace)
    blamed = {victim.rank for victim in victims}
    lost = next(
        (e.outcome.lost for e in victims if e.outcome is not None and e.outcome.lost not in blamed),
        -1,
    )
    if 0 <= lost < len(hosts) and first.outcome.kind == ShutDownError.__name__:
        message = (
            f"Rank {lost} on {hosts[lost]} called shutdown() or came to its end while "
            f"{waiting.lower()} still waited for an exchange with it: {_SAME_CALLS}\n{said}"
        )
        return Verdict(lost, patience, code, message, trace)
    if 0 <= lost < len(hosts):
        message = (
            f"{waiting} waited in vain for rank {lost} on {hosts[lost]}, whose process has not"
            " ended: it hangs or is busy elsewhere, its network is gone, or it has become another"
            f" program (exec, before which hvd.shutdown() leaves the job).\n{said}"
        )
        return Verdict(lost, patience, code, message, trace)
    apart = _apart(victims, hosts)
    if apart:
        return Verdict(-1, patience, code, f"{apart}\n{said}", trace)
    return Verdict(
        -1,
        patience,
        code,
        f"{_lost_each_other(victims, hosts)}, and no cause was seen.\n{said}",
        trace,
    )


def _apart(victims: Sequence[_Rank], hosts: Sequence[str]) -> str:
    """Two hosts that were heard to the end, and did not hear each other; empty if there are
    none.
    """
    blamed = {victim.rank for victim in victims}
    # who sees the first gives up, and others see the second
    for why in (PeerLostError.SILENT, PeerLostError.BROKE):
        for victim in sorted(victims, key=lambda victim: victim.order):
            lost, said = (
                (victim.outcome.lost, victim.outcome.message)
                if victim.outcome is not None
                else (-1, "")
            )
            if lost in blamed and why in said and hosts[lost] != hosts[victim.rank]:
                pair = f"between {hosts[victim.rank]} and {hosts[lost]}"
                both = f"rank {victim.rank} and rank {lost} reach the driver"
                if why == PeerLostError.SILENT:
                    return f"The network {pair} was lost: {both}, but not each other."
                return (
                    f"The connection {pair} was cut: {both}, but have lost each other. Firewalls"
                    " and routers do that."
                )
    return ""


def _late(
    ranks: Sequence[_Rank], hosts: Sequence[str], first: _Rank, activity: Mapping[int, str]
) -> tuple[int, str]:
    """Ranks waited in ``init()`` for others that did not come: the first of these, and the
    message.
    """
    assert first.outcome is not None
    absent = [rank for rank in ranks if rank.standing in ("running", "finished")]
    lines = [first.outcome.message[:1].upper() + first.outcome.message[1:]]
    for rank in absent[:_ABSENT]:
        now = (
            "has ended (exit code 0)"
            if rank.standing == "finished"
            else activity.get(rank.rank, "")
        )
        if now:
            lines.append(f"Rank {rank.rank} on {hosts[rank.rank]}: {now}")
    if len(absent) > _ABSENT:
        lines.append(f"... and {len(absent) - _ABSENT} more.")
    waiting = _ranks([rank.rank for rank in ranks if rank.standing == "victim"])
    lines.append(f"{waiting} waited in vain.")
    return (absent[0].rank if absent else first.outcome.lost), "\n".join(lines)


def _lost_each_other(victims: Sequence[_Rank], hosts: Sequence[str]) -> str:
    if len(victims) > 1:
        return f"{_ranks([victim.rank for victim in victims])} lost each other"
    (only,) = victims
    lost = only.outcome.lost if only.outcome is not None else -1
    whom = (
        f"rank {lost} on {hosts[lost]}"
        if 0 <= lost < len(hosts) and lost != only.rank
        else "the other ranks"
    )
    return f"Rank {only.rank} on {hosts[only.rank]} lost the connection to {whom}"


# What the program's Python does not have, though this command's does: another one stands first on
# the PATH.
_MISSING = {
    "No module named 'farandole'": (
        "The Python that ran the program has no farandole. That of this command is"
        f" {sys.executable}: write it in the place of python, or activate its environment"
    ),
    "No module named 'horovod'": (
        "The import name horovod comes with the distribution farandole-horovod: in a clone of"
        " Farandole, pip install ./compat for the Python that runs the program; or write import"
        " farandole.torch as hvd"
    ),
}

# Patterns here are text: a job that ends well compiles none of them.
_FRAME = (
    r'(?m)^  File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<where>.+))?\n(?:   '
    r" (?P<code>.+)\n)?"
)
_INSTALLED = r"/(?:site|dist)-packages/|/lib/python3|^<frozen "


def _said(victim: _Rank) -> str:
    """A victim's place in the user's program, and its error without the standard text: its
    traceback ends deep inside of us.
    """
    assert victim.outcome is not None
    message = victim.outcome.message.partition(SHUT_DOWN)[2].strip() or victim.outcome.message
    message = message.partition("\n\nAt:\n")[0]  # pybind11's stack, once more
    if message.startswith("(") and message.endswith(")"):
        message = message[1:-1]
    place = _place(victim)
    return (
        f"Rank {victim.rank} was at {place}\n{message}"
        if place
        else f"Rank {victim.rank} said: {message}"
    )


def exit_status(code: int | None) -> int:
    """The launcher's exit status for a rank's code: 128 + signal, its own code, or 1 when it never
    got to one.
    """
    if code is None or code == 0:
        return 1
    return code if code > 0 else 128 - code


_SIGNALS = {
    "SIGKILL": "killed, perhaps by the out-of-memory killer",
    "SIGSEGV": "a crash in native code (segmentation fault)",
    "SIGABRT": "native code gave up (a failed check or an uncaught C++ exception)",
    "SIGBUS": "a bus error: shared memory was full, or a mapped file shrank",
    "SIGILL": "an illegal instruction: a library was built for another kind of processor",
    "SIGFPE": "a division by zero in native code",
    "SIGTERM": "ended from outside, by a scheduler or an administrator",
    "SIGINT": "interrupted from outside",
    "SIGHUP": "its terminal was closed",
    "SIGPIPE": "it wrote to a pipe or a connection that nobody reads any more",
    "SIGUSR1": (
        "a warning from outside that its program does not handle, such as that of a time limit"
    ),
    "SIGUSR2": (
        "a warning from outside that its program does not handle, such as that of a time limit"
    ),
    "SIGXCPU": "it used up its limit of processor time",
    "SIGXFSZ": "it wrote a file that is larger than its limit (`ulimit -f`)",
    "SIGALRM": "its own alarm (signal.alarm, a timeout), which its program does not handle",
    "SIGQUIT": "ended from outside (Ctrl-\\ on a terminal)",
    "SIGTRAP": "native code gave up (a failed check or a breakpoint)",
    "SIGSYS": "a call of the system that is not allowed here (seccomp, a container)",
}


def describe(code: int) -> str:
    """An exit code in words, as the end of "rank 1 ..."."""
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = ""
    words = _SIGNALS.get(name, "a signal") + (processor_time() if name == "SIGKILL" else "")
    if code < 0:
        return f"died of signal {number}{f' ({name})' if name else ''}: {words}"
    if name in _SIGNALS and number > 0:
        return f"exited with code {code} (a shell says so when its command died of {name}: {words})"
    return f"exited with code {code}"


def _places(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(hosts[rank] for rank in ranks))


def _ranks(ranks: Sequence[int]) -> str:
    """``Rank 3`` or ``Ranks 0-2, 5``."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], rank]
        else:
            parts.append([rank])
    text = ", ".join("-".join(str(number) for number in part) for part in parts)
    return f"Rank {text}" if len(ranks) == 1 else f"Ranks {text}"


_BARE_FRAME = r'(?m)^  File "(?P<file>.+)", line (?P<line>\d+).*\n(?!    )'


def with_lines(trace: str) -> str:
    """A rank's traceback, with the lines of source that only this machine has: those of a
    notebook's cells, and of files that are not on the rank's host.
    """

    import linecache  # here: it loads Python's tokenizer

    def shown(frame: re.Match[str]) -> str:
        line = linecache.getline(frame["file"], int(frame["line"])).strip()
        return frame[0] + (f"    {line}\n" if line else "")

    return re.sub(_BARE_FRAME, shown, trace)
