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
    """From now on optimizers with a ``scaled_by`` hear which GradScaler is theirs: a scaler does
    not tell an optimizer, and what it does before each step is the only sign of it.
    """
    for name in ("unscale_", "step"):
        plain = getattr(_KIND, name)
        if not hasattr(plain, "tells_farandole"):
            setattr(_KIND, name, _telling(plain))


def scale_of(scaler: Any) -> Callable[[], float]:
    """A function that gives the scale of the losses to come; 0 if the scaler is gone."""
    found = weakref.ref(scaler)

    def scale() -> float:
        scaler = found()
        return 0.0 if scaler is None else float(scaler.get_scale())

    return scale


def _telling(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def told(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        hear = getattr(getattr(optimizer, "_farandole", None), "scaled_by", None)
        if hear is not None and scaler.is_enabled():
            hear(scaler)
        return plain(scaler, optimizer, *args, **kwargs)

    told.tells_farandole = True  # type: ignore[attr-defined]
    return told
