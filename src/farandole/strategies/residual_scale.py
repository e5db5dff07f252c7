"""The scale of a codec's residuals, which follows the loss scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from farandole.base.contracts import Codec, Rescaling
from farandole.strategies.buckets import Gradient


class ResidualScale:
    """The scale of one optimizer's residuals. ``scale``: returns the loss scale of the next
    gradients (0: unknown); None if losses are not scaled.
    """

    def __init__(self, codec: Codec | None) -> None:
        self._codec = codec
        self.scale: Callable[[], float] | None = None
        # scale of the residuals; 0: the unknown scale of the next gradients
        self._last = 0.0

    def update(self, gradients: Sequence[Gradient]) -> None:
        """Rescale the residuals of ``gradients`` to the present loss scale."""
        if self.scale is None or not isinstance(self._codec, Rescaling):
            return
        now = self.scale()
        if self._last and now not in (0.0, self._last):
            self._codec.rescale([gradient.identity[0] for gradient in gradients], now / self._last)
        self._last = now or self._last

    def forget(self) -> None:
        """Treat loaded residuals as being in units of the next gradients."""
        self._last = 0.0
