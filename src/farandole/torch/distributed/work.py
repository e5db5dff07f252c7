"""A call of torch.distributed that is under way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d

from farandole.core.groups.calls import Call
from farandole.errors import StalledError

_c10d: Any = _distributed_c10d
_graphs_may_wait: Callable[[], bool] = getattr(
    _c10d, "_allow_inflight_collective_as_graph_input", lambda: False
)


class FarandoleWork(_c10d.Work):  # type: ignore[misc]
    """``wait_for(seconds)``: until it is done, False if the time is over first. ``results``: the
    tensors that it gives. ``call_back_later(callback)``: has it called when this is done, but
    not yet; None: callbacks come at once. ``hurry``: called by who asks whether it is done, while
    it is not.
    """

    def __init__(
        self,
        call: Call,
        wait_for: Callable[[float | None], bool],
        results: Sequence[Any],
        what: str,
        call_back_later: Callable[[Callable[[], None]], None] | None = None,
        hurry: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._call_back = call_back_later or call.when_done
        self._call = call
        self._wait_for = wait_for
        self._results = results
        self._what = what
        self._hurry = hurry
        self._future: Any = None
        self._in_registry = not call.done and _graphs_may_wait()
        # of ``allow_inflight_collective_as_graph_input_ctx``: ``wait_tensor`` finds it there
        if self._in_registry:
            for tensor in results:
                _c10d._register_work(tensor, self)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Until it is done; raises what went wrong. ``timeout``: it may go on afterwards, but this
        wait ends.
        """
        self._wait(timeout)
        if self._in_registry:
            self._in_registry = False
            for tensor in self._results:
                torch.ops._c10d_functional.wait_tensor(tensor)  # takes it out
        return True

    def _wait(self, timeout: timedelta | None) -> None:
        if not self._call.done:
            seconds = (
                timeout.total_seconds() if timeout is not None and timeout > timedelta(0) else None
            )
            if not self._wait_for(seconds):
                raise StalledError(
                    f"{self._what} is not done {seconds:g} s after wait(timeout) was called"
                )
        if self._call.error is not None:
            raise self._call.error

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if self._hurry is not None and not self._call.done:
            self._hurry()
        return self._call.done

    def is_success(self) -> bool:
        return self._call.done and self._call.error is None

    def exception(self) -> BaseException | None:
        return self._call.error

    def result(self) -> list[Any]:
        self.wait()
        return list(self._results)

    def source_rank(self) -> int:
        """From whom a message came."""
        self.wait()
        source: int = getattr(self._call, "source", -1)
        return source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """It holds the tensors, or raises what went wrong: also where C++ waits for it."""
        if self._future is None:
            started: Any = torch.futures.Future()
            # whose callback can fail it; set_exception is Python's alone
            self._future = started.then(self._outcome)
            self._call_back(lambda: started.set_result(None))
        return self._future

    getFuture = get_future

    def boxed(self) -> Any:
        return _of_cpp(self).boxed()

    def _outcome(self, _: Any) -> list[Any]:
        if self._call.error is not None:
            raise self._call.error
        return list(self._results)


def _of_cpp(work: FarandoleWork) -> Any:
    """A work of C++ for who keeps no more than that: of one of Python's, nothing that could wait is
    left when Python forgets it.
    """
    return _c10d._create_work_from_future(work.get_future())


_give = _c10d.Reducer._set_forward_pass_work_handle


def _give_future(reducer: Any, work: Any, use_static_world_size: bool) -> None:
    """DDP's ``join(divide_by_initial_world_size=False)`` gives its reducer, in C++, a work that
    Python then forgets.
    """
    _give(
        reducer, _of_cpp(work) if isinstance(work, FarandoleWork) else work, use_static_world_size
    )


_c10d.Reducer._set_forward_pass_work_handle = _give_future
