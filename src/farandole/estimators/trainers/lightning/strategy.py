"""Lightning's strategy for ranks in separate processes."""

from __future__ import annotations

from typing import Any

import torch

import farandole.torch as hvd


class Ranks:
    """A strategy, mixed into Lightning's for one device: each process has one device, and the
    optimizer averages gradients over the processes.
    """

    strategy_name = "farandole"

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)  # type: ignore[call-arg]
        self.global_rank = hvd.rank()
        self.local_rank = hvd.local_rank()
        self.world_size = hvd.size()

    @property
    def is_global_zero(self) -> bool:
        return bool(self.global_rank == 0)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        total = str(reduce_op).rpartition(".")[2].lower() == "sum"
        return hvd.allreduce(tensor, op=hvd.Sum if total else hvd.Average)

    def all_gather(
        self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False
    ) -> torch.Tensor:
        return hvd.allgather(tensor.unsqueeze(0))

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        hvd.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return hvd.broadcast_object(obj, src)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        agreed = hvd.allreduce(torch.tensor(float(decision)), op=hvd.Min if all else hvd.Max)
        return bool(agreed.item())
