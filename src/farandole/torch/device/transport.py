"""The DeviceTransport of torch: ranks agree on the path at the first collective."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from farandole.base.contracts import Parts, Report, Transport
from farandole.base.log import logger
from farandole.base.types import Buffer, DType, ReduceOp
from farandole.errors import HorovodInternalError, RequestError
from farandole.job import context
from farandole.job.config import Settings
from farandole.torch.device import agreement
from farandole.torch.device.accelerator import Accelerator
from farandole.torch.device.native import Native, scale_into
from farandole.torch.device.staged import Staged, on_device
from farandole.torch.device.watch import Watch

T = TypeVar("T")
_FAREWELL = 30.0  # seconds for a group to end
_TORCH = {dtype: getattr(torch, dtype.value) for dtype in DType}
_NO_GROUP = (
    "GPUs could not be connected by {name}: {error}. Use --nccl=off (FARANDOLE_NCCL=off) to"
    " exchange through host memory"
)


class TorchTransport:
    """Collectives on a device. See ``contracts.DeviceTransport``."""

    def __init__(
        self,
        host: Transport,
        settings: Settings,
        lost: Callable[[HorovodInternalError], None],
        accelerator: Accelerator,
    ) -> None:
        self.rank = host.rank
        self.size = host.size
        self.board = host.board
        self._host = host
        self._settings = settings
        self._lost = lost
        self._accelerator = accelerator
        self._staged = Staged(host, accelerator)
        self._way: Native | Staged | None = None  # the path of collectives; None: not agreed yet
        self._refused = ""
        self._backend: Any = None
        self._store: Any = None  # the backend's
        self._watch: Watch | None = None
        self._given_up = threading.Lock()  # acquired once, by the thread that aborts or shuts down

    # Calls by the engine.

    def empty(self, count: int, dtype: DType) -> Any:
        # the result goes to the program, which may differentiate it
        with torch.inference_mode(False):
            return torch.empty(count, dtype=_TORCH[dtype], device=self._accelerator.device)

    def scale(self, out: Any, data: Any, dtype: DType, factor: float) -> None:
        scale_into(out, data, dtype, factor)

    def record_event(self) -> Any:
        return self._accelerator.record_event()

    def run(self, events: Sequence[Any], work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        # in inference mode, because the program's tensors may have been created in it
        with torch.inference_mode(), self._accelerator.stream(events):
            if self._way is None:
                self._agree()
            if self._refused:
                raise RequestError(self._refused)
            return work(), self._accelerator.wait_event(events)

    # Collectives.

    def allocate(self, nbytes: int) -> Any:
        return self.empty(nbytes, DType.UINT8)

    def allreduce(self, buffers: Sequence[Buffer], op: ReduceOp, scale: float = 1.0) -> None:
        """Reduce buffers. The result for a host array, which represents a joined rank, is not
        copied back.
        """
        if buffers:
            self._chosen().allreduce([self._here(buffer) for buffer in buffers], op, scale)

    def adasum(self, buffers: Sequence[Buffer], scale: float) -> None:
        self._staged.adasum([self._here(buffer) for buffer in buffers], scale)

    def allgather(self, send: Any, receive: Any, counts: Sequence[int]) -> None:
        self._chosen().allgather(send, receive, counts)

    def broadcast(self, data: Any, root: int) -> None:
        self._chosen().broadcast(data, root)

    def alltoall(
        self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]
    ) -> None:
        self._chosen().alltoall(send, send_counts, receive, receive_counts)

    def reducescatter(
        self, buffer: Buffer, counts: Sequence[int], op: ReduceOp, scale: float = 1.0
    ) -> None:
        self._chosen().reducescatter(buffer, counts, op, scale)

    def barrier(self) -> None:
        self._host.barrier()

    def split(self, ranks: Sequence[int]) -> TorchTransport | None:
        part = self._host.split(ranks)
        return (
            None
            if part is None
            else TorchTransport(part, self._settings, self._lost, self._accelerator)
        )

    # Lifetime.

    def report_waits(self, report: Report) -> None:
        """Report waits of exchanges through the host. Waits for a device are not reported."""
        self._host.report_waits(report)

    def report_parts(self, report: Parts | None) -> None:
        """Report the parts of exchanges through the host."""
        self._host.report_parts(report)

    def abort(self, why: str) -> None:
        """Abort the work on this rank's device. The other ranks are notified over the host."""
        if self._backend is not None and self._given_up.acquire(blocking=False):
            _within(_FAREWELL, self._backend.abort)

    def close(self) -> None:
        """Wait for the device, unless its work was aborted."""
        if self._backend is None:
            return
        if self._watch is not None:
            if not self._given_up.locked():
                self._accelerator.drain()  # ends even if a peer is lost: the watch then aborts it
            self._watch.stop()
        if self._given_up.acquire(blocking=False):
            _within(_FAREWELL, self._backend.shutdown)
        self._backend = self._store = self._way = None

    # The path.

    def _chosen(self) -> Native | Staged:
        if self._way is None:
            self._agree()
        assert self._way is not None
        return self._way

    def _agree(self) -> None:
        """Choose the path. All ranks take part, because they have agreed on a collective."""
        wish, name = self._settings.nccl, self._accelerator.name
        if self.size == 1 and wish != "on":
            self._way = Native(0, 1)
            return
        far = self._settings.tls and context.local_size() < self.size
        bar = f"--tls and ranks on other hosts, which {name} would reach unencrypted" if far else ""
        decision = agreement.decide(agreement.views(self._host, self._accelerator, wish, bar), name)
        if self.rank == 0:
            log = logger.warning if decision.avoidable else logger.info
            log(
                "GPUs exchange %s: %s",
                f"by {name}" if decision.direct else "through host memory",
                decision.why,
            )
        self._refused = decision.refused
        self._way = self._connected() if decision.direct else self._staged

    def _connected(self) -> Native:
        try:
            self._store = agreement.store_for(
                self._host, context.store(), self._settings.start_timeout
            )
            self._backend = self._accelerator.connect(self._store, self.rank, self.size)
            self._watch = Watch(self._host, self._lost, lambda: self.abort(""))
            way = Native(self.rank, self.size, self._backend, self._accelerator.follow, self._watch)
            one = torch.ones(1, device=self._accelerator.device)
            # The first collective connects.
            way.allreduce([Buffer(one, one, DType.FLOAT32)], ReduceOp.SUM, 1.0)
        except HorovodInternalError:
            raise
        except RuntimeError as error:
            raise RuntimeError(
                _NO_GROUP.format(name=self._accelerator.name, error=error)
            ) from error
        return way

    def _here(self, buffer: Buffer) -> Buffer:
        if not isinstance(buffer.data, np.ndarray):
            return buffer
        tensor = on_device(buffer.data, buffer.dtype, self._accelerator.device)
        return Buffer(tensor, tensor, buffer.dtype)


def _within(seconds: float, end: Callable[[], None]) -> None:
    """Call ``end``, for at most ``seconds``. If it hangs, its thread is abandoned."""

    def quietly() -> None:
        with contextlib.suppress(RuntimeError):  # the group ends anyway
            end()

    thread = threading.Thread(target=quietly, name="farandole-farewell", daemon=True)
    thread.start()
    thread.join(seconds)
