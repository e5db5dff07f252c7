"""Everything that Farandole raises on purpose.

RuntimeError
├── HorovodInternalError       a collective failed; the job may go on after restore and re-init
│   ├── PeerLostError          another rank went away: this rank is a victim, not the cause
│   │   ├── ServerLostError    a parameter server died or stopped, and no replica of it is left
│   │   └── StalledError       another rank stayed away for too long, and this one ended the job
│   ├── WireError              a connection brought what its other end did not, or must not, send
│   ├── MismatchError          ranks asked for different things under one name
│   ├── JoinedError            a collective that needs data of all ranks, and one has joined
│   ├── ShutDownError          the engine was shut down, here or on another rank
│   └── RequestError           a request that is wrong by itself (a ValueError, too)
├── HostsUpdatedInterrupt      the set of hosts changed (elastic jobs)
├── RanksDifferError           --check raise: the ranks do not train one model
└── JobFailedError             a job ended badly; says which rank was the cause and shows why
ValueError
├── NotInitializedError        a call that needs ``init()`` came before it
├── DataError                  rows, columns or files that cannot be used; says which
└── SettingsError              a flag, variable or argument has a value that cannot be used
ConnectionError
├── AuthenticationError        a peer does not know the job's secret
│   └── UnfinishedHandshakeError   it hung up, or was silent, before it could show that it does
└── RendezvousError            ranks did not find each other in time; names the missing ones
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

SHUT_DOWN = (
    " has been shut down. This was caused by an exception on one of the ranks or an attempt to"
    " allreduce, allgather or broadcast a tensor after one of the ranks finished execution. If the"
    " shutdown was caused by an exception, you should see the exception in the log before the first"
    " shutdown message."
)

WAITS_FOR_ITSELF = (
    "the handler of a signal waits for a collective, while its thread is inside another one: have"
    " the handler set a flag or raise, and make the call where the program goes on"
)
DUPLICATE_NAME = (
    "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor"
    " that is currently being processed. If you want to request another tensor, use a different"
    " tensor name."
)

NOT_INITIALIZED = "{product} has not been initialized; use hvd.init()."
FORKED = (
    "{product} has not been initialized in this process, which was forked off from a rank (a worker"
    " of a DataLoader, say): rank() and size() are the rank's, but collectives are for the rank"
    " itself to call."
)


class HorovodInternalError(RuntimeError):
    """A collective failed. The name is Horovod's, so that programs written for it keep
    catching it.
    """


class PeerLostError(HorovodInternalError):
    """Another rank died or gave up. ``rank`` is the one that was lost (-1 when not known); ``left``
    is True when it closed its end in order (its program ended, or it called ``shutdown()``).
    """

    SILENT = "does not answer: its host is gone, or the network between"
    BROKE = "was lost: its connection broke (did its process die?)"

    def __init__(self, message: str, rank: int = -1, *, left: bool = False) -> None:
        super().__init__(message)
        self.rank = rank
        self.left = left


class ServerLostError(PeerLostError):
    """A parameter server died or stopped, and no replica of it is left."""


class StalledError(PeerLostError):
    """Ranks waited for others for longer than ``--stall-check-shutdown-time-seconds``; ``rank`` is
    one of the others.

    Raised by the rank that ends the job for that reason. It is the job's cause of failure, not a
    victim.
    """


class WireError(HorovodInternalError):
    """A connection brought what its other end did not send (something changed it on the way), or
    must not send. ``rank`` is the one at the other end (-1 when it is none). Not a victim's error:
    whoever raises it saw the cause.
    """

    def __init__(self, message: str, rank: int = -1) -> None:
        super().__init__(message)
        self.rank = rank


class MismatchError(HorovodInternalError):
    """Ranks asked for different things under one name: other shapes, types, operations. All of them
    hear so.
    """


class JoinedError(HorovodInternalError):
    """A collective needs data of all ranks, and one of them has joined. All of them hear so."""


class ShutDownError(HorovodInternalError):
    """The engine was shut down; ``detail``: what this rank was waiting for; ``rank``: who left (-1:
    nobody knows).
    """

    def __init__(self, detail: str = "", rank: int = -1) -> None:
        super().__init__(f"{NotInitializedError.product}{SHUT_DOWN} {detail}".rstrip())
        self.detail = detail
        self.rank = rank

    def __reduce__(self) -> tuple[Any, ...]:  # pickle would take the text for the detail
        return type(self), (self.detail, self.rank)


class RequestError(HorovodInternalError, ValueError):
    """A collective was asked for that no rank could run. Horovod raises its internal error for
    these, so that is what old programs catch; it is just as much a bad value.
    """


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts changed. ``skip_sync`` is True if hosts were only removed."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("The set of hosts changed.")
        self.skip_sync = skip_sync


class RanksDifferError(RuntimeError):
    """The ranks do not train one model, or read the same data, and ``--check raise`` is set. Raised
    by all ranks, in the step in which it was noticed. The message names the ranks, the parameter,
    the likely cause and the cure. ``findings``: the same as objects (``farandole.checks.Finding``).
    """

    findings: tuple[object, ...] = ()


class JobFailedError(RuntimeError):
    """A job failed. ``rank`` is the one that failed first in cause, ``host`` where it ran,
    ``exit_code`` what the launcher should exit with, ``remote_traceback`` that rank's own traceback
    when it raised.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int = -1,
        host: str = "",
        exit_code: int = 1,
        remote_traceback: str = "",
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.host = host
        self.exit_code = exit_code
        self.remote_traceback = remote_traceback


