"""Options for the reduction of one optimizer's gradients: the arguments shared by all frameworks,
and their checks.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from farandole.base.contracts import Codec, Strategy
from farandole.base.types import DType, ReduceOp
from farandole.core.api.compression import CastCompressor, NoneCompressor
from farandole.core.api.ops import WORLD, check_process_set
from farandole.core.api.ops import factor as number
from farandole.errors import SettingsError
from farandole.job import context
from farandole.job.config import Settings
from farandole.job.context import ProcessSet
from farandole.strategies.codecs import codec as codec_of
from farandole.strategies.specs import ADASUM, strategy_of

TOO_MANY = (
    "Gradients were computed more than backward_passes_per_step times before call to step()."
    " Increase backward_passes_per_step to accumulate gradients locally. ({name!r} got a gradient"
    " in pass {passes} of a step. Add up two losses before one backward(), and set"
    " use_reentrant=False for checkpoints. After a skipped step (by a GradScaler) or another"
    " optimizer's step (SAM's first_step), call optimizer.zero_grad(): gradients cleared by"
    " model.zero_grad(set_to_none=False) or by hand look like accumulated ones)"
)
DROPPED = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or"
    " optimizer.synchronize(). This is prohibited as it can cause a race condition. (To accumulate"
    " gradients over several backward passes, call zero_grad() once, before the first of them."
    " After a backward pass that raised, call optimizer.synchronize() on all ranks before"
    " zero_grad(). If another model's loss passes through this model, as a GAN's generator loss"
    " through the discriminator, freeze this model meanwhile: model.requires_grad_(False))"
)
TAKEN = (
    "zero_grad() discarded gradients of other ranks: they computed this model first, while this"
    " rank was in the backward pass of another model. If ranks compute models in different"
    " orders, call zero_grad() of all optimizers before the first loss.backward(). If several"
    " threads compute them, run one backward pass after the other"
)
LINEAR = (ReduceOp.AVERAGE, ReduceOp.SUM)  # for frameworks without Adasum


class GradientOptions(NamedTuple):
    """Options of one optimizer, the same on all ranks. ``gradient_options`` builds them from a
    program's arguments.
    """

    op: ReduceOp = ReduceOp.AVERAGE
    prescale: float = 1.0  # factor before the reduction
    postscale: float = 1.0  # factor after it
    process_set: ProcessSet = WORLD  # ranks that reduce their gradients
    compression: Any = NoneCompressor  # a Compressor for each tensor
    passes: int = 1  # backward passes whose gradients are accumulated before they are reduced
    average_passes: bool = False  # ... and divided by their number
    # gradients that are sent together: the number of groups, or their members
    groups: int | Sequence[Sequence[Any]] = ()
    sparse_as_dense: bool = False  # sparse gradients are sent as dense ones
    # gradients of variables that are not reduced are divided by the number of ranks
    scale_local: bool = True
    # for ranks that step with their own gradients and exchange weights; None: exchange gradients
    strategy: Strategy | None = None
    codec: str | Codec = ""  # compresses the sum of all ranks' gradients (or weight changes)
    owner: Any = None  # represents the optimizer if the program has created the codec

    @property
    def wire(self) -> DType | None:
        """The 16-bit dtype of ``compression``, if it only casts: flat buffers are then cast as a
        whole.
        """
        casts = isinstance(self.compression, type) and issubclass(self.compression, CastCompressor)
        # overridden by the user
        own = casts and any(
            name in self.compression.__dict__ for name in ("compress", "decompress")
        )
        return self.compression.dtype if casts and not own else None

    @property
    def compressor(self) -> Any:
        """The part of ``compression`` not covered by ``wire``, for single tensors."""
        return self.compression if self.wire is None else NoneCompressor

    def of_reduced(self) -> GradientOptions:
        """Return options whose reduction does not change gradients that are the same on all
        ranks.
        """
        return self._replace(op=ReduceOp.AVERAGE, prescale=1.0, postscale=1.0)


AVERAGE = GradientOptions()


def gradient_options(
    op: int = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    *,
    compression: Any = NoneCompressor,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    scale_local_gradients: bool = True,
    process_set: ProcessSet = WORLD,
    strategy: str | Strategy | None = None,
    codec: str | Codec | None = None,
    instead: str = "",
    epochs: bool = True,
    ops: Sequence[ReduceOp] = (*LINEAR, ReduceOp.ADASUM),
    tensor: str = "tf.Variable",
    by_shares: bool = False,
    stacklevel: int = 3,
) -> GradientOptions:
    """Return options from the arguments of an optimizer or a tape, which have Horovod's names.

    - ``strategy``, ``codec``: None: the job's, from ``--strategy`` and (if compatible) ``--codec``.
    - ``instead``: The alternative for a strategy that exchanges weights, if only gradients are
      available.
    - ``epochs``: Whether the caller reports the end of an epoch.
    - ``ops``: The supported operations.
    - ``tensor``: The type of members of ``groups``, for messages.
    - ``by_shares``: Whether the framework sums gradients by share if the job has a fixed global
      batch.
    - ``stacklevel``: The number of frames to the program, for warnings.

    Raises ValueError for arguments that are invalid, alone or together, and SettingsError in a job
    with a fixed global batch without ``by_shares``.
    """
    if not by_shares:
        _refuse_shares()
    op = ReduceOp.given(op)
    check_process_set(process_set)
    if not hasattr(compression, "compress"):
        raise ValueError(
            f"compression={compression!r} is not a compressor. Use hvd.Compression.fp16, .bf16 or"
            " .none"
        )
    prescale, postscale = predivided(op, gradient_predivide_factor)
    chosen = strategy_of(_of_job() if strategy is None else strategy)
    if chosen == ADASUM and op == ReduceOp.AVERAGE:
        op = ReduceOp.ADASUM
    if not isinstance(chosen, str):
        _check_weights(chosen, op, compression, instead)
        if chosen.epochs and not epochs:
            raise ValueError(
                f"strategy={chosen.spec!r} exchanges weights at the end of each epoch, but this"
                " optimizer does not know when an epoch ends. Pass a number of steps, as in"
                " 'local_sgd:100'"
            )
    _check_op(op, ops)
    if op == ReduceOp.ADASUM and average_aggregated_gradients:
        raise ValueError("Adasum does not support average_aggregated_gradients == True")
    if num_groups:
        text = "Parameter `num_groups` has been replaced by `groups`."
        warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)
        groups = num_groups if groups is None else groups
    check_groups(groups, tensor)
    check_passes(backward_passes_per_step)
    return GradientOptions(
        op=op,
        prescale=prescale,
        postscale=postscale,
        process_set=process_set,
        compression=compression,
        passes=backward_passes_per_step,
        average_passes=average_aggregated_gradients,
        groups=groups or (),
        sparse_as_dense=sparse_as_dense,
        scale_local=scale_local_gradients,
        strategy=None if isinstance(chosen, str) else chosen,
        codec=_codec(codec, op, compression, chosen),
        owner=None if instead or isinstance(codec, str | None) else object(),
    )


def _check_op(op: ReduceOp, ops: Sequence[ReduceOp]) -> None:
    """Raise ValueError if ``op`` is not one of ``ops``."""
    if op in ops:
        return
    *others, last = map(_name, ops)
    adasum = "; use Adasum with PyTorch, JAX or TensorFlow's DistributedGradientTape"
    raise ValueError(
        f"op currently only supports {', '.join(others)} and {last} (got op={_name(op)})"
        f"{adasum if op == ReduceOp.ADASUM else ''}"
    )


def _of_job() -> str:
    """Return the job's strategy, for a program that selects none."""
    return _settings().strategy


