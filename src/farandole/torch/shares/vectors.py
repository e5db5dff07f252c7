"""Gradients as vectors, one per dtype and device, and their exchange as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from farandole.base.digests import digest_of_text
from farandole.strategies.shares.exchange import ALIGNMENT
from farandole.torch.functions import allgather, alltoall


class TorchVectors:
    """A ``strategies.shares.exchange.Vectors`` of torch tensors on ``device``."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def add(self, left: Any, right: Any) -> Any:
        return left.add_(right)

    def as_bytes(self, vector: Any) -> Any:
        return vector.view(torch.uint8)

    def as_values(self, data: Any, like: Any) -> Any:
        return data.view(like.dtype)

    def concatenate(self, parts: Sequence[Any]) -> Any:
        return torch.cat(list(parts))

    def numbers(self, values: Sequence[int]) -> Any:
        return torch.tensor(values, dtype=torch.int64, device=self._device).view(torch.uint8)

    def read_numbers(self, data: Any) -> list[int]:
        found: list[int] = data.view(torch.int64).tolist()
        return found

    def alltoall(self, data: Any, sizes: Sequence[int]) -> Any:
        return alltoall(data, sizes, name="shares.parts")[0]

    def allgather(self, data: Any) -> Any:
        return allgather(data, name="shares.sums")


class FlatTensors:
    """The positions of tensors in vectors, one vector per dtype.

    A flag for each tensor travels at the end of the first vector: its sum over all shares is 0 if
    no share has a value for the tensor.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        kinds = list(dict.fromkeys(tensor.dtype for tensor in tensors))
        self._members = {
            kind: [place for place, tensor in enumerate(tensors) if tensor.dtype == kind]
            for kind in kinds
        }
        self._sizes = [tensor.numel() for tensor in tensors]
        self._device = tensors[0].device if tensors else torch.device("cpu")
        self.digest = digest_of_text(
            repr([(tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors])
        )

    def packed(self, values: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """Return new vectors with ``values``; zeros for None."""
        vectors: list[torch.Tensor] = []
        for kind, members in self._members.items():
            flags = len(values) if not vectors else 0
            count = sum(self._sizes[place] for place in members) + flags
            unit = ALIGNMENT // kind.itemsize
            vector = torch.zeros(-(-count // unit) * unit, dtype=kind, device=self._device)
            begin = 0
            for place in members:
                end = begin + self._sizes[place]
                value = values[place]
                if value is not None:
                    vector[begin:end].view(value.shape).copy_(value)
                begin = end
            if flags:
                here = [float(value is not None) for value in values]
                vector[begin : begin + flags] = torch.tensor(here, dtype=kind)
            vectors.append(vector)
        return vectors

    def unpacked(self, vectors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Return the tensors in ``vectors``, flat; None for those without a value in any share."""
        found: list[torch.Tensor | None] = [None] * len(self._sizes)
        flags: list[bool] = []
        for (_, members), vector in zip(self._members.items(), vectors, strict=True):
            begin = 0
            for place in members:
                end = begin + self._sizes[place]
                found[place] = vector[begin:end]
                begin = end
            if not flags:
                flags = (vector[begin : begin + len(found)] != 0).tolist()
        return [value if flag else None for value, flag in zip(found, flags, strict=True)]


def bytes_of(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return a copy of the tensors' memory as bytes on ``device``, a multiple of ``ALIGNMENT`` in
    number.
    """
    parts = [tensor.detach().reshape(-1).view(torch.uint8).to(device) for tensor in tensors]
    rest = torch.zeros(-sum(map(len, parts)) % ALIGNMENT, dtype=torch.uint8, device=device)
    return torch.cat([*parts, rest])


def write_bytes(data: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Write bytes from ``bytes_of`` into the tensors."""
    begin = 0
    for tensor in tensors:
        end = begin + tensor.numel() * tensor.element_size()
        # A copy, because the bytes of a small tensor move the next one off its alignment.
        values = data[begin:end].to(tensor.device, copy=True).view(tensor.dtype)
        tensor.copy_(values.view(tensor.shape))
        begin = end
