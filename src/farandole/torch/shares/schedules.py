"""Learning rate schedules in steps of several shares."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch.optim import lr_scheduler

# By optimizer, distributed or not: a function that returns whether its step is incomplete.
_open: weakref.WeakKeyDictionary[Any, Callable[[], bool]] = weakref.WeakKeyDictionary()


def follow(optimizer: Any, is_open: Callable[[], bool]) -> None:
    """Let schedulers of ``optimizer`` step only when ``is_open()`` is false.

    A program calls ``scheduler.step()`` after each share, and PyTorch has no hook in it, so the
    method of all classes of schedulers is wrapped.
    """
    _open[optimizer] = is_open
    for kind in (*_kinds(lr_scheduler.LRScheduler), *_others()):
        plain = vars(kind).get("step")
        if plain is not None and not hasattr(plain, "follows_shares"):
            kind.step = _following(plain)


def _others() -> Iterator[Any]:
    """Yield the class that is not derived from the others in old versions of PyTorch."""
    if not issubclass(lr_scheduler.ReduceLROnPlateau, lr_scheduler.LRScheduler):
        yield lr_scheduler.ReduceLROnPlateau


def _kinds(kind: Any) -> Iterator[Any]:
    yield kind
    for derived in kind.__subclasses__():
        yield from _kinds(derived)


def _following(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def following(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        is_open = _open.get(getattr(scheduler, "optimizer", None))
        return None if is_open is not None and is_open() else plain(scheduler, *args, **kwargs)

    following.follows_shares = True  # type: ignore[attr-defined]
    return following
