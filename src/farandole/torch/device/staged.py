"""Collectives through host memory, for ranks whose devices cannot reach each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from farandole.base.contracts import Transport
from farandole.base.types import Buffer, DType, ReduceOp
from farandole.core.collectives import adasum
from farandole.torch.device.accelerator import Accelerator

if TYPE_CHECKING:
    from farandole.base.types import Array

_ALIGNMENT = 64


class Staged:
    """The collectives of a Transport on flat tensors: copied to pinned memory, exchanged over
    ``host``, and copied back.
    """

    def __init__(self, host: Transport, accelerator: Accelerator) -> None:
        self._host = host
        self._accelerator = accelerator
        self._memory = torch.empty(0, dtype=torch.uint8)

    def allreduce(self, buffers: Sequence[Buffer], op: ReduceOp, scale: float) -> None:
        self._reduce(buffers, lambda hosted: self._host.allreduce(hosted, op, scale))

    def adasum(self, buffers: Sequence[Buffer], scale: float) -> None:
        self._reduce(buffers, lambda hosted: adasum.allreduce(self._host, hosted, scale))

    def allgather(self, send: Any, receive: Any, counts: Sequence[int]) -> None:
        self._through(
            [send],
            [receive],
            lambda sends, outs: self._host.allgather(_bytes(sends[0]), _bytes(outs[0]), counts),
        )

    def broadcast(self, data: Any, root: int) -> None:
        """Broadcast ``data``. It is copied to the host on all ranks, because sender and receivers
        use the same place.
        """
        self._through(
            [data], [data], lambda sends, outs: self._host.broadcast(_bytes(outs[0]), root)
        )

    def alltoall(
        self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]
    ) -> None:
        self._through(
            [send],
            [receive],
            lambda sends, outs: self._host.alltoall(
                _bytes(sends[0]), send_counts, _bytes(outs[0]), receive_counts
            ),
        )

    def reducescatter(
        self, buffer: Buffer, counts: Sequence[int], op: ReduceOp, scale: float
    ) -> None:
        data, out, dtype = buffer
        self._through(
            [data],
            [out],
            lambda sends, outs: self._host.reducescatter(
                Buffer(sends[0], outs[0], dtype), counts, op, scale
            ),
        )

    def _reduce(self, buffers: Sequence[Buffer], work: Callable[[list[Buffer]], None]) -> None:
        dtype = buffers[0].dtype
        self._through(
            [buffer.data for buffer in buffers],
            [buffer.out for buffer in buffers],
            lambda datas, outs: work(
                [Buffer(data, out, dtype) for data, out in zip(datas, outs, strict=True)]
            ),
        )

    def _through(
        self,
        sends: Sequence[Any],
        receives: Sequence[Any],
        work: Callable[[list[Array], list[Array]], None],
    ) -> None:
        """Run ``work`` on host arrays in place of the tensors. A tensor that is both sent and
        received has one array.
        """
        places = self._places(sends, receives)
        for tensor in sends:
            places[id(tensor)].copy_(tensor, non_blocking=True)
        self._accelerator.drain()
        work(
            [_numpy(places[id(tensor)]) for tensor in sends],
            [_numpy(places[id(tensor)]) for tensor in receives],
        )
        for tensor in receives:
            tensor.copy_(places[id(tensor)], non_blocking=True)

    def _places(self, sends: Sequence[Any], receives: Sequence[Any]) -> dict[int, Any]:
        tensors = {id(tensor): tensor for tensor in (*sends, *receives)}
        sizes = {
            key: -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for key, tensor in tensors.items()
        }
        if len(self._memory) < sum(sizes.values()):
            with torch.inference_mode(False):
                self._memory = self._accelerator.pinned(sum(sizes.values()))
        begin, places = 0, {}
        for key, tensor in tensors.items():
            places[key] = self._memory[begin : begin + tensor.nbytes].view(tensor.dtype)
            begin += sizes[key]
        return places


def _numpy(tensor: Any) -> Array:
    """Return host memory as a numpy array; for bfloat16, its bits."""
    array: Array = (
        tensor.view(torch.int16).numpy().view(np.uint16)
        if tensor.dtype is torch.bfloat16
        else tensor.numpy()
    )
    return array


def _bytes(array: Array) -> Array:
    return array.view(np.uint8)


def on_device(array: Array, dtype: DType, device: Any) -> Any:
    """Return a host array (of the storage type) as a tensor on ``device``."""
    if dtype is DType.BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(array).to(device)
