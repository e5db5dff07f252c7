"""A process group of torch.distributed on Farandole's transports."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import distributed
from torch._C import _distributed_c10d

from farandole.base.interrupts import interrupts
from farandole.core.groups.barrier import monitored
from farandole.core.groups.calls import Call
from farandole.core.groups.group import CollectiveGroup
from farandole.core.observe.stall.direct_query import DirectQuery
from farandole.core.observe.stall.report import stacks_text
from farandole.errors import HorovodInternalError
from farandole.job.config import Settings
from farandole.job.config.settings import spare_cores
from farandole.job.plugins.autoload import NAME
from farandole.torch.distributed import accelerators, operations, rendezvous
from farandole.torch.distributed.operations import Operation
from farandole.torch.distributed.overloads import (
    as_list,
    as_lists,
    named_as_in_torch,
    options_of,
)
from farandole.torch.distributed.tensors import byte_memory, dtype_code
from farandole.torch.distributed.work import FarandoleWork

_c10d: Any = _distributed_c10d
_UNSET = timedelta(0)
_ANSWER_SECONDS = 3.0  # the wait for stacks of other ranks
_ASKED_RANKS = 3
_stack_queries: list[DirectQuery] = []  # of the default groups
_open: weakref.WeakSet[FarandoleProcessGroup] = weakref.WeakSet()


def create(options: Any, backend_options: Any = None) -> FarandoleProcessGroup:
    """Create a group for torch.distributed, on its members. Collective."""
    timeout = options.timeout
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    return FarandoleProcessGroup(
        options.store,
        options.group_rank,
        options.group_size,
        seconds,
        options.global_ranks_in_group,
        options.group_id,
    )


def monitored_barrier(
    group: Any = None, timeout: timedelta = timedelta(seconds=300), wait_all_ranks: bool = False
) -> None:
    """Provide ``dist.monitored_barrier``, which torch.distributed allows for Gloo only. Rank 0 of
    the group raises an error that names a rank missing after ``timeout``, or all missing ranks with
    ``wait_all_ranks``.
    """
    found = distributed.group.WORLD if group is None else group
    if not isinstance(found, FarandoleProcessGroup):
        raise ValueError(
            f"monitored_barrier: a group of the backend {NAME!r} is needed, not"
            f" {type(found).__name__}"
        )
    found.monitored_barrier(timeout, wait_all_ranks)


class FarandoleProcessGroup(_c10d.ProcessGroup):  # type: ignore[misc]
    """A process group; see ``torch.distributed``.

    ``timeout``: seconds. ``ranks``: the members' ranks in the job, empty for all. Collective.
    Raises RendezvousError with the members that do not arrive in time.
    """

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: float,
        ranks: Sequence[int] = (),
        name: str = "",
    ) -> None:
        super().__init__(rank, size)  # without the store, which would prevent subclassing
        self._store = store
        self._name = name
        self._sequence = 0
        self._splits = 0
        self._description = ""
        self._accelerators: dict[str, Any] = {}
        title = f"process group {name}" if ranks else "the default process group"
        meeting = rendezvous.meet(store, rank, size, timeout, ranks)
        self._stack_query = (
            None if ranks or size == 1 else rendezvous.stack_query(store, meeting, rank)
        )
        if self._stack_query is not None:
            _stack_queries.append(self._stack_query)
            rendezvous.keep_served(store, rank)
        try:
            self.state = CollectiveGroup(
                meeting.transport, ranks or range(size), title, timeout, _stacks_text
            )
        except BaseException:
            self._stop_answering()
            meeting.transport.close()
            raise
        self._rank = rank
        self._size = size
        self._spare = spare_cores(
            Settings.from_env(), int(os.environ.get("LOCAL_WORLD_SIZE", size))
        )
        # the graph after which pending calls run, and whether they are running
        self._backward = -1
        self._draining = False
        _open.add(self)

    # Identity.

    def getBackendName(self) -> str:
        return NAME

    def name(self) -> str:
        return NAME

    def _get_backend_name(self) -> str:
        return NAME

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    getRank, getSize = rank, size

    def get_group_store(self) -> Any:
        return self._store

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._description

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def getGroupName(self) -> str:  # the name that C++ calls
        return self._name

    def getGroupDesc(self) -> str:
        return self._description

    setGroupName, setGroupDesc = _set_group_name, _set_group_desc

    @property
    def options(self) -> Any:
        return self

    @property
    def _timeout(self) -> timedelta:
        return timedelta(seconds=self.state.timeout)

    _device_types = property(lambda self: [torch.device("cpu"), *accelerators.devices_of(self)])

    def _get_backend(self, device: Any) -> Any:
        kind = torch.device(device).type
        return (
            self
            if kind == "cpu" or accelerators.is_being_created(self)
            else self._accelerator_backend(kind)
        )

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout for calls without one."""
        self.state.timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        """Accept torch's request to count calls: this group always counts them."""

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    # End of the group.

    def abort(self) -> None:
        """Raise an error in all waiting calls of this group, on all ranks."""
        self.state.abort(f"{self.state.name_of(self._rank)} called abort() on {self.state.name}")

    def shutdown(self) -> None:
        """Leave the group after its calls have ended."""
        try:
            self.state.close()
        finally:
            self._stop_answering()
        for backend in self._accelerators.values():
            backend.shutdown()

    def _stop_answering(self) -> None:
        """Stop answering queries for this rank's stack."""
        if self._stack_query is not None:
            _stack_queries.remove(self._stack_query)
            self._stack_query.close()
            self._stack_query = None

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> FarandoleProcessGroup | None:
        """Create a group of some members (by rank in this group); return None on the others.
        Collective.
        """
        self._splits += 1
        members = sorted(new_ranks)
        if self._rank not in members:
            return None
        name = group_name or f"{self._name}:split:{self._splits}:{'-'.join(map(str, members))}"
        seconds = self.state.timeout if timeout is None else timeout.total_seconds()
        store = distributed.PrefixStore(f"split/{name}", self._store)
        ranks = [self.state.ranks[rank] for rank in members]
        part = FarandoleProcessGroup(
            store, members.index(self._rank), len(members), seconds, ranks, name
        )
        part._set_group_name(name)
        part._set_group_desc(group_desc or f"{self._name}:split:{self._splits}")
        return part

    splitGroup = split_group

    # Collectives.

    @named_as_in_torch
    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None, op: Any = None) -> Any:
        tensors, opts = as_list(tensors), options_of(opts, _c10d.AllreduceOptions, timeout, op)
        if self._is_on_accelerator(tensors, opts):
            return super().allreduce(tensors, opts)
        return self._begin(operations.allreduce, opts, tensors, opts.reduceOp)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or _c10d.AllreduceCoalescedOptions()
        if self._is_on_accelerator(tensors, opts):
            return super().allreduce_coalesced(tensors, opts)
        return self._begin(operations.allreduce, opts, tensors, opts.reduceOp)

    @named_as_in_torch
    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Any:
        tensors, opts = as_list(tensors), options_of(opts, _c10d.ReduceOptions, timeout, op)
        if self._is_on_accelerator(tensors, opts):
            return super().reduce(tensors, opts)
        return self._begin(operations.reduce, opts, tensors, opts.reduceOp, opts.rootRank)

    @named_as_in_torch
    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        tensors, opts = as_list(tensors), options_of(opts, _c10d.BroadcastOptions, timeout)
        if self._is_on_accelerator(tensors, opts):
            return super().broadcast(tensors, opts)
        return self._begin(operations.broadcast, opts, tensors, opts.rootRank)

    @named_as_in_torch
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        outputs, inputs = as_lists(outputs), as_list(inputs)
        opts = options_of(opts, _c10d.AllgatherOptions, timeout)
        if self._is_on_accelerator(inputs, opts):
            return super().allgather(outputs, inputs, opts)
        return self._begin(operations.allgather, opts, outputs, inputs)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Gather tensors. ``outputs``: by rank, a tensor for each of ``inputs``."""
        opts = opts or _c10d.AllgatherOptions()
        if self._is_on_accelerator(inputs, opts):
            return super().allgather_coalesced(outputs, inputs, opts)
        return self._begin(operations.allgather_coalesced, opts, outputs, inputs)

    def _allgather_base(self, output: Any, input: Any, opts: Any = None) -> Any:
        opts = opts or _c10d.AllgatherOptions()
        if self._is_on_accelerator([input], opts):
            return super()._allgather_base(output, input, opts)
        return self._begin(operations.allgather_into, opts, [output], [input])

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or _c10d.AllgatherOptions()
        if self._is_on_accelerator(inputs, opts):
            return super().allgather_into_tensor_coalesced(outputs, inputs, opts)
        return self._begin(operations.allgather_into, opts, outputs, inputs)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    @named_as_in_torch
    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        outputs, inputs = as_lists(outputs), as_list(inputs)
        opts = options_of(opts, _c10d.GatherOptions, timeout)
        if self._is_on_accelerator(inputs, opts):
            return super().gather(outputs, inputs, opts)
        return self._begin(operations.gather, opts, outputs, inputs, opts.rootRank)

    @named_as_in_torch
    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        outputs, inputs = as_list(outputs), as_lists(inputs)
        opts = options_of(opts, _c10d.ScatterOptions, timeout)
        if self._is_on_accelerator(outputs, opts):
            return super().scatter(outputs, inputs, opts)
        return self._begin(operations.scatter, opts, outputs, inputs, opts.rootRank)

    @named_as_in_torch
    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, op: Any = None
    ) -> Any:
        outputs, inputs = as_list(outputs), as_lists(inputs)
        opts = options_of(opts, _c10d.ReduceScatterOptions, timeout, op)
        if self._is_on_accelerator(outputs, opts):
            return super().reduce_scatter(outputs, inputs, opts)
        return self._begin(operations.reduce_scatter, opts, outputs, inputs, opts.reduceOp)

    def _reduce_scatter_base(self, output: Any, input: Any, opts: Any = None) -> Any:
        opts = opts or _c10d.ReduceScatterOptions()
        if self._is_on_accelerator([output], opts):
            return super()._reduce_scatter_base(output, input, opts)
        return self._begin(operations.reduce_scatter_from, opts, [output], [input], opts.reduceOp)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or _c10d.ReduceScatterOptions()
        if self._is_on_accelerator(outputs, opts):
            return super().reduce_scatter_tensor_coalesced(outputs, inputs, opts)
        return self._begin(operations.reduce_scatter_from, opts, outputs, inputs, opts.reduceOp)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def alltoall_base(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Any,
        input_split_sizes: Any,
        opts: Any = None,
        timeout: Any = None,
    ) -> Any:
        opts = options_of(opts, _c10d.AllToAllOptions, timeout)
        if self._is_on_accelerator([input], opts):
            return super().alltoall_base(output, input, output_split_sizes, input_split_sizes, opts)
        return self._begin(
            operations.alltoall_base,
            opts,
            output,
            input,
            list(output_split_sizes),
            list(input_split_sizes),
        )

    all_to_all_single = alltoall_base

    @named_as_in_torch
    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        opts = options_of(opts, _c10d.AllToAllOptions, timeout)
        if self._is_on_accelerator(inputs, opts):
            return super().alltoall(outputs, inputs, opts)
        return self._begin(operations.alltoall, opts, outputs, inputs)

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        opts = options_of(opts, _c10d.BarrierOptions, timeout)
        return self._begin(operations.barrier, opts)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Synchronize all ranks. See ``farandole.torch.distributed.monitored_barrier``."""
        seconds = self.state.timeout if timeout is None else timeout.total_seconds()
        monitored(self.state, seconds, everybody=wait_all_ranks)

    def _begin(self, make: Callable[..., Operation], opts: Any, *args: Any) -> FarandoleWork:
        """Start the operation ``make(group, *args)``."""
        state = self.state
        try:
            operation = make(state, *args)
        except Exception as error:
            self._refuse(make.__name__, error, opts)
            raise
        self._sequence += 1
        seconds = self._seconds(opts)
        backward = self._current_backward() if opts.asyncOp else -1
        thread = threading.get_native_id() if backward >= 0 else 0
        call = state.run(
            operation.name,
            operation.work,
            seconds,
            last=operation.last(),
            wait=not opts.asyncOp,
            held_by=0 if self._spare else thread,
        )

        def wait_for(limit: float | None) -> bool:
            if limit is not None:
                return call.sleep(limit)
            state.calls.wait(call)
            return True

        def call_back_at_its_end(callback: Callable[[], None]) -> None:
            late = Call(partial(_wait_and_call_back, state, call, callback))
            state.late_callbacks.start(late, held_by=thread if backward == self._backward else 0)

        later = call_back_at_its_end if thread else None
        return FarandoleWork(
            call, wait_for, operation.results, operation.name, later, state.calls.hurry
        )

    def _seconds(self, opts: Any) -> float:
        """Return the timeout of a call."""
        timeout = opts.timeout
        return timeout.total_seconds() if timeout > _UNSET else self.state.timeout

    def _refuse(self, what: str, error: Exception, opts: Any) -> None:
        """Take part in a call that ``error`` prevents here: it fails on the other ranks too, and
        the next calls of all ranks meet.
        """
        self._sequence += 1
        refuse, text = self.state.collectives.refuse, f"{type(error).__name__}: {error}"
        call = self.state.run(
            what, lambda: refuse(text), self._seconds(opts), wait=not opts.asyncOp
        )
        if call.error is not None and interrupts(call.error):
            raise call.error

    def _current_backward(self) -> int:
        """Return the id of the graph that autograd runs on this thread; -1 if none.

        Calls made during backward run at its end (see ``spare_cores``) or immediately; their
        callbacks run at the end. Callbacks may call the group, as PowerSGD's hook does: these calls
        follow all calls in backward, on all ranks.
        """
        task: int = torch._C._current_graph_task_id()
        if task < 0 or self._draining:
            return -1
        if task != self._backward:
            self._backward = task
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
        return task

    def _after_backward(self) -> None:
        """Run pending calls before DDP waits for them at the end of backward: it waits in C++,
        where they could not run.
        """
        self._draining = True
        self._backward = -1
        try:
            self.state.calls.run_all()
            self.state.late_callbacks.run_all()
        finally:
            self._draining = False

    # Messages.

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Any:
        (tensor,) = tensors
        if self._is_on_accelerator(tensors):
            return super().send(tensors, dstRank, tag)
        self._check_peer("send", dstRank)
        state, memory = self.state, byte_memory(tensor)
        memory.refresh()
        message = state.messages.send(
            dstRank, tag, memory.array, dtype_code(tensor.dtype), state.timeout
        )
        return FarandoleWork(
            message, lambda limit: state.messages.wait(message, limit), tensors, "send"
        )

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Any:
        if self._is_on_accelerator(tensors):
            return super().recv(tensors, srcRank, tag)
        self._check_peer("recv", srcRank)
        return self._receive(tensors, srcRank, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        if self._is_on_accelerator(tensors):
            return super().recv_anysource(tensors, tag)
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: Any, src: int | None, tag: int) -> Any:
        (tensor,) = tensors
        state, memory = self.state, byte_memory(tensor)
        last = None if memory.home is None else memory.write_back
        message = state.messages.receive(
            src, tag, memory.array, dtype_code(tensor.dtype), state.timeout, last
        )
        return FarandoleWork(
            message, lambda limit: state.messages.wait(message, limit), tensors, "recv"
        )

    def _check_peer(self, what: str, peer: int) -> None:
        if not 0 <= peer < self._size or peer == self._rank:
            raise ValueError(
                f"{what}: {peer} is not another member of {self.state.name}. Use a rank from 0 to"
                f" {self._size - 1} other than this one, {self._rank}"
            )

    # Tensors on other devices.

    def _is_on_accelerator(self, tensors: Sequence[Any], opts: Any = None) -> bool:
        """Return whether the tensors are on a GPU, and create its backend. ``opts``: the options of
        the collective; None for a message.
        """
        if not tensors or tensors[0].is_cpu:
            return False
        try:
            self._accelerator_backend(tensors[0].device.type)
        except ValueError as error:
            if opts is not None:
                self._refuse("a collective", error, opts)
            raise
        return True

    def _accelerator_backend(self, device: str) -> Any:
        if device not in self._accelerators:
            self._accelerators[device] = accelerators.backend_for(self, device, self._store)
        return self._accelerators[device]


def _wait_and_call_back(state: CollectiveGroup, call: Call, callback: Callable[[], None]) -> None:
    try:
        state.calls.wait(call)
    finally:
        callback()


def _stacks_text(ranks: Sequence[int]) -> str:
    """Return the stacks of the first few of these ranks of the job as lines; an empty string if
    none is available. This takes seconds if the ranks do not answer.
    """
    if not _stack_queries:
        return ""
    return stacks_text(_stack_queries[-1].ask(ranks[:_ASKED_RANKS], _ANSWER_SECONDS))


def _disown() -> None:
    """Detach a forked child, which is not a member: it must not call, answer or leave in its
    parent's name.
    """
    for group in list(_open):
        group.state.disown()
        group._stack_query = None
    _open.clear()
    _stack_queries.clear()


os.register_at_fork(after_in_child=_disown)


@atexit.register
def _leave() -> None:
    """Leave all groups, so that other ranks do not take the exit for a failure."""
    for group in list(_open):
        if not group.state.calls.busy:
            with contextlib.suppress(HorovodInternalError, OSError):
                group.state.close()
