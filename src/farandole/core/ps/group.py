"""One optimizer's weights on one server: the participants, their agreement, and the centre."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from farandole.base.contracts import PushCodec
from farandole.core.kernels import quiet
from farandole.core.ps.centre import KINDS, Centre, OptimizerState
from farandole.core.ps.clocks import Clocks, Rule
from farandole.core.ps.wire import TYPES, Message
from farandole.errors import SettingsError, WireError
from farandole.job.plugins import registry

if TYPE_CHECKING:
    from farandole.base.types import Array

MOST = 1 << 44  # maximum bytes of one server's share
# bytes by which a payload may exceed twice the size of its values, as for small blocks
ROOM = 1 << 12
Facts = dict[str, Any]
FACTS = ("ranks", "rule", "spec", "tensors", "parts", "statistics", "codec")


class Failure(NamedTuple):
    """The error sent to all ranks of a group. ``lost``: the lost rank; -1: the ranks differ."""

    text: str
    lost: int = -1


class CentreGroup:
    """The group described by a rank's ``hello``.

    ``facts``: ranks, rule, spec, tensors (name, shape, dtype), parts (type, count) of this server's
    share (the last ``statistics`` are untrained), codec (for pushes; empty: none). Raises WireError
    if they are invalid.
    """

    def __init__(self, facts: Facts) -> None:
        try:
            ranks, self.statistics = (
                [int(rank) for rank in facts["ranks"]],
                int(facts["statistics"]),
            )
            self._parts = [(str(kind), int(count)) for kind, count in facts["parts"]]
            self._tensors = [
                (str(name), list(shape), str(dtype)) for name, shape, dtype in facts["tensors"]
            ]
            self._spec = str(facts["spec"])
            self.rule = Rule.of(facts["rule"])
            self._codec = codec_of_pushes(str(facts["codec"]))
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(
                f"a rank sent a malformed description of its weights: {error!r}"
            ) from None
        wrong = [kind for kind, count in self._parts if kind not in TYPES or count < 0]
        size = 0 if wrong else sum(np.dtype(kind).itemsize * count for kind, count in self._parts)
        if wrong or size > MOST or not ranks or len({*ranks}) < len(ranks):
            raise WireError(
                f"a rank sent an invalid description of its weights: parts {self._parts} for ranks"
                f" {ranks}"
            )
        self.facts = {name: facts[name] for name in FACTS}
        self.clocks = Clocks(ranks, self.rule)
        self.centre: Centre | None = None
        # whether the centre is older than this membership of an elastic job
        self.resumed = False
        # the optimizer's states at the last commits of an elastic job, by commit
        self.commits: dict[int, OptimizerState] = {}
        self.failure: Failure | None = None
        self.known: set[int] = set()  # ranks that have sent hello
        # the same optimizer's next group, with different weights
        self._later: CentreGroup | None = None
        self._moved = 0.0  # time of the first move to it
        self._answering: list[int] = []  # ranks that still wait for the answer to a push

    def arrays(self) -> list[Array]:
        """Return new memory for this server's share. Its pages are allocated when they are
        written.
        """
        return [np.empty(count, dtype=kind) for kind, count in self._parts]

    def payloads(self, sizes: Sequence[Any]) -> list[Array]:
        """Return new memory for payloads of these ``sizes`` in bytes, one for each trained part.
        Raises WireError if the sizes are invalid.
        """
        trained = self._parts[: len(self._parts) - self.statistics]
        most = [ROOM + 2 * np.dtype(kind).itemsize * count for kind, count in trained]
        fit = len(sizes) == len(most) and all(
            type(size) is int and 0 <= size <= limit
            for size, limit in zip(sizes, most, strict=True)
        )
        if self._codec is None or not fit:
            raise WireError(
                f"received payloads of {list(sizes)[:8]} bytes; at most {most[:8]} were expected"
            )
        return [np.empty(size, dtype=np.uint8) for size in sizes]

    def unpack(self, payloads: Sequence[Array], into: Sequence[Array]) -> None:
        """Decompress the payloads of a push into its changes. Raises WireError if they are
        invalid.
        """
        assert self._codec is not None
        try:
            with quiet():
                for payload, out in zip(payloads, into, strict=False):
                    self._codec.unpack(payload, out)
        except (ValueError, IndexError) as error:
            raise WireError(f"a push cannot be decoded by {self._codec.spec}: {error}") from None

    def arrays_of(self, message: Message) -> list[Array]:
        """Return new memory for the arrays of a message: this server's share, and in a ``begin``
        with ``steps`` the optimizer's state after them.
        """
        trained = self._parts[: len(self._parts) - self.statistics]
        kinds = KINDS.get(self.rule.optimizer, 0) if "steps" in message else 0
        kept = [np.empty(count, dtype=kind) for _ in range(kinds) for kind, count in trained]
        return [*self.arrays(), *kept]

    def begin(self, values: Sequence[Array], steps: int = 0, commit: int = 0) -> None:
        """Create the centre, unless it exists, from the initial weights. The optimizer's state
        after ``steps`` steps, of commit ``commit`` on disk, may follow them; see ``arrays_of``.
        """
        if self.centre is not None:
            return
        count, kinds = len(self._parts), KINDS.get(self.rule.optimizer, 0)
        kept, trained = values[count:], count - self.statistics
        self.centre = Centre(self.clocks, values[:count], self.statistics)
        if self.commits:  # of the previous membership
            self.centre.optimizer_state = self.commits[max(self.commits)]
        elif kept:
            begins = range(0, kinds * trained, trained)
            state = OptimizerState(steps, [list(kept[begin : begin + trained]) for begin in begins])
            self.centre.optimizer_state = state
            if self.rule.sync:  # the ranks may return to this commit
                self.commits = {commit: state}

    def optimizer_state(self, number: int) -> OptimizerState | None:
        """Return the optimizer's state at commit ``number``, or its present state if ranks never
        return to a commit; None if it is unknown.
        """
        if self.rule.sync:
            return self.commits.get(number)
        return None if self.centre is None else self.centre.optimizer_state

    def commit(self, number: int) -> None:
        """Keep the optimizer's state for commit ``number`` and for the previous commit: a rank may
        be lost before all ranks have made the newer commit. Asynchronous ranks never return to a
        commit.
        """
        if self.rule.sync and self.centre is not None and number not in self.commits:
            state = self.centre.optimizer_state
            if state.kept:
                before = max(self.commits, default=number)
                self.commits = {
                    **{each: self.commits[each] for each in self.commits if each == before},
                    number: state,
                }

    def succeed(self, before: CentreGroup, commit: int) -> None:
        """Take over from the group of an earlier membership, whose ranks are no longer served.

        Asynchronous ranks continue with its centre. Synchronous ranks provide the weights of their
        commit, and continue with the optimizer's state of that ``commit``; without it, the state
        begins with zeros.
        """
        if not self.rule.sync and before.centre is not None:
            self.centre = before.centre.continued(self.clocks)
            self.resumed = True
        elif commit in before.commits:
            self.commits = {commit: before.commits[commit]}
        before.centre, before.commits = None, {}
        before.failure = Failure(
            "this membership of the elastic job has ended: the other ranks have formed a new one",
            min(before.clocks.ranks),
        )

    def is_like(self, other: CentreGroup) -> bool:
        """Return whether both groups have the same strategy, tensors and shares."""
        return (self._spec, self.rule, self._tensors, self._parts) == (
            other._spec,
            other.rule,
            other._tensors,
            other._parts,
        )

    @property
    def moved_to(self) -> tuple[CentreGroup | None, float]:
        """The next group of the same optimizer, with different weights, and the seconds since the
        first rank moved to it.
        """
        return self._later, time.monotonic() - self._moved

    @moved_to.setter
    def moved_to(self, found: tuple[CentreGroup | None, float]) -> None:
        self._later, self._moved = found[0], time.monotonic() - found[1]

    def first(self) -> int:
        """Return the rank that provides the initial weights."""
        return min(self.clocks.here(), default=0)

    @contextlib.contextmanager
    def answering(self, rank: int) -> Iterator[None]:
        """Record that the rank waits for the centre after its push."""
        self._answering.append(rank)
        try:
            yield
        finally:
            self._answering.remove(rank)

    def owes(self) -> bool:
        """Return whether a rank has yet to receive the centre after its push. An earlier flush
        would change it, and ranks that stepped together would get different weights.
        """
        return any(self.clocks.ready(rank) for rank in self._answering)

    def leave(self, rank: int, *, for_good: bool) -> None:
        """Record that a rank left (see ``Clocks.leave``)."""
        if rank not in self.clocks.ranks:
            return
        if self.centre is None:
            self.clocks.leave(rank, for_good=for_good)
        else:
            self.centre.leave(rank, for_good=for_good)

    def move(self, rank: int, later: CentreGroup) -> None:
        """Move a rank to the group ``later``, with different weights, so that no rank waits for it
        here.
        """
        if self._later is None:
            self._later = later
            self._moved = time.monotonic()
        if rank not in self.clocks.moved:
            self.clocks.moved.add(rank)
            self.compare()
            self.leave(rank, for_good=True)

    def late(self, seconds: float) -> bool:
        """Return whether the first rank moved to different weights so long ago that the others
        should have followed.
        """
        return self._later is not None and time.monotonic() - self._moved > seconds

    def compare(self, *, late: bool = False) -> None:
        """Fail all ranks if one rank continues with weights that another has dropped. ``late``: see
        ``Clocks.stray``.
        """
        stray, later = self.clocks.stray(late=late), self._later
        if stray is None or later is None or self.failure is not None:
            return
        (one, other), clocks = stray, self.clocks.clocks
        failure = Failure(
            f"all ranks must train the same weights, but rank {other}"
            f" {_changed(self._tensors, later._tensors)} after exchange {clocks[other]}, and rank"
            f" {one} continued without that change, to exchange {clocks[one]}. Add, freeze and"
            " unfreeze parameters on all ranks in the same step; if ranks take different numbers"
            " of steps, call average_weights() before"
        )
        group: CentreGroup | None = self
        while group is not None:
            group.failure, group = group.failure or failure, group._later

    def difference(self, rank: int, other: CentreGroup, known: int) -> str:
        """Return the difference between the hello of ``rank``, whose group is ``other``, and the
        group of ``known``; empty if there is none.
        """
        if (other._spec, other.rule, other.clocks.ranks) != (
            self._spec,
            self.rule,
            self.clocks.ranks,
        ):
            return (
                f"all ranks must use the same strategy, but rank {rank} has {other._spec!r} and"
                f" rank {known} has {self._spec!r}. Set the same strategy on all ranks"
            )
        for mine, theirs in zip(other._tensors, self._tensors, strict=False):
            if mine != theirs:
                return (
                    f"all ranks must train the same model, but rank {rank} has {_shown(mine)} and"
                    f" rank {known} has {_shown(theirs)}"
                )
        if len(other._tensors) != len(self._tensors):
            return (
                f"all ranks must train the same model, but rank {rank} has {len(other._tensors)}"
                f" weights, and rank {known} has {len(self._tensors)}"
            )
        return (
            ""
            if other._parts == self._parts
            else f"ranks {rank} and {known} have different numbers of servers"
        )


def codec_of_pushes(spec: str) -> PushCodec | None:
    """Return the codec with which a server decompresses pushes; None if ``spec`` is empty. Raises
    SettingsError for a codec that does not compress pushes.
    """
    made = registry.make("codec", spec) if spec else None
    if made is not None and not isinstance(made, PushCodec):
        raise SettingsError(f"codec={spec!r} does not compress pushes to parameter servers")
    return made


def _changed(before: Sequence[Any], now: Sequence[Any]) -> str:
    """Return the changes from one set of tensors to another, as text."""
    names = [Counter(_shown(tensor) for tensor in tensors) for tensors in (before, now)]
    changes = (
        ("has frozen or removed", [*(names[0] - names[1])]),
        ("has added", [*(names[1] - names[0])]),
    )
    texts = [
        f"{what} {', '.join(tensors[:4])}{' ...' if len(tensors) > 4 else ''}"
        for what, tensors in changes
        if tensors
    ]
    return " and ".join(texts) or "has different parameters of the same names"


def _shown(tensor: tuple[str, list[int], str]) -> str:
    name, shape, dtype = tensor
    return f"{name} of shape {tuple(shape)} and type {dtype}"


def facts(
    ranks: Sequence[int],
    rule: Rule,
    spec: str,
    tensors: Sequence[Any],
    parts: Sequence[Any],
    statistics: int,
    codec: str,
) -> Message:
    """Return the description for a rank's ``hello``."""
    return {
        "ranks": list(ranks),
        "rule": list(rule),
        "spec": spec,
        "tensors": list(tensors),
        "parts": list(parts),
        "statistics": statistics,
        "codec": codec,
    }
