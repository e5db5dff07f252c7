"""Everything that Farandole raises on purpose.

RuntimeError
├── HorovodInternalError       a collective failed; the job may continue after restore and re-init
│   ├── PeerLostError          another rank went away: this rank is a victim, not the cause
│   │   ├── ServerLostError    a parameter server died or stopped, and it has no replica left
│   │   └── StalledError       another rank stayed away for too long, and this one ended the job
│   ├── WireError              a connection brought bytes that its peer did not, or must not, send
│   ├── MismatchError          ranks made different requests under one name
│   ├── JoinedError            a collective needs data from all ranks, but one has joined
│   ├── ShutDownError          the engine was shut down, here or on another rank
│   └── RequestError           a request is invalid in itself (also a ValueError)
│       └── RefusedError       another rank's arguments of this call are invalid
├── HostsUpdatedInterrupt      the set of hosts changed (elastic jobs)
├── RanksDifferError           --check raise: the ranks do not train the same model
├── RepeatedFailureError       elastic.run: a collective failed again after each restore
├── JobFailedError             a job failed; names the rank that caused it and shows why
└── RunError                   a submitted run, or its folder, does not allow an operation
    └── RunFailedError         a run that was awaited has failed or was canceled
ValueError
├── NotInitializedError        a call that needs ``init()`` came before it
├── DataError                  rows, columns or files are unusable; says which
│   └── CommitDirError         the folder of --commit-dir, or its last commit, is unusable
└── SettingsError              a flag, variable or argument has an unusable value
ConnectionError
├── AuthenticationError        a peer does not know the job's secret
│   └── UnfinishedHandshakeError   the peer disconnected or was silent during the handshake
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
    "the handler of a signal waits for a collective while its thread is inside another one: in"
    " the handler, set a flag or raise, and make the call where the program continues"
)
DUPLICATE_NAME = (
    "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor"
    " that is currently being processed. If you want to request another tensor, use a different"
    " tensor name."
)

NOT_INITIALIZED = "{product} has not been initialized; use hvd.init()."
FORKED = (
    "{product} has not been initialized in this process, a fork of a rank (such as a worker of a"
    " DataLoader): rank() and size() work here, but call collectives in the rank itself."
)


class HorovodInternalError(RuntimeError):
    """A collective failed. The name is Horovod's, so that existing programs catch this error."""


class PeerLostError(HorovodInternalError):
    """Another rank died or left.

    ``rank`` is the lost rank (-1 if unknown). ``left`` is true if the rank closed its end in order:
    its program ended, or called ``shutdown()``.
    """

    SILENT = "does not answer: the host or the network is down"
    BROKE = "was lost: its connection broke (did its process die?)"

    def __init__(self, message: str, rank: int = -1, *, left: bool = False) -> None:
        super().__init__(message)
        self.rank = rank
        self.left = left


class ServerLostError(PeerLostError):
    """A parameter server died or stopped, and it has no replica left."""


class StalledError(PeerLostError):
    """Ranks waited for others longer than ``--stall-check-shutdown-time-seconds``.

    ``rank`` is one of the missing ranks. The rank that ends the job raises this error; it counts as
    the cause of failure, not as a victim.
    """


class WireError(HorovodInternalError):
    """A connection brought bytes that its peer did not send (they were changed in transit) or must
    not send.

    ``rank`` is the peer (-1 if it is not a rank). The raising rank is not a victim: it saw the
    cause.
    """

    def __init__(self, message: str, rank: int = -1) -> None:
        super().__init__(message)
        self.rank = rank


class MismatchError(HorovodInternalError):
    """Ranks made different requests under one name: other shapes, types or operations.

    Raised on all of these ranks.
    """


class JoinedError(HorovodInternalError):
    """A collective needs data from all ranks, but one of them has joined. Raised on all ranks."""


class ShutDownError(HorovodInternalError):
    """The engine was shut down.

    ``detail`` is what this rank was waiting for; ``rank`` is the rank that left (-1 if unknown).
    """

    def __init__(self, detail: str = "", rank: int = -1) -> None:
        super().__init__(f"{NotInitializedError.product}{SHUT_DOWN} {detail}".rstrip())
        self.detail = detail
        self.rank = rank

    def __reduce__(self) -> tuple[Any, ...]:  # pickle would pass the text as the detail
        return type(self), (self.detail, self.rank)


class RequestError(HorovodInternalError, ValueError):
    """A requested collective is invalid on any rank.

    Horovod raises its internal error in this case and existing programs catch it, so this class
    derives from both.
    """


class RefusedError(RequestError):
    """Another rank cannot make this call of torch.distributed, because its arguments are invalid.

    That rank raises a ValueError. The call has failed on all ranks, and the group remains usable.
    """


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts changed. ``skip_sync`` is true if hosts were only removed."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("The set of hosts changed.")
        self.skip_sync = skip_sync


class RepeatedFailureError(RuntimeError):
    """A collective of an elastic job failed in the same way after each return to the last commit.

    Raised on all ranks.
    """


