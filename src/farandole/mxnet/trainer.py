"""DistributedTrainer: gluon's Trainer, stepping with the gradients of all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

from farandole.base.contracts import Codec, Strategy
from farandole.base.types import DType, ReduceOp
from farandole.core.api.ops import WORLD
from farandole.core.kernels import narrow_into, widen
from farandole.job.context import ProcessSet
from farandole.mxnet.binding import dtype_of, empty_like, memory, on_host, overwrite, writable
from farandole.mxnet.checks import TrainerReplica, watch_trainers
from farandole.mxnet.functions import Compression
from farandole.mxnet.optimizer import DistributedOptimizer, split
from farandole.mxnet.parameter_names import canonical
from farandole.mxnet.parameters import check_dense
from farandole.mxnet.sparse import reduce_rows
from farandole.mxnet.weights import TrainerExchange
from farandole.strategies.inner_optimizer import InnerOptimizer, of_named
from farandole.strategies.list_reducer import GradientListReducer
from farandole.strategies.options import LINEAR, gradient_options

if TYPE_CHECKING:
    from farandole.base.types import Array


# The flag of a computed gradient; large, because the predivide factor divides and truncates
# integers.
_USED = 1 << 30

# MXNet's names of key-value stores.
KVSTORES = {
    "dist": "ps",
    "dist_sync": "ps",
    "dist_device_sync": "ps",
    "dist_sync_device": "ps",
    "dist_async": "ps_async",
}


class DistributedTrainer(mx.gluon.Trainer):  # type: ignore[misc]  # mxnet has no types
    """A ``gluon.Trainer`` that averages gradients over all ranks in ``step`` (and in
    ``allreduce_grads``).

    As with Horovod, ``allreduce_grads()`` leaves the sum of all ranks' gradients divided by the
    predivide factor, and the update divides by the number of ranks; ``step(batch_size)``, with this
    rank's batch size, does the same.

    ``params``, ``optimizer``, ``optimizer_params``: as for ``gluon.Trainer``. ``compression``: of
    the exchanged gradients. ``gradient_predivide_factor``: divide by it before summing, and by size
    / factor afterwards. ``prefix``: distinguishes several trainers of one program. ``num_groups``:
    the number of units in which gradients are exchanged; one by default. ``codec``: sends fewer
    bytes, as "int8" or "topk:0.01"; see docs/strategies.md. ``process_set``: the ranks whose
    gradients are averaged; a rank outside it steps alone. ``strategy``: whether ranks exchange
    gradients ("allreduce"), or weights periodically ("local_sgd:8", an object like LocalSGD(8)); by
    default ``--strategy``. MXNet's names of key-value stores are accepted: "dist_sync" is "ps",
    "dist_async" is "ps_async".

    On a rank that did not use a parameter, its gradient counts as zeros; with
    ``ignore_stale_grad=True`` the parameter is updated on all ranks if any of them used it.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        compression: Any = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = WORLD,
        *,
        strategy: str | Strategy | None = None,
        codec: str | Codec | None = None,
    ) -> None:
        if prefix is not None and not isinstance(prefix, str):
            raise ValueError(f"prefix={prefix!r} must be a string")
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "DistributedTrainer does not take DistributedOptimizer as its optimizer. We have"
                " unwrapped it for you.",
                stacklevel=2,
            )
            optimizer = optimizer.unwrapped()
        if isinstance(strategy, str):
            strategy = KVSTORES.get(strategy, strategy)
        average = gradient_options(
            gradient_predivide_factor=gradient_predivide_factor,
            compression=compression,
            process_set=process_set,
            strategy=strategy,
            codec=codec,
            ops=LINEAR,
        )
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        for parameter in self._params:
            check_dense(parameter)
        self._options = average._replace(op=ReduceOp.SUM, postscale=1.0)  # the update divides
        self._num_groups = num_groups
        self._label = f"DistributedTrainer.{prefix or ''}"
        self._reducers: dict[int, GradientListReducer] = {}
        chosen = average.strategy
        self._exchange = None if chosen is None else TrainerExchange(self._label, average, chosen)
        if self._exchange is not None:
            self._exchange.describe(self._inner())
        self._predivided, self._divided = gradient_predivide_factor, 1.0
        self._divide()

    def _inner(self) -> InnerOptimizer:
        """Return the facts about the optimizer, for a codec or strategy."""
        return of_named(self._optimizer, self._optimizer.learning_rate)

    def _active(self) -> bool:
        members = self._options.process_set
        return bool(members.included() and members.size() > 1)

    def _divide(self) -> None:
        """Let the update divide by the number of ranks, which changes in elastic jobs."""
        size = self._options.process_set.size()
        factor = self._predivided / size if self._active() and self._exchange is None else 1.0
        if factor != self._divided:
            self._scale *= factor / self._divided
            self._divided = factor

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Reduce the gradients and update the parameters, as ``gluon.Trainer.step``."""
        self._divide()
        super().step(batch_size, ignore_stale_grad)

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Update the parameters, as ``gluon.Trainer.update``."""
        self._divide()
        super().update(batch_size, ignore_stale_grad)

    def allreduce_grads(self) -> None:
        """Reduce the gradients computed by ``backward`` since the last update, in place, so that
        the program can clip them, for instance.
        """
        super().allreduce_grads()
        trained = [parameter for parameter in self._params if parameter.grad_req != "null"]
        if (
            self._active()
            and self._exchange is None
            and trained
            and not any(map(_is_fresh, trained))
        ):
            warnings.warn(
                "no rank has computed a gradient with backward() since the last update, so"
                " allreduce_grads() has set all gradients to 0; values written into grad() by the"
                " program do not count. To reduce such values:"
                " hvd.grouped_allreduce_([parameter.grad() for parameter in ...], op=hvd.Sum)",
                stacklevel=2,
            )

    def _update(self, ignore_stale_grad: bool = False) -> None:
        exchange = self._exchange if self._active() else None
        if exchange is not None:
            exchange.before_step(self._params, self._optimizer)
        super()._update(ignore_stale_grad)
        if exchange is not None:
            exchange.after_step(self._params)

    def end_of_epoch(self) -> None:
        """Exchange weights, if the strategy does so at the end of each epoch ("local_sgd:epoch").
        Collective for such a strategy.
        """
        if self._exchange is not None and self._active():
            self._exchange.end_of_epoch(self._params)

    def average_weights(self) -> None:
        """Replace each rank's weights by their mean over all ranks, to evaluate or save them.
        Collective if ranks exchange weights; otherwise their weights are equal already.
        """
        if self._exchange is not None and self._active():
            self._exchange.average(self._params)

    def _allreduce_grads(self) -> None:
        if not self._active() or self._exchange is not None:
            return
        names = canonical(parameter.name for parameter in self._params)
        named = zip(names, self._params, strict=True)
        used = sorted(
            ((name, parameter) for name, parameter in named if parameter.grad_req != "null"),
            key=lambda pair: pair[0],
        )
        dense = [
            _TrainerGradient(name, parameter, self._options.compressor)
            for name, parameter in used
            if parameter._grad_stype == "default"
        ]
        finish = [
            self._start_rows(name, parameter)
            for name, parameter in used
            if parameter._grad_stype != "default"
        ]
        finish += [
            self._start(number, group)
            for number, group in enumerate(split(dense, max(self._num_groups, 1)))
        ]
        for wait in finish:
            wait()

    def _start(self, number: int, group: Sequence[_TrainerGradient]) -> Callable[[], None]:
        """Send a group of gradients, with flags for the gradients computed on this rank since its
        last step.
        """
        fresh = np.array([_USED * gradient.fresh for gradient in group], dtype=np.int64)
        names = [*(gradient.name for gradient in group), "fresh"]
        replica = TrainerReplica(
            self._optimizer, [(gradient.name, gradient.parameter) for gradient in group]
        )
        arrays = [*(gradient.pack() for gradient in group), fresh]
        reducer = self._reducer(number)
        lacking = [place for place, gradient in enumerate(group) if not gradient.fresh]
        wait = reducer.start(arrays, names, in_place=True, replica=replica, lacking=lacking)

        def finish() -> None:
            *totals, anywhere = wait()
            reducer.retract(
                [
                    gradient.name
                    for gradient, count in zip(group, anywhere, strict=True)
                    if not count
                ]
            )
            for gradient, total, count in zip(group, totals, anywhere.tolist(), strict=True):
                gradient.unpack(total, count != 0)

        return finish

    def _start_rows(self, name: str, parameter: Any) -> Callable[[], None]:
        fresh = _is_fresh(parameter)
        options = self._options
        rows = parameter.list_grad()
        wait = reduce_rows(
            f"{self._label}.{name}", rows, fresh, options.prescale, options.process_set
        )

        def finish() -> None:
            if wait():
                _make_fresh(parameter)

        return finish

    def _reducer(self, number: int) -> GradientListReducer:
        if number not in self._reducers:
            made = GradientListReducer(f"{self._label}.{number}", self._options)
            made.codec_context.describe(self._inner())
            self._reducers[number] = made
        return self._reducers[number]


