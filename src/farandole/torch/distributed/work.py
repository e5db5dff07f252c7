"""A running call of torch.distributed."""

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
    """A running call.

    ``wait_for(seconds)``: waits until the call is done; returns False after the timeout.
    ``results``: the output tensors. ``call_back_later(callback)``: schedules the callback for some
    time after the call is done; None: callbacks run immediately. ``hurry``: called when the program
    polls an unfinished call.
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
        self._awaited = False  # by the program: a future is complete from the beginning
        self._in_registry = not call.done and _graphs_may_wait()
        # for ``allow_inflight_collective_as_graph_input_ctx``: ``wait_tensor`` looks there
        if self._in_registry:
            for tensor in results:
                _c10d._register_work(tensor, self)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call is done, and raise its error. A ``timeout`` ends the wait, not the
        call.
        """
        self._wait(timeout)
        if self._in_registry:
            self._in_registry = False
            for tensor in self._results:
                torch.ops._c10d_functional.wait_tensor(tensor)  # removes it
        return True

    def _wait(self, timeout: timedelta | None) -> None:
        if not self._call.done:
            seconds = (
                timeout.total_seconds() if timeout is not None and timeout > timedelta(0) else None
            )
            if not self._wait_for(seconds):
                raise StalledError(
                    f"{self._what} has not completed within {seconds:g} s after wait(timeout)"
                )
        self._awaited = True
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
        """Return the rank that sent the message."""
        self.wait()
        source: int = getattr(self._call, "source", -1)
        return source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Return a future with the tensors or the error, on which C++ can wait too."""
        if self._future is None:
            started: Any = torch.futures.Future()
            # A callback can make the future fail for C++ too; set_exception works in Python only.
            self._future = started.then(self._outcome)
            if self._awaited:
                started.set_result(None)
            else:
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
    """Return a C++ work for callers that do not keep the Python object: a Python work could no
    longer be awaited once Python has freed it.
    """
    return _c10d._create_work_from_future(work.get_future())


_give = _c10d.Reducer._set_forward_pass_work_handle


def _give_future(reducer: Any, work: Any, use_static_world_size: bool) -> None:
    """Pass a C++ work to DDP's reducer. With ``join(divide_by_initial_world_size=False)``, DDP
    gives its reducer a work that Python then frees.
    """
    _give(
        reducer, _of_cpp(work) if isinstance(work, FarandoleWork) else work, use_static_world_size
    )


_c10d.Reducer._set_forward_pass_work_handle = _give_future
