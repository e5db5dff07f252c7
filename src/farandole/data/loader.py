"""A base class for data loaders, and a mixin that prefetches batches on a background thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from farandole.base.log import logger


class BaseDataLoader:
    """Base class of data loaders: ``_iterate`` yields the batches of one epoch, ``__len__`` returns
    their number.
    """

    def __len__(self) -> int:
        raise NotImplementedError

    def _iterate(self) -> Iterator[Any]:
        """Yield the batches of one epoch."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _process_batch(self, batch: Any) -> Any:
        """Prepare a batch for the user (on the user's thread)."""
        return batch


class AsyncDataLoaderMixin:
    """Prefetch batches on a background thread. Put the mixin before a loader: ``class
    Fast(AsyncDataLoaderMixin, MyLoader)``.

    The thread lives for one iteration: it ends with the epoch, with an exception (re-raised in the
    consumer), when the iteration is abandoned, or in ``close_async_loader()``. The next epoch
    starts only when it is requested, so that a ``set_epoch()`` in between takes effect.

    ``async_loader_queue_size``: the number of batches to keep ready; 0 loads each batch when it is
    requested, without a thread.
    """

    def __init__(
        self,
        async_loader_queue_size: int = 64,
        debug_data_loader: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self._running: list[Prefetch] = []
        super().__init__(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        loader: Any = self
        if self.async_loader_queue_size <= 0:
            for batch in loader._iterate():
                yield loader._process_batch(batch)
            return
        ahead = Prefetch(loader, self.async_loader_queue_size)
        self._running.append(ahead)
        try:
            for number, batch in enumerate(ahead.batches()):
                if self.debug_data_loader:
                    logger.debug("data loader: batch %d, %d more ready", number, len(ahead.ready))
                yield loader._process_batch(batch)
        finally:  # also when the consumer stops early
            ahead.close()
            if ahead in self._running:
                self._running.remove(ahead)

    def close_async_loader(self) -> None:
        """Stop the thread and any running iteration. May be called at any time, and repeatedly."""
        while self._running:
            self._running.pop().close()


class Prefetch:
    """The batches of one epoch, prefetched by a background thread."""

    def __init__(self, loader: Any, size: int) -> None:
        self.ready: deque[Any] = deque()
        self._size = size
        self._changed = threading.Condition()
        self._closed = False  # the consumer wants no more batches
        self._ended = False  # the thread produces no more batches
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._load, args=(loader,), name="farandole-loader", daemon=True
        )
        try:
            self._thread.start()
        # a signal handler may raise here while the thread runs
        except BaseException:
            self._give_up()
            raise

    def batches(self) -> Iterator[Any]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.ready or self._ended or self._closed)
                if self._closed:
                    return
                if not self.ready:
                    break
                batch = self.ready.popleft()
                self._changed.notify_all()
            yield batch
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._give_up()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _give_up(self) -> None:
        with self._changed:
            self._closed = True
            self.ready.clear()
            self._changed.notify_all()

    def _load(self, loader: Any) -> None:
        try:
            batches = loader._iterate()
            for batch in batches:
                if not self._put(batch):
                    break
            if hasattr(batches, "close"):
                batches.close()  # now, not at garbage collection
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _put(self, batch: Any) -> bool:
        """Wait for room; return False if the batch is no longer wanted."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.ready) < self._size or self._closed)
            if self._closed:
                return False
            self.ready.append(batch)
            self._changed.notify_all()
            return True
