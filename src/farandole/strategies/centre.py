"""The centre of one optimizer's weights at the job's parameter servers."""

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
    """A connection to the centre.

    - ``name``: The optimizer's name, the same on all ranks.
    - ``ranks``: Rank numbers in the job.
    - ``spec``: The strategy's spec, for messages.
    - ``on_transfer``: Called with the activity, begin and end of each push and pull.
    - ``codec``: The codec for pushes.
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
        self._clients = 0  # clients so far
        # shape and dtype of each array at the centre
        self._held: list[tuple[Any, ...]] | None = None

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
        """See ``contracts.Peers.push``. ``names``: the names of the weights."""
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
        """Expect different weights in the next push, perhaps of the same shapes."""
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
        # Weights were added: open another centre with all of them.
        if self._client is None or held != self._held:
            self._held = held
            self._clients += 1
            # Servers outlive a process set and its engine's numbers, so the name must be unique.
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
                # Only the first centre of a session continues an earlier membership's.
                commit=context.agreed_commit() if self._client is None else -1,
            )
            if not rule.sync and context.is_elastic():
                context.commit_alone()  # all ranks have made the same commits before
        return self._client
