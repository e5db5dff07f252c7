"""The loss scale of a GradScaler, which a codec's residuals follow."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

# the fallback is for torch before 2.3
_KIND: Any = torch.amp.GradScaler if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler


def watch() -> None:
    """Report a GradScaler to the distributed optimizers that it serves, by their ``scaled_by``.

    PyTorch declares no link from an optimizer to its scaler. The scaler receives the optimizer in
    ``unscale_`` and ``step``, before each step, so these two methods are wrapped.
    """
    for name in ("unscale_", "step"):
        plain = getattr(_KIND, name)
        if not hasattr(plain, "notifies_farandole"):
            setattr(_KIND, name, _notifying(plain))


def scale_of(scaler: Any) -> Callable[[], float]:
    """Return a function that returns the scale of the next losses; 0 if the scaler is gone."""
    found = weakref.ref(scaler)

    def scale() -> float:
        scaler = found()
        return 0.0 if scaler is None else float(scaler.get_scale())

    return scale


def _notifying(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def notifying(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        scaled_by = getattr(getattr(optimizer, "_farandole", None), "scaled_by", None)
        if scaled_by is not None and scaler.is_enabled():
            scaled_by(scaler)
        return plain(scaler, optimizer, *args, **kwargs)

    notifying.notifies_farandole = True  # type: ignore[attr-defined]
    return notifying
