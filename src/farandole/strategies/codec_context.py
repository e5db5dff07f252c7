"""The properties of an optimizer that its codec uses: the loss scale and the momentum."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from farandole.base.contracts import Codec, Momentum, MomentumAware, Rescaling
from farandole.strategies.inner_optimizer import Inner, InnerOptimizer, check_fit

Keys = Callable[[], Sequence[str]]


class CodecContext:
    """The properties of one optimizer, for its codec.

    - ``scale``: Returns the loss scale of the next gradients (0: unknown); None if losses are not
      scaled.
    - ``inner``: Returns the properties of each group of parameters; None if the optimizer is
      unknown.
    - ``group_of``: The group of each gradient, if there are several.
    """

    def __init__(self, codec: Codec | None, label: str) -> None:
        self._codec = codec
        self._label = label
        self.scale: Callable[[], float] | None = None
        self.inner: Inner | None = None
        self.group_of: Callable[[], Sequence[int]] | None = None
        # scale of the residuals; 0: the unknown scale of the next gradients
        self._last = 0.0
        # momenta by group, and the gradients, as last passed to the codec
        self._known: tuple[list[Momentum], object] | None = None

    def update(self, gradients: object, keys: Keys) -> None:
        """Update the codec before a step. ``gradients``: a value that identifies the gradients.
        ``keys``: returns their keys in the codec's state.
        """
        if self._codec is None:
            return
        if self.scale is not None and isinstance(self._codec, Rescaling):
            now = self.scale()
            if self._last and now not in (0.0, self._last):
                self._codec.rescale(keys(), now / self._last)
            self._last = now or self._last
        if self.inner is not None:
            self._follow(self._codec, self.inner, gradients, keys)

    def describe(self, inner: InnerOptimizer | None) -> None:
        """Update the codec for an optimizer of one group with constant properties."""
        if inner is not None:
            facts = [inner]
            self.inner = lambda: facts

    def forget(self) -> None:
        """Treat loaded residuals as being in units of the next gradients."""
        self._last = 0.0

    def _follow(self, codec: Codec, inner: Inner, gradients: object, keys: Keys) -> None:
        groups = inner()
        momenta = [group.momentum for group in groups]
        if self._known == (momenta, gradients):
            return
        if self._known is None:
            check_fit(self._label, groups, codec, None)
        self._known = momenta, gradients
        if not isinstance(codec, MomentumAware) or not momenta:
            return
        names = keys()
        places = self.group_of() if self.group_of is not None else [0] * len(names)
        codec.follow({key: momenta[place] for key, place in zip(names, places, strict=True)})
