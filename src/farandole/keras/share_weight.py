"""The weight of a rank's gradients in a job with a fixed global batch."""

from __future__ import annotations

from farandole.base.types import ReduceOp
from farandole.errors import SettingsError
from farandole.strategies.options import GradientOptions
from farandole.strategies.shares import Shares
from farandole.strategies.shares.objections import check_options


class ShareWeight:
    """The weight of this rank's gradients in the sum over all ranks.

    A rank computes all of its shares as one batch, so its gradients are the mean over its shares.
    The weight is part of compiled programs, and known only within ``fit``, which divides the
    global batch.
    """

    def __init__(self, options: GradientOptions) -> None:
        """Raises SettingsError for options with which gradients are not plain sums."""
        check_options(options)
        self._averages = options.op == ReduceOp.AVERAGE
        self._value: float | None = None
        self._compiled: float | None = None

    def set(self, shares: Shares) -> bool:
        """Set the weight for a rank with these shares. Returns whether it differs from the one in
        programs that were compiled before.
        """
        self._value = shares.held / shares.total if self._averages else float(shares.held)
        differs = self._compiled not in (None, self._value)
        self._compiled = self._value
        return differs

    def clear(self) -> None:
        """Forget the weight at the end of ``fit``."""
        self._value = None

    def value(self) -> float:
        """Return the weight. Raises SettingsError outside ``fit``."""
        if self._value is None:
            raise SettingsError(
                "with --fixed-global-batch only model.fit divides the batch of a Keras model among"
                " the ranks, and a custom loop does not (train_on_batch, optimizer.apply,"
                " elastic.run). Call model.fit outside of elastic.run, or remove the flag"
            )
        return self._value
