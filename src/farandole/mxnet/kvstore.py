"""MXNet's key-value store named "horovod": ``gluon.Trainer(...,
kvstore=mx.kv.create("horovod"))``.
"""

from __future__ import annotations

from typing import Any

from mxnet.kvstore import KVStoreBase

from farandole.base.types import ReduceOp
from farandole.job import context
from farandole.mxnet.functions import allreduce_, broadcast


@KVStoreBase.register
# mxnet has no types, and takes the store's name from the class
class Horovod(KVStoreBase):  # type: ignore[misc]
    """A key-value store that sums over all ranks. MXNet 1.9.1's store of this name covers one
    process only.
    """

    type = "horovod"

    @property
    def rank(self) -> int:
        return context.rank()

    @property
    def local_rank(self) -> int:
        return context.local_rank()

    @property
    def num_workers(self) -> int:
        return context.size()

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Return False for ``KVStoreBase.OPTIMIZER``: each rank updates."""
        return False

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Copy rank 0's ``value`` to ``out`` (an array for each device)."""
        found = broadcast(_list(value)[0], 0, priority=priority)
        for each in _list(out):
            found.copyto(each)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Write the sum of ``value`` over all devices of all ranks to ``out``, or to ``value``."""
        first, *others = _list(value)
        total = first.copy()
        for other in others:
            total += other.as_in_context(total.context)
        allreduce_(total, op=ReduceOp.SUM, priority=priority)
        for each in _list(value if out is None else out):
            total.copyto(each)

    def set_optimizer(self, optimizer: Any) -> None:
        _refuse("set_optimizer")

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        _refuse("save_optimizer_states")

    def load_optimizer_states(self, fname: str) -> None:
        _refuse("load_optimizer_states")


def _list(arrays: Any) -> list[Any]:
    return list(arrays) if isinstance(arrays, (list, tuple)) else [arrays]


def _refuse(what: str) -> None:
    raise ValueError(
        f'{what} is not supported: the store "horovod" only sums, and each rank has its own'
        " optimizer. Remove update_on_kvstore=True, and save the trainer's states with"
        " trainer.save_states(path)"
    )
