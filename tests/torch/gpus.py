"""Jobs whose ranks have a GPU: each its own where there are enough, else they share one.

NCCL refuses ranks that share a GPU of one host ("duplicate GPU"). If each says that it is a host of
its own, NCCL cannot tell, and its ranks exchange over sockets: that is how NCCL between ranks is
tested where there is one GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.run_job import job

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
NCCL = torch.distributed.is_available() and torch.distributed.is_nccl_available()
with_gpu = pytest.mark.skipif(not GPUS, reason="no CUDA GPU")
with_nccl = pytest.mark.skipif(not NCCL, reason="torch was built without NCCL")

# Ranks, and the settings that make them go this way.
WAYS = [
    pytest.param(2, {"nccl": "off"}, id="staged"),
    pytest.param(1, {"nccl": "on"}, id="nccl-one", marks=with_nccl),
    pytest.param(2, {"nccl": "on"}, id="nccl-two", marks=with_nccl),
]


def place(rank: int) -> Any:
    """This rank's GPU. It computes in full float32, so that its numbers are those of the CPU."""
    import torch  # here, for torch.backends cannot be pickled with this function

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.cuda.set_device(rank % GPUS)
    return torch.device("cuda", torch.cuda.current_device())


@contextmanager
def apart(n: int) -> Iterator[None]:
    """In a rank of n: NCCL and Farandole take this process's GPU for another one than its
    peers'.
    """
    from farandole.torch.device.cuda import Cuda

    if n <= GPUS:
        yield
        return
    identity, host = Cuda.identity, os.environ.get("NCCL_HOSTID")
    Cuda.identity = lambda self: f"{identity(self)} of {os.getpid()}"  # type: ignore[method-assign]
    os.environ["NCCL_HOSTID"] = str(os.getpid())
    try:
        yield
    finally:
        Cuda.identity = identity  # type: ignore[method-assign]
        os.environ.pop("NCCL_HOSTID")
        os.environ.update({} if host is None else {"NCCL_HOSTID": host})


def gpu_job(n: int, fn: Callable[[int, Any], Any], *, nccl: str, **options: Any) -> list[Any]:
    """``job``, with ``fn(rank, device)``."""

    def body(rank: int) -> Any:
        device = place(rank)
        if nccl != "on":
            return fn(rank, device)
        with apart(n):
            return fn(rank, device)

    return job(n, body, store=True, nccl=nccl, **options)