class _TrainerGradient:
    """One parameter's gradient before and after the exchange."""

    def __init__(self, name: str, parameter: Any, compressor: Any) -> None:
        self.name, self.fresh = name, _is_fresh(parameter)
        self.parameter = parameter
        self._compressor = None if compressor is Compression.none else compressor
        self._sent: tuple[Any, Any] = None, None

    def pack(self) -> Array:
        """Return the array to send: the sum of the gradients on this rank's devices, or zeros if
        none was computed since the last step.

        The array may be the gradient's own memory, which MXNet does not use until ``unpack``.
        """
        first, *others = self.parameter.list_grad()
        shape = first.shape
        if self._compressor is not None:
            if others:
                first = mx.nd.add_n(
                    *(gradient.as_in_context(first.context) for gradient in (first, *others))
                )
            first, _ = self._sent = self._compressor.compress(first)
            others, shape = [], first.shape
        values = _values(first)
        for other in others:
            values = values + _values(other)
        values = values if self.fresh else np.zeros_like(values)
        shaped: Array = values.reshape(shape)
        return shaped

    def unpack(self, total: Array, anywhere: bool) -> None:
        """Store the reduced gradient ``total``. ``anywhere``: whether any rank computed the
        gradient.
        """
        if anywhere and not self.fresh:
            _make_fresh(self.parameter)
        gradients = self.parameter.list_grad()
        if self._compressor is not None:
            small, token = self._sent
            result = empty_like(small)
            overwrite(result, _stored(result, total))
            result = self._compressor.decompress(result, token)
            for gradient in gradients:
                result.copyto(gradient)
            return
        for gradient in gradients:
            if not (on_host(gradient) and memory(gradient).ctypes.data == total.ctypes.data):
                overwrite(gradient, _stored(gradient, total))


def _values(gradient: Any) -> Array:
    """Return the gradient's values as a flat array, bfloat16 as float32 because numpy lacks it. No
    operation reads the gradient after this.
    """
    values, dtype = writable(gradient)
    return widen(values, dtype) if dtype is DType.BFLOAT16 else values


def _stored(gradient: Any, total: Array) -> Array:
    dtype = dtype_of(gradient)
    if dtype is not DType.BFLOAT16:
        return total.reshape(-1)
    bits = np.empty(total.size, dtype=np.uint16)
    narrow_into(bits, np.ascontiguousarray(total, dtype=np.float32).reshape(-1), dtype)
    return bits


def _is_fresh(parameter: Any) -> bool:
    return any(array._fresh_grad for array in parameter.list_data())


def _make_fresh(parameter: Any) -> None:
    for array in parameter.list_data():
        array._fresh_grad = True


watch_trainers(DistributedTrainer)