class NotInitializedError(ValueError):
    """``product`` is what the program has imported: whoever imports ``horovod`` has never heard of
    Farandole. ``forked``: the process was forked off from a rank.
    """

    product = "Farandole"

    def __init__(self, *, forked: bool = False) -> None:
        super().__init__((FORKED if forked else NOT_INITIALIZED).format(product=self.product))
        self.forked = forked

    # pickle would give the text to __init__: a pool of processes ends of that
    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), forked=self.forked), ()


class DataError(ValueError):
    """Data that training cannot use. The message names the file, the row and the column where they
    are known.
    """


class SettingsError(ValueError):
    """A setting has a value that cannot be used. The message names the flag or variable, the value
    and the rule.
    """


class AuthenticationError(ConnectionError):
    """The other side does not know the job's secret (or is not one of ours at all)."""


class UnfinishedHandshakeError(AuthenticationError):
    """The other side hung up, or was silent, before it could show whether it knows the job's
    secret.
    """


class RendezvousError(ConnectionError):
    """Ranks did not find each other in time. ``missing``: those that are known to have stayed
    away.
    """

    def __init__(self, message: str, missing: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)

    @classmethod
    def late(
        cls, missing: Sequence[int], timeout: float, host: str = "", otherwise: str = ""
    ) -> RendezvousError:
        """The error of a rank that waited in vain for others. ``host``: they are local ranks of
        that one; ``otherwise``: a further cure, after a space.
        """
        return cls(
            f"{_ranks(missing, host)} did not reach init() within {timeout:g} s. Every rank must"
            " call init(); if starting takes longer, raise --start-timeout"
            f" (FARANDOLE_START_TIMEOUT).{otherwise}",
            () if host else missing,
        )

    @classmethod
    def finished(cls, ranks: Sequence[int]) -> RendezvousError:
        """The error of a rank that waits for others whose program has ended well."""
        return cls(
            f"{ranks_named(ranks)} ended without calling this init(): every rank must call init()"
            " as often as the others.",
            ranks,
        )

    @classmethod
    def ended(cls, ranks: Sequence[int], host: str = "") -> RendezvousError:
        """The error of a rank that waits for others of which no process is left. ``host``: as
        above.
        """
        return cls(
            f"{_ranks(ranks, host)} ended before init(): no process of"
            f" {'them' if len(ranks) > 1 else 'it'} is left. Every rank must call init(). What"
            " started the ranks (srun, mpirun) tells how they ended.",
            () if host else ranks,
        )


_MOST_PARTS = 8  # ranks, or runs of ranks, that a message lists


def ranks_named(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, ``ranks 1, 2``, ``ranks 0-2, 5``; of many, the first."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts: list[str] = []
    for run in runs:
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(rank) for rank in run]
    if len(parts) > _MOST_PARTS:
        return f"ranks {', '.join(parts[:_MOST_PARTS])}, ... ({len(ranks)} of them)"
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(parts)}"


def _ranks(ranks: Sequence[int], host: str) -> str:
    return f"local {ranks_named(ranks)} on {host}" if host else ranks_named(ranks)


def counted(number: int, noun: str) -> str:
    """ "1 rank", "2 ranks"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """What another host has said, for a terminal: control characters, and bytes that are no text,
    as escapes.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in text
    )


def nearest(word: str, known: Iterable[str], alike: float = 0.6) -> str | None:
    """The known word that is most like ``word``, if one is; ``alike`` goes from 0 (anything) to 1
    (the same).
    """
    import difflib  # here: it takes longer to load than this module, and few processes need it

    return next(iter(difflib.get_close_matches(word, list(known), 1, alike)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: ``; did you mean 'x'?``, or nothing if no known
    word is near.
    """
    near = nearest(word, known)
    return f"; did you mean {near!r}?" if near else ""