def _settings() -> Settings:
    return context.settings() if context.takes_part() else Settings.from_env()


def _refuse_shares() -> None:
    """Raise SettingsError in a job with a fixed global batch."""
    if context.shares() if context.takes_part() else Settings.from_env().fixed_global_batch:
        raise SettingsError(
            "--fixed-global-batch works with farandole.torch.DistributedOptimizer, and with"
            " model.fit of Keras 3 and farandole.keras.DistributedOptimizer(..., shard=True). With"
            " this optimizer the gradients would depend on the number of ranks. Use one of these,"
            " or remove the flag"
        )


def _check_weights(strategy: Strategy, op: int, compression: Any, instead: str) -> None:
    """Raise ValueError for gradient options with a strategy that exchanges weights."""
    if instead:
        raise ValueError(
            f"strategy={strategy.spec!r} exchanges weights, but only gradients are available here."
            f" Use {instead}, or strategy='allreduce'"
        )
    for argument, value, default in (
        ("op", _name(op), "Average"),
        ("compression", compression, NoneCompressor),
    ):
        if value not in (default, ReduceOp.AVERAGE):
            shown = getattr(value, "__name__", value)
            raise ValueError(
                f"{argument}={shown} applies to gradients, but strategy={strategy.spec!r}"
                f" exchanges weights. Remove {argument} or the strategy"
            )


