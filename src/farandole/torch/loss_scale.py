"""Losses that a GradScaler scales: what a codec keeps is in units of scaled gradients, and follows
the scale.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

# before torch 2.3
_KIND: Any = torch.amp.GradScaler if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler


def watch() -> None:
    """Call ``scaled_by`` of distributed optimizers with their GradScaler, from now on.

    PyTorch declares no link from an optimizer to its scaler. The scaler is given the optimizer in
    ``unscale_`` and ``step``, before each step, so these two methods are wrapped.
    """
    for name in ("unscale_", "step"):
        plain = getattr(_KIND, name)
        if not hasattr(plain, "notifies_farandole"):
            setattr(_KIND, name, _notifying(plain))


def scale_of(scaler: Any) -> Callable[[], float]:
    """Return a function that gives the scale of the losses to come; 0 if the scaler is gone."""
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