class RanksDifferError(RuntimeError):
    """The ranks do not train the same model, or read the same data, and ``--check raise`` is set.

    All ranks raise this error, in the step in which the difference was detected. The message names
    the ranks, the parameter, the likely cause and the cure. ``findings`` holds the same as objects
    (``farandole.checks.Finding``).
    """

    findings: tuple[object, ...] = ()


class JobFailedError(RuntimeError):
    """A job failed.

    - ``rank``: The rank that caused the failure.
    - ``host``: The host of that rank.
    - ``exit_code``: The exit code for the launcher.
    - ``remote_traceback``: The traceback of that rank, if it raised an exception.
    - ``host_lost``: Whether the host of that rank was lost, so that the program is not the cause.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int = -1,
        host: str = "",
        exit_code: int = 1,
        remote_traceback: str = "",
        host_lost: bool = False,
    ) -> None:
        super().__init__(message)
        self.host_lost = host_lost
        self.rank = rank
        self.host = host
        self.exit_code = exit_code
        self.remote_traceback = remote_traceback


class RunError(RuntimeError):
    """A submitted run, or its folder, does not allow an operation."""


class RunFailedError(RunError):
    """A run that was awaited has failed or was canceled.

    ``run_id`` names the run; ``cause`` is the explanation of its end.
    """

    def __init__(self, message: str, run_id: str = "", cause: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id
        self.cause = cause


class NotInitializedError(ValueError):
    """A call that needs ``init()`` came before it.

    ``product`` is the package that the program has imported: Farandole, or Horovod for programs
    that know only that name. ``forked`` is true if the process was forked from a rank.
    """

    product = "Farandole"

    def __init__(self, *, forked: bool = False) -> None:
        super().__init__((FORKED if forked else NOT_INITIALIZED).format(product=self.product))
        self.forked = forked

    # pickle would pass the text to __init__, which would break a process pool.
    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), forked=self.forked), ()


class DataError(ValueError):
    """Data is unusable for training. The message names the file, row and column where they are
    known.
    """


class CommitDirError(DataError):
    """An elastic job cannot use the folder of ``--commit-dir``: its commits are damaged or do not
    fit the program, or the folder is not writable or used by another job.
    """


class SettingsError(ValueError):
    """A setting has an unusable value. The message names the flag or variable, the value and the
    rule.
    """


class AuthenticationError(ConnectionError):
    """The peer does not know the job's secret, or does not run Farandole."""


class UnfinishedHandshakeError(AuthenticationError):
    """The peer disconnected or was silent before it could prove that it knows the job's secret."""


class RendezvousError(ConnectionError):
    """Ranks did not find each other in time.

    ``missing`` are the ranks known to be absent; ``unreached`` are the ranks whose hosts do not
    answer, although these ranks are there.
    """

    def __init__(
        self, message: str, missing: Sequence[int] = (), unreached: Sequence[int] = ()
    ) -> None:
        super().__init__(message)
        self.missing = tuple(missing)
        self.unreached = tuple(unreached)

    @classmethod
    def late(
        cls, missing: Sequence[int], timeout: float, host: str = "", otherwise: str = ""
    ) -> RendezvousError:
        """Return the error for a rank whose wait for others timed out.

        ``host``: if set, ``missing`` are local ranks of that host. ``otherwise`` is a further cure,
        preceded by a space.
        """
        return cls(
            f"{_ranks(missing, host)} did not reach init() within {timeout:g} s. Every rank must"
            " call init(); if starting takes longer, raise --start-timeout"
            f" (FARANDOLE_START_TIMEOUT).{otherwise}",
            () if host else missing,
        )

    @classmethod
    def finished(cls, ranks: Sequence[int]) -> RendezvousError:
        """Return the error for a rank that waits for ranks whose program has ended successfully."""
        return cls(
            f"{ranks_named(ranks)} ended without calling this init(): every rank must call init()"
            " as often as the others.",
            ranks,
        )

    @classmethod
    def ended(cls, ranks: Sequence[int], host: str = "") -> RendezvousError:
        """Return the error for a rank that waits for ranks whose processes have all ended.

        ``host``: if set, ``ranks`` are local ranks of that host.
        """
        return cls(
            f"{_ranks(ranks, host)} ended before init(): no process of"
            f" {'them' if len(ranks) > 1 else 'it'} is left. Every rank must call init(). The"
            " output of srun or mpirun shows how they ended.",
            () if host else ranks,
        )


_MOST_PARTS = 8  # ranks or ranges of ranks listed in a message


def ranks_named(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, ``ranks 1, 2`` or ``ranks 0-2, 5``. A long list is cut."""
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
    """Return a number with its noun: ``1 rank``, ``2 ranks``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Return text from another host in printable form: control characters and invalid bytes are
    escaped.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in text
    )


def nearest(word: str, known: Iterable[str], alike: float = 0.6) -> str | None:
    """Return the known word most similar to ``word``, or None.

    ``alike`` is the minimum similarity, from 0 (anything) to 1 (equal).
    """
    import difflib  # imported here because it is slow to import and few processes need it

    return next(iter(difflib.get_close_matches(word, list(known), 1, alike)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: ``; did you mean 'x'?``, or empty if no
    known word is similar.
    """
    near = nearest(word, known)
    return f"; did you mean {near!r}?" if near else ""
