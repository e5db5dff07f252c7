"""Options of optimizers that are incompatible with a fixed global batch."""

from __future__ import annotations

from farandole.base.types import ReduceOp
from farandole.core.api.compression import NoneCompressor
from farandole.core.api.ops import WORLD
from farandole.errors import SettingsError
from farandole.strategies.options import GradientOptions


def check_options(options: GradientOptions) -> None:
    """Raise SettingsError for options with which gradients are not plain sums over all shares."""
    strategy = options.strategy
    for argument, value, is_plain, cure in (
        ("op", ReduceOp(options.op).name, options.op != ReduceOp.ADASUM, "use Average or Sum"),
        ("strategy", strategy and strategy.spec, strategy is None, "remove it"),
        ("codec", options.codec, not options.codec, "remove it"),
        (
            "compression",
            getattr(options.compression, "__name__", options.compression),
            options.compression is NoneCompressor,
            "remove it",
        ),
        ("process_set", options.process_set, options.process_set is WORLD, "remove it"),
        (
            "backward_passes_per_step",
            options.passes,
            options.passes == 1,
            "use a larger --max-np or batch size",
        ),
        (
            "gradient_predivide_factor",
            options.postscale,
            options.prescale == 1.0,
            "remove it",
        ),
    ):
        if not is_plain:
            raise SettingsError(
                f"{argument}={value} is incompatible with --fixed-global-batch, which sums the"
                f" gradients of all shares in one order: {cure}"
            )
