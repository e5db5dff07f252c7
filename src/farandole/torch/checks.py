"""Torch's facts about a replica: digests of parameters, settings of the optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from farandole.base.digests import digest_of_bytes, stride
from farandole.checks.replicas import FROZEN, KIND, Cures
from farandole.torch.binding import is_dense

CURES = Cures(
    "hvd.broadcast_parameters(model.state_dict(), root_rank=0)",
    "torch.utils.data.DistributedSampler(dataset, hvd.size(), hvd.rank()), or data[hvd.rank() ::"
    " hvd.size()]",
    state="hvd.broadcast_optimizer_state(optimizer, root_rank=0)",
)
_NO_MATTER = ("foreach", "fused", "capturable", "differentiable")  # how a step is computed


class TorchReplica:
    """See ``checks.agreement.Replica``. ``parameters``: (name, parameter), those that are
    exchanged.
    """

    cures = CURES
    patient = False
    told: Collection[str] = ()

    def __init__(self, optimizer: weakref.ref[Any]) -> None:
        self.parameters: list[tuple[str, Any]] = []
        self._optimizer = optimizer

    def names(self) -> Sequence[str]:
        return [name for name, _ in self.parameters]

    def weights(self) -> list[int]:
        return digests(
            [parameter if parameter.requires_grad else None for _, parameter in self.parameters]
        )

    def settings(self) -> Mapping[str, str]:
        optimizer = self._optimizer()
        if optimizer is None:
            return {}
        several = len(optimizer.param_groups) > 1
        frozen = sum(not parameter.requires_grad for _, parameter in self.parameters)
        of_groups = {
            f"{key} of parameter group {number}" if several else key: text
            for number, group in enumerate(optimizer.param_groups)
            for key in sorted(optimizer.defaults)
            if key not in _NO_MATTER and (text := _number(group.get(key)))
        }
        return {KIND: type(optimizer).__name__, FROZEN: str(frozen), **of_groups}


def _number(value: Any) -> str:
    """A number, or several, as text; empty for anything else."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        parts = [_number(part) for part in value]
        return f"({', '.join(parts)})" if all(parts) else ""
    return ""


def digest(gradient: Any) -> int:
    """A digest of a dense gradient; 0 if it tells nothing about data: all zeros, NaN or infinite
    somewhere, sparse.
    """
    if gradient.layout is not torch.strided:
        return 0
    seen = _elements(gradient).cpu()
    bits = _bytes(seen).numpy()
    if not bits.any() or not torch.isfinite(seen).all():
        return 0
    return digest_of_bytes(str(tuple(gradient.shape)).encode(), bits.data)


def digests(tensors: Sequence[Any]) -> list[int]:
    """A digest per tensor, 0 for None. What is on a device comes to the host in one piece."""
    there = [tensor for tensor in tensors if tensor is not None]
    if not there:
        return [0] * len(tensors)
    parts = [_bytes(_elements(tensor)) for tensor in there]
    whole = torch.cat([part.to(parts[0].device) for part in parts]).cpu().numpy()
    found, begin = [], 0
    for tensor, part in zip(there, parts, strict=True):
        bits = whole[begin : begin + len(part)]
        found.append(digest_of_bytes(f"{tensor.dtype}{tuple(tensor.shape)}".encode(), bits.data))
        begin += len(part)
    remaining = iter(found)
    return [0 if tensor is None else next(remaining) for tensor in tensors]


def _elements(tensor: Any) -> Any:
    """Some elements, in the order of memory (layouts are the same on all ranks)."""
    tensor = tensor.detach()
    flat = tensor.as_strided((tensor.numel(),), (1,)) if is_dense(tensor) else tensor.reshape(-1)
    return flat[:: stride(len(flat))].resolve_conj().resolve_neg().contiguous()


def _bytes(elements: Any) -> Any:
    return elements.view(torch.uint8)
