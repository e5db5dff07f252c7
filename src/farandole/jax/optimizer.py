"""DistributedOptimizer: any optax optimizer, stepping with the gradients of all ranks; and
transformations of gradients alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from farandole.base.contracts import Codec, Strategy
from farandole.base.types import ReduceOp
from farandole.checks.agreement import Replica
from farandole.core.api.compression import NoneCompressor
from farandole.core.api.documented import documented
from farandole.core.api.ops import WORLD
from farandole.core.engine import Engine
from farandole.jax.accumulation import accumulated
from farandole.jax.collectives import grouped_allreduce
from farandole.jax.gradients import ModelsReducer, names_of, reduce_gradients
from farandole.jax.inner_optimizer import facts_of
from farandole.jax.weights import exchanging
from farandole.job import context
from farandole.job.context import ProcessSet
from farandole.strategies.inner_optimizer import InnerOptimizer
from farandole.strategies.options import GradientOptions, check_passes, gradient_options

if TYPE_CHECKING:
    import optax

    from farandole.base.types import Array


class _NumberedReducer(ModelsReducer):
    """A reducer named by the order of first use, which is equal on all ranks; the order of creation
    may differ.
    """

    _number: Engine | None = None

    def start(
        self,
        arrays: Sequence[Array],
        names: Sequence[str] | None = None,
        *,
        in_place: bool = False,
        replica: Replica | None = None,
        lacking: Collection[int] = (),
    ) -> Callable[[], list[Array]]:
        engine = context.engine(self.options.process_set)
        if engine is not self._number:
            self._number = engine
            self.name = f"{self.name.partition('.')[0]}.{engine.numbers.next_optimizer()}"
        return super().start(arrays, names, in_place=in_place, replica=replica, lacking=lacking)


class TreeReducer:
    """Reduces trees of gradients. Create it once, and call it in every step."""

    def __init__(self, what: str, options: GradientOptions, name: str | None) -> None:
        """``what``: the calling function, which names the reducer if ``name`` is None."""
        self._options = options
        self._list = (_NumberedReducer if name is None else ModelsReducer)(name or what, options)

    def describe(self, inner: InnerOptimizer) -> None:
        """Record the optimizer that takes the results, for a codec."""
        self._list.codec_context.describe(inner)

    def mark(self) -> Any:
        """Return the mark of a new model, for ``__call__``; None if no state is kept for models."""
        return None if self._list.codec is None else self._list.models.mark()

    def __call__(self, gradients: Any, parameters: Any = None, mark: Sequence[Any] = ()) -> Any:
        """Reduce ``gradients`` (any tree) over all ranks. A rank outside the process set keeps its
        own gradients.

        ``parameters``: the parameters of the gradients, if known. ``mark``: the model and its
        step number.
        """
        if not self._options.process_set.included():
            return gradients
        leaves, kind = jax.tree_util.tree_flatten(gradients)
        if self._options.op is ReduceOp.ADASUM:  # Adasum combines each array separately
            reduced = grouped_allreduce(
                leaves,
                None,
                None,
                self._options.compression,
                self._options.op,
                process_set=self._options.process_set,
            )
        else:
            of, other = jax.tree_util.tree_flatten(parameters)
            known = of if kind == other else ()
            reduced = reduce_gradients(leaves, names_of(gradients), self._list, known, mark=mark)
        return jax.tree_util.tree_unflatten(kind, reduced)


@documented(
    "init",
    "disagree",
    "ValueError: an invalid op or factor.",
    op="Average (the default), Sum, or Adasum, which is applied to each array separately.",
    process_set="ranks whose gradients are reduced; a rank outside it keeps its own gradients.",
    name="identifies the optimizer to other ranks, if the ranks do not use their optimizers in"
    " the same order.",
    example=(
        "optimizer = optax.chain(hvd.distributed_gradients(), optax.clip_by_global_norm(1.0),"
        " optax.adam(0.001))"
    ),
)
def distributed_gradients(
    op: int = ReduceOp.AVERAGE,
    compression: Any = NoneCompressor,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = WORLD,
    name: str | None = None,
    *,
    codec: str | Codec | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Return a transformation for ``optax.chain`` that reduces gradients over all ranks.

    Transformations before it in the chain see this rank's gradients; those after it see the reduced
    gradients, so clip after it. It works inside and outside ``jit``; all gradients travel together.
    """
    options = gradient_options(
        op,
        gradient_predivide_factor,
        compression=compression,
        process_set=process_set,
        codec=codec,
        instead="hvd.DistributedOptimizer(optimizer)",
    )
    return _reducing(TreeReducer("distributed_gradients", options, name))


class ModelState(NamedTuple):
    """``mark``: identifies the model to a codec. ``step``: updates so far."""

    mark: Any
    step: Any


def _reducing(reduce: TreeReducer) -> optax.GradientTransformationExtraArgs:
    import optax

    def init(params: Any) -> Any:
        mark = reduce.mark()
        return optax.EmptyState() if mark is None else ModelState(mark, jnp.zeros((), jnp.int32))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if not isinstance(state, ModelState):
            return reduce(updates, params), state
        state = state._replace(step=state.step + 1)
        return reduce(updates, params, state), state

    return optax.GradientTransformationExtraArgs(init, update)