def _codec(
    codec: str | Codec | None, op: int, compression: Any, strategy: str | Strategy
) -> str | Codec:
    """Return the checked codec; an empty string for none."""
    plain = getattr(compression, "compress", None) is NoneCompressor.compress
    reference = None if isinstance(strategy, str) else strategy.reference
    if codec is None:
        fits = plain and op in LINEAR and (reference is None or reference.takes_codec)
        codec = _settings().codec if fits else ""
    if not codec:
        return ""
    made = codec_of(codec)
    label = f"codec={(made.spec if made else codec)!r}"
    objection = ""
    if made is not None and not isinstance(strategy, str):
        objection = strategy.reference.objection(strategy, made)
    if objection:
        raise SettingsError(f"{label} {objection}")
    if op not in LINEAR:
        raise ValueError(
            f"{label} compresses sums and averages, but op is {_name(op)}. Remove one of them"
        )
    if not plain:
        raise ValueError(f"{label} and compression both compress gradients. Remove one of them")
    return codec


def check_groups(groups: Any, tensor: str) -> None:
    """Raise ValueError if ``groups`` is neither None, a number, nor a list of lists."""
    counted = isinstance(groups, int) and not isinstance(groups, bool) and groups >= 0
    listed = isinstance(groups, (list, tuple)) and all(
        isinstance(group, (list, tuple)) for group in groups
    )
    if groups is None or counted or listed:
        return
    several = isinstance(groups, (list, tuple))
    kinds = ", ".join(sorted({type(group).__name__ for group in groups})) if several else ""
    got = f"a list of {kinds}" if several else repr(groups)
    raise ValueError(
        f"groups should be a non-negative integer or a list of list of {tensor}. (got {got})"
    )


def check_passes(passes: int) -> None:
    """Raise ValueError for a ``backward_passes_per_step`` that is not a positive whole number."""
    try:
        whole = passes == int(passes)  # allows 64 / 16
    except (TypeError, ValueError):
        whole = False
    if not whole:
        raise ValueError(f"backward_passes_per_step must be a whole number, not {passes!r}")
    if passes <= 0:
        raise ValueError(
            f"backward_passes_per_step must be > 0, not {passes}. Use 1 to exchange gradients in"
            " every pass"
        )


def predivided(op: int, factor: float) -> tuple[float, float]:
    """Return ``gradient_predivide_factor`` as factors before and after an average: 1 / factor, and
    factor.

    Dividing partly before the sum keeps sums of small dtypes in range. Raises ValueError if
    ``factor`` is not positive, or if it is not 1 and ``op`` is not Average.
    """
    factor = number(factor, "gradient_predivide_factor")
    if factor == 1.0:
        return 1.0, 1.0
    if op != ReduceOp.AVERAGE:
        raise ValueError(
            "gradient_predivide_factor not supported with op != Average"
            f" (gradient_predivide_factor={factor}, op={_name(op)}). Remove the factor, or use"
            " op=hvd.Average"
        )
    if not factor > 0:
        raise ValueError(
            f"gradient_predivide_factor must be > 0, not {factor}. Use 1.0 to divide only after"
            " the sum"
        )
    return 1.0 / factor, factor


def _name(op: int) -> str:
    try:
        return ReduceOp(op).name.capitalize()
    except ValueError:
        return repr(op)
