"""Tensors that a program gives to a group again and again, as DDP gives its buckets."""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from farandole.job.config import Settings
from farandole.job.context import malloc

_AGAIN = 2  # times that a tensor's memory was given before
_MOST = 1024  # that are remembered
_count: Any = getattr(torch._C, "_storage_Use_Count", None)
_holder = SimpleNamespace(storage=object())
_ALONE = sys.getrefcount(_holder.storage)  # of what nothing else refers to
_seen: dict[int, tuple[StorageWeakRef, int]] = {}  # by identity; the number of times


class StorageKeeper:
    """See ``contracts.Keeper``."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self.identity: int = storage._cdata
        self._place = storage.data_ptr(), storage.nbytes()

    def moved(self) -> bool:
        return bool((self._storage.data_ptr(), self._storage.nbytes()) != self._place)

    def shared(self) -> bool:
        """Python has one object for a storage, which counts once there, however many refer to
        it.
        """
        return bool(_count(self.identity) > 1 or sys.getrefcount(self._storage) > _ALONE)


@functools.cache
def _wanted() -> bool:
    return Settings.from_env().registration != "off"


def keeper_of(tensor: Any) -> StorageKeeper | None:
    """A keeper of the tensor's memory, if that was given several times; each time in one piece, so
    that nothing else is in it. Not of what other processes or devices know by its pages, nor of
    what is not the storage's own: it may be of use, as an array of numpy's, when the storage is
    gone. What ``tensor.numpy()`` has shown looks the same. And of glibc's memory alone: others
    (jemalloc, for calloc) take freed pages for zeros after madvise(), and registered ones that the
    program resizes are not.
    """
    if _count is None or type(tensor) is not torch.Tensor or not (malloc.is_glibcs() and _wanted()):
        return None
    storage = tensor.untyped_storage()
    if storage.nbytes() != tensor.nbytes or not storage.data_ptr() or not storage.resizable():
        return None
    identity = storage._cdata
    known, times = _seen.get(identity, (None, 0))
    if known is None or known.expired():
        if len(_seen) >= _MOST:
            _forget()
        _seen[identity] = StorageWeakRef(storage), 1
        return None
    _seen[identity] = known, times + 1
    if times < _AGAIN or tensor.is_shared() or (torch.cuda.is_initialized() and tensor.is_pinned()):
        return None
    return StorageKeeper(storage)


def _forget() -> None:
    for identity in [
        identity for identity, (known, _) in list(_seen.items()) if known.expired()
    ] or list(_seen):
        _seen.pop(identity, None)
