"""The state of PyTorch training as bytes, and the parts of it that differ between ranks."""

from __future__ import annotations

import io
from typing import Any

import torch

import farandole.torch as hvd


def packed(state: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def opened(state: bytes, device: Any = "cpu") -> dict[str, Any]:
    unpacked: dict[str, Any] = torch.load(
        io.BytesIO(state), map_location=device, weights_only=False
    )
    return unpacked


def average_buffers(model: Any) -> None:
    """Average running statistics (of BatchNorm), which each rank computes from its own rows, over
    all ranks.
    """
    own = [each for each in model.buffers() if each.is_floating_point() and each.numel()]
    if not own or hvd.size() == 1:
        return
    with torch.no_grad():
        for buffer, mean in zip(own, hvd.grouped_allreduce(own, op=hvd.Average), strict=True):
            buffer.copy_(mean)
