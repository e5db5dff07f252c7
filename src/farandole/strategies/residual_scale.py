"""Losses that are scaled: what a codec keeps is in units of scaled gradients, and follows the
scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from farandole.base.contracts import Codec, Rescaling
from farandole.strategies.buckets import Gradient


class ResidualScale:
    """Of one optimizer. ``scale``: gives that of the next gradients (0: nobody knows); None: nobody
    scales.
    """

    def __init__(self, codec: Codec | None) -> None:
        self._codec = codec
        self.scale: Callable[[], float] | None = None
        # of what the codec keeps; 0: that of the next gradients, which nobody has asked for
        self._last = 0.0

    def update(self, gradients: Sequence[Gradient]) -> None:
        """What is kept of these comes to the scale of now."""
        if self.scale is None or not isinstance(self._codec, Rescaling):
            return
        now = self.scale()
        if self._last and now not in (0.0, self._last):
            self._codec.rescale([gradient.identity[0] for gradient in gradients], now / self._last)
        self._last = now or self._last

    def forget(self) -> None:
        """What is kept was loaded, and is in units of the next gradients."""
        self._last = 0.0