@documented(
    "init",
    "disagree",
    "ValueError: an invalid op or factor.",
    optimizer="any optax.GradientTransformation.",
    op=(
        "Average (the default), Sum, or Adasum, with which every rank computes its own updates"
        " and the updates are combined."
    ),
    average_aggregated_gradients="use the mean of several passes (the default) instead of the sum.",
    process_set=(
        "ranks whose gradients are reduced; on a rank outside it, the optimizer steps with its"
        " own gradients."
    ),
    strategy=(
        "what ranks exchange: gradients ('allreduce', 'adasum'), or weights periodically"
        " ('local_sgd:8', or an object such as LocalSGD(8)), for which update() needs params."
        " Default: the value of --strategy."
    ),
    name="identifies the optimizer to other ranks, if the ranks do not use their optimizers in"
    " the same order.",
    example=(
        "optimizer = hvd.DistributedOptimizer(optax.adam(0.001 * hvd.size()))\n"
        "updates, opt_state = optimizer.update(gradients, opt_state, params)"
    ),
)
def DistributedOptimizer(
    optimizer: optax.GradientTransformation,
    compression: Any = NoneCompressor,
    backward_passes_per_step: int = 1,
    op: int = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = True,
    process_set: ProcessSet = WORLD,
    name: str | None = None,
    strategy: str | Strategy | None = None,
    codec: str | Codec | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Wrap ``optimizer`` (an ``optax.GradientTransformation``) to step with the gradients of all
    ranks.

    With ``backward_passes_per_step``, updates before the last pass accumulate gradients and return
    zeros. The last one uses their mean, as in ``optax.MultiSteps`` (which would exchange in every
    update), or their sum with ``average_aggregated_gradients=False``.
    """
    import optax

    check_passes(backward_passes_per_step)
    options = gradient_options(
        op,
        gradient_predivide_factor,
        compression=compression,
        process_set=process_set,
        strategy=strategy,
        codec=codec,
        epochs=False,
    )
    if options.strategy is not None:
        chained = exchanging(optax.with_extra_args_support(optimizer), options, options.strategy)
    else:
        reduce = TreeReducer("distributed_gradients", options, name)
        exchange = _reducing(reduce)
        if options.codec:
            reduce.describe(facts_of(optimizer))
        parts = (optimizer, exchange) if options.op is ReduceOp.ADASUM else (exchange, optimizer)
        chained = optax.with_extra_args_support(optax.chain(*parts))
    if backward_passes_per_step == 1:
        return chained
    return accumulated(chained, backward_passes_per_step, average_aggregated_gradients)


@documented(
    "init",
    "disagree",
    "ValueError: an invalid op or factor.",
    fun="a function of arrays that returns a scalar, as for jax.value_and_grad.",
    argnums="the arguments to differentiate by: one index or several.",
    has_aux="fun returns a pair of the scalar and auxiliary data.",
    op="Average (the default), Sum, or Adasum, which is applied to each array separately.",
    process_set="ranks whose gradients are reduced; a rank outside it keeps its own gradients.",
    name="identifies the function to other ranks, if the ranks do not use their functions in the"
    " same order.",
    options="passed on to jax.value_and_grad.",
    example="step = jax.jit(hvd.value_and_grad(loss_of))\nloss, gradients = step(params, batch)",
)
def value_and_grad(
    fun: Callable[..., Any],
    argnums: Any = 0,
    has_aux: bool = False,
    *,
    op: int = ReduceOp.AVERAGE,
    compression: Any = NoneCompressor,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = WORLD,
    name: str | None = None,
    codec: str | Codec | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """Return ``jax.value_and_grad`` with gradients reduced over all ranks. The value is this rank's
    (``allreduce`` averages it).

    The result may be jitted.
    """
    chosen = gradient_options(
        op,
        gradient_predivide_factor,
        compression=compression,
        process_set=process_set,
        codec=codec,
        instead="jax.value_and_grad, and hvd.DistributedOptimizer(optimizer)",
    )
    reduce = TreeReducer("value_and_grad", chosen, name)
    local = jax.value_and_grad(fun, argnums, has_aux, **options)

    @functools.wraps(fun)
    def both(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        value, gradients = local(*args, **kwargs)
        several = isinstance(argnums, Sequence)
        of = (
            tuple(args[place] for place in argnums)
            if several
            else args[argnums]
            if len(args) > argnums
            else None
        )
        return value, reduce(gradients, of)

    return both


@documented(
    "init",
    "disagree",
    fun="a function of arrays that returns a scalar, as for jax.grad.",
    argnums="the arguments to differentiate by: one index or several.",
    has_aux="fun returns a pair of the scalar and auxiliary data.",
    options="passed on to value_and_grad.",
    example="gradients = jax.jit(hvd.grad(loss_of))(params, batch)",
)
def grad(
    fun: Callable[..., Any], argnums: Any = 0, has_aux: bool = False, **options: Any
) -> Callable[..., Any]:
    """Return ``jax.grad`` with gradients reduced over all ranks."""
    both = value_and_grad(fun, argnums, has_aux, **options)

    @functools.wraps(fun)
    def gradients(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradients
