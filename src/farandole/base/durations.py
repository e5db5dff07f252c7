"""Human-readable durations."""

from __future__ import annotations


def readable(seconds: float) -> str:
    """Return a duration with its unit: ``25 s``, ``2:05 min`` or ``3:12 h``."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d} h"
