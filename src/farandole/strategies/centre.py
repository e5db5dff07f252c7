"""The centre at the job's parameter servers of one optimizer's weights."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from farandole.base.contracts import PushCodec
from farandole.core.ps.clocks import Rule
from farandole.job import context
from farandole.job.context import ProcessSet

if TYPE_CHECKING:
    from farandole.base.types import Array
    from farandole.core.ps.client import CentreClient, Pushed


class CentreConnection:
    """``name``: of the optimizer, the same on all ranks; ``ranks``: numbers in the job; ``spec``:
    of the strategy, for messages; ``on_transfer``: called with each push and pull, its begin and
    end; ``codec``: compresses pushes.
    """

    def __init__(
        self,
        name: str,
        process_set: ProcessSet,
        ranks: Sequence[int],
        spec: str,
        on_transfer: Callable[[str, float, float], None],
        codec: PushCodec | None,
    ) -> None:
        self._name = name
        self._set = process_set
        self._ranks = ranks
        self._spec = spec
        self._on_transfer = on_transfer
        self._codec = codec
        self._client: CentreClient | None = None
        self._clients = 0  # so far
        self._held: list[tuple[Any, ...]] | None = None  # shape and type of what the centre holds

    def push(
        self,
        rule: Rule,
        anchors: Sequence[Array],
        changes: Sequence[Array],
        statistics: Sequence[Array],
        names: Sequence[str],
        *,
        count: bool,
    ) -> Pushed:
        """See ``contracts.Peers.push``. ``names``: of the weights."""
        client = self._open(rule, anchors, statistics, names)
        beginning = [*anchors, *statistics]
        pushed = [*changes, *statistics]
        with self._observed("SERVERS_PUSH"):
            if count:
                return client.push(beginning, pushed)
            return client.flush(beginning, pushed)

    def pull(self, into: Sequence[Array], statistics: Sequence[Array]) -> None:
        """See ``contracts.Peers.pull``."""
        assert self._client is not None
        with self._observed("SERVERS_PULL"):
            self._client.pull([*into, *statistics])

    def other_weights(self) -> None:
        """The next push is of other weights, maybe of the same shapes."""
        self._held = None

    @contextlib.contextmanager
    def _observed(self, activity: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self._on_transfer(activity, begin, time.monotonic())

    def _open(
        self,
        rule: Rule,
        anchors: Sequence[Array],
        statistics: Sequence[Array],
        names: Sequence[str],
    ) -> CentreClient:
        held = [(array.shape, array.dtype) for array in (*anchors, *statistics)]
        # weights were added: another centre, of all of them
        if self._client is None or held != self._held:
            self._held = held
            self._clients += 1
            # servers outlive a process set, and its engine's numbers
            self._client = context.servers().group(
                f"{self._name}.{context.unique_id(self._set)}.{self._clients}",
                self._ranks,
                rule,
                self._spec,
                anchors,
                names,
                statistics,
                self._codec,
                after=self._client,
            )
        return self._client
