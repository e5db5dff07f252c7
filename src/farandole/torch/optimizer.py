"""DistributedOptimizer: any torch optimizer, stepping with the gradients of all ranks."""

from __future__ import annotations

import operator
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from farandole.base.contracts import Codec, Strategy
from farandole.base.types import ReduceOp
from farandole.core.api.compression import Compressing, NoneCompressor
from farandole.core.api.documented import documented
from farandole.job import context
from farandole.job.context import ProcessSet
from farandole.job.report import training_progress
from farandole.strategies.bucket_reducer import BucketReducer
from farandole.strategies.codec_context import CodecContext
from farandole.strategies.codecs import state_label
from farandole.strategies.options import GradientOptions, check_passes, gradient_options
from farandole.strategies.shares.objections import check_options
from farandole.torch import checks, codec_state, inner_optimizer, loss_scale, validation
from farandole.torch.adasum import AdasumState
from farandole.torch.checks import OptimizerChecks
from farandole.torch.functions import allreduce
from farandole.torch.gradients import Arrivals, TorchGradient
from farandole.torch.shares.state import ShareState
from farandole.torch.weights import WeightState

Closure = Callable[[], Any]
Groups = int | Sequence[Sequence[torch.Tensor]]
# the type of the argument and of the result
Wrapped = TypeVar("Wrapped", bound=torch.optim.Optimizer)

# Attributes for programs that inspect a Horovod optimizer.
_SHOWN = (
    "_parameter_names",
    "backward_passes_per_step",
    "op",
    "gradient_predivide_factor",
    "sparse_as_dense",
    "process_set",
)


@documented(
    "init",
    "ValueError: arguments that are invalid, alone or together, or parameters of another"
    " optimizer. In the first backward pass: the ranks' parameters differ.",
    "AssertionError: more backward passes than backward_passes_per_step.",
    optimizer="any torch optimizer.",
    named_parameters="model.named_parameters(), for names in errors and timelines.",
    op=(
        "Average (the default), Sum, or Adasum, with which every rank steps with its own"
        " gradients and the steps are combined."
    ),
    process_set=(
        "ranks whose gradients are reduced; on a rank outside it, the optimizer steps with its"
        " own gradients."
    ),
    strategy=(
        "what ranks exchange: gradients ('allreduce', 'adasum'), or weights periodically"
        " ('local_sgd:8', or an object such as LocalSGD(8)). Default: the value of --strategy."
    ),
    buffers=(
        "model.buffers, or model.buffers() if the model does not change: averaged together with"
        " the weights (BatchNorm's statistics, for example) if the strategy exchanges weights."
    ),
    example=(
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())"
    ),
)
def DistributedOptimizer(
    optimizer: Wrapped,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Compressing = NoneCompressor,
    backward_passes_per_step: int = 1,
    op: int = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = context.global_process_set,
    *,
    strategy: str | Strategy | None = None,
    codec: str | Codec | None = None,
    buffers: Iterable[torch.Tensor] | Callable[[], Iterable[torch.Tensor]] = (),
) -> Wrapped:
    """Wrap ``optimizer`` so that gradients are reduced over all ranks while backward computes them.

    Gradients are final when ``loss.backward()`` returns (the last of ``backward_passes_per_step``
    passes): clip, unscale or read them then. The result's class is a subclass of ``optimizer``'s,
    of the same name, and the result shares its ``param_groups``, state and options. A closure's
    loss is averaged over the ranks (summed with ``op=Sum``), and so are its gradients.
    """
    if isinstance(optimizer, _Distributed):
        raise ValueError(
            "this optimizer is already distributed. Pass the optimizer that DistributedOptimizer"
            " wraps"
        )
    validation.check_optimizer("DistributedOptimizer", optimizer)
    options = gradient_options(
        op,
        gradient_predivide_factor,
        compression=compression,
        backward_passes_per_step=backward_passes_per_step,
        num_groups=num_groups,
        groups=groups,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        strategy=strategy,
        codec=codec,
        tensor="torch.Tensor",
        by_shares=True,
    )
    if context.shares():
        check_options(options)
    names = validation.names(optimizer, named_parameters)
    validation.check_members(groups)
    wrapped = _blank(_subclass(type(optimizer), options))
    named = validation.all_names(optimizer, names)
    shown = (
        named,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        sparse_as_dense,
        process_set,
    )
    wrapped.__dict__.update(zip(_SHOWN, shown, strict=True))
    wrapped.__dict__.update(optimizer.__dict__)
    # A scheduler's patch calls the step of the original optimizer.
    wrapped.__dict__.pop("step", None)
    wrapped._farandole = _state_of(wrapped, optimizer, names, options, buffers)
    if context.size() > 1 and process_set.included() and process_set.size() > 1:
        checks.distributed.add(wrapped)
    return wrapped  # type: ignore[no-any-return]


def _state_of(
    wrapped: Any, optimizer: Any, names: dict[int, str], options: GradientOptions, buffers: Any
) -> Any:
    """Return the state of a distributed optimizer with ``options``."""
    original = weakref.ref(optimizer)
    if context.shares():
        return ShareState(wrapped, original, options, buffers)
    if options.op is ReduceOp.ADASUM:
        return AdasumState(wrapped, original, options)
    if options.strategy is not None:
        return WeightState(wrapped, original, options, options.strategy, buffers)
    return OptimizerState(wrapped, original, names, options)


def _subclass(base: type, options: GradientOptions) -> type:
    """Return the distributed subclass of an optimizer's class, under the same name."""
    if context.shares():
        kind: type = _ByShares
    elif options.op is ReduceOp.ADASUM:
        kind = _Combined
    else:
        kind = _Distributed if options.strategy is None else _WithWeights
    body = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
    }
    return type(base.__name__, (kind, base), body)


class _Distributed:
    """The differences between a distributed optimizer and its base class. Horovod programs import
    this class as ``horovod.torch.optimizer._DistributedOptimizer`` for ``isinstance``.
    """

    _farandole: Any  # an OptimizerState, AdasumState, WeightState or ShareState
    backward_passes_per_step: int
    param_groups: list[dict[str, Any]]
    state: Any

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # a subclass in the program
        if cls.__module__ != __name__ and not issubclass(cls, torch.optim.Optimizer):
            cls.__init__ = _refuse_subclass  # type: ignore[method-assign]

    def step(self, closure: Closure | None = None, **options: Any) -> Any:
        """Wait for the gradients of all ranks, and step. Inside ``skip_synchronize()``, only
        step.
        """
        state = self._farandole
        state.before_step(closure is not None)
        if closure is not None:
            options["closure"] = state.averaged(closure)
        value = super().step(**options)  # type: ignore[misc]
        state.after_step()
        return value

    # otherwise torch would run the step hooks twice: here and in the base class
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, *args: Any, **options: Any) -> None:
        if self._farandole.reducer is not None:
            self._farandole.catch_up()
            self._farandole.reducer.check_droppable()
            self._farandole.update_hooks()
        super().zero_grad(*args, **options)  # type: ignore[misc]

    def synchronize(self) -> None:
        """Complete the reduction of all gradients. Needed only to change gradients that some rank
        did not compute.
        """
        self._farandole.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Make ``step()`` use the gradients unchanged, after ``synchronize()``."""
        self._farandole.skip = True
        try:
            yield
        finally:
            self._farandole.skip = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Accumulate the gradients of ``passes`` backward passes before they are reduced."""
        check_passes(passes)
        self.backward_passes_per_step = passes
        if self._farandole.reducer is not None:
            self._farandole.reducer.set_passes(passes)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)  # type: ignore[misc]
        self._farandole.update_hooks()

    def end_of_epoch(self) -> None:
        """Exchange weights, if the strategy does so at the end of each epoch ("local_sgd:epoch").
        Collective then.
        """

    def average_weights(self) -> None:
        """Replace each rank's weights by their mean over all ranks, to evaluate or save them.
        Collective if the strategy exchanges weights; otherwise this has no effect, because ranks
        have equal weights.
        """

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Return the wrapped optimizer's state, with the state of the strategy and the codec on
        this rank.
        """
        state: dict[str, Any] = super().state_dict(*args, **options)  # type: ignore[misc]
        kept = self._farandole.state_dict()
        return {**state, "farandole": kept} if kept else state

    def load_state_dict(self, state_dict: dict[str, Any], *args: Any, **options: Any) -> None:
        """Load a state, also of a plain optimizer; the strategy then begins again. A codec's state
        is loaded on the rank that it belongs to.
        """
        super().load_state_dict({**state_dict}, *args, **options)  # type: ignore[misc]
        self._farandole.load_state_dict(state_dict.get("farandole"))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load into the containers shared with the wrapped optimizer (and its schedulers)."""
        groups, values = self.param_groups, self.state
        super().__setstate__(state)  # type: ignore[misc]
        if self.param_groups is not groups:
            groups[:] = self.param_groups
            self.param_groups = groups
        if self.state is not values:
            loaded = dict(self.state)
            values.clear()
            values.update(loaded)
            self.state = values

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy or pickle as the wrapped optimizer. A copy has to be wrapped again."""
        family = type(self).__mro__
        base = family[family.index(_Distributed) + 1]
        plain = _blank(base)
        plain.__dict__.update(self.__dict__)
        for name in ("_farandole", "step", *_SHOWN):
            plain.__dict__.pop(name, None)
        return _blank, (base,), plain.__getstate__()


class _ByShares(_Distributed):
    """The differences in a job with a fixed global batch: a rank computes several shares."""

    def step(self, closure: Closure | None = None, **options: Any) -> Any:
        """Step after the last of this rank's shares; after the others, do nothing."""
        if closure is not None:
            self._farandole.averaged(closure)
        return super().step(**options) if self._farandole.take_step() else None

    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, *args: Any, **options: Any) -> None:
        self._farandole.check_droppable()
        super().zero_grad(*args, **options)

    def set_backward_passes_per_step(self, passes: int) -> None:
        check_options(self._farandole.options._replace(passes=passes))


class _Combined(_Distributed):
    """The differences with Adasum: there are no gradients to wait for."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        raise AssertionError(
            "Skipping synchronization is not supported when using Adasum optimizer. Its gradients"
            " are this rank's own until step() combines the ranks' steps. Clip them, and call"
            " step() without skip_synchronize()."
        )
        yield


class _WithWeights(_Distributed):
    """The differences if ranks exchange weights: there are no gradients to wait for."""

    # A GradScaler then calls every step, including steps that this rank skips.
    _step_supports_amp_scaling = True

    def step(self, closure: Closure | None = None, **options: Any) -> Any:
        """Step, and exchange weights if an exchange is due. A step that a GradScaler skips counts,
        so that all ranks count equally.
        """
        attributes = self.__dict__
        # no scaler, or the base handles it
        if "found_inf" not in attributes or "_step_supports_amp_scaling" in attributes:
            return super().step(closure, **options)
        # other optimizers refuse these attributes
        scale, skipped = attributes.pop("grad_scale"), attributes.pop("found_inf")
        try:
            if skipped.item():
                self._farandole.before_step(False)
                self._farandole.after_step()
                return None
            # None: the gradients are unscaled already
            for group in self.param_groups if scale is not None else ():
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.div_(scale)
            return super().step(closure, **options)
        finally:
            attributes.update(grad_scale=scale, found_inf=skipped)

    step.hooked = True  # type: ignore[attr-defined]

    def end_of_epoch(self) -> None:
        self._farandole.end_of_epoch()

    def average_weights(self) -> None:
        self._farandole.average()


def _blank(base: type) -> Any:
    return object.__new__(base)


def _refuse_subclass(self: Any, *args: Any, **options: Any) -> None:
    raise TypeError(
        f"{type(self).__name__} derives from horovod.torch.optimizer._DistributedOptimizer, whose"
        " private methods (_register_hooks, _allreduce_grad_async, ...) do not exist here. Wrap"
        " the optimizer with hvd.DistributedOptimizer(optimizer, ...), whose compression= changes"
        " the sent gradients, or call hvd.allreduce_async_(parameter.grad) and step with the"
        " plain optimizer"
    )


class OptimizerState:
    """The state of a distributed optimizer that reduces gradients."""

    def __init__(
        self,
        optimizer: Any,
        original: weakref.ref[Any],
        names: dict[int, str],
        options: GradientOptions,
    ) -> None:
        self.skip = False
        self.reducer: BucketReducer | None = None
        self._synchronized = False
        self._counter = training_progress.counter()
        self._original = original
        self._optimizer = weakref.ref(optimizer)
        self._names, self._options = names, options
        self._known: dict[int, int] = {}  # id of a parameter -> its index
        self._bare: list[tuple[int, Any]] = []  # parameters without a hook because they are frozen
        # the parameters of each group when they were last checked
        self._seen: list[list[Any]] = []
        self._hooks: list[Any] = []
        weakref.finalize(optimizer, _remove, self._hooks).atexit = False
        process_set = options.process_set
        if context.stays_alone(process_set):
            return
        self._checks = OptimizerChecks(self._optimizer, process_set)
        flat = options.compression is NoneCompressor
        self.reducer = BucketReducer([], options, flat=flat, replica=self._checks.replica)
        self._scaler: Any = None  # a weak reference to the GradScaler
        if self.reducer.codec is not None:
            self._describe(self.reducer.codec_context)
        if state_label(self.reducer.codec):
            loss_scale.watch()
            context.keep_each_rank(self)  # residuals
        self._arrivals = Arrivals(self.reducer)
        self.catch_up = self._arrivals.catch_up
        self.update_hooks()

    def _describe(self, codec: CodecContext) -> None:
        """Let the codec follow the optimizer's momentum."""
        known, found = self._known, self._optimizer
        codec.inner = lambda: inner_optimizer.groups_of(found())
        codec.group_of = lambda: inner_optimizer.places_of(found(), known)

    def update_hooks(self) -> None:
        """Hook new and newly trainable parameters, and drop parameters removed from the groups."""
        optimizer, reducer = self._optimizer(), self.reducer
        if reducer is None or optimizer is None:
            return
        self.catch_up()
        groups = [group["params"] for group in optimizer.param_groups]
        if not _same(groups, self._seen):
            self._take_stock(groups, reducer)
        if any(parameter.requires_grad for _, parameter in self._bare):
            bare = []
            for index, parameter in self._bare:
                if parameter.requires_grad:
                    self._hooks.append(self._arrivals.hook(index, parameter))
                else:
                    bare.append((index, parameter))
            self._bare = bare

    def _take_stock(self, groups: list[list[Any]], reducer: BucketReducer) -> None:
        present = {id(parameter) for group in groups for parameter in group}
        if not present.issuperset(self._known):
            _remove(self._hooks)
            for kept in (self._hooks, self._known, self._bare, self._checks.replica.parameters):
                kept.clear()
            reducer.clear()
            self._names = {known: name for known, name in self._names.items() if known in present}
        fresh = []
        for number, group in enumerate(groups):
            for place, parameter in enumerate(group):
                if id(parameter) not in self._known:
                    name = self._names.get(id(parameter)) or validation.name_of(number, place)
                    fresh.append(TorchGradient(name, parameter, self._options))
                    self._checks.replica.parameters.append((name, parameter))
                    self._known[id(parameter)] = len(self._known)
                    self._bare.append((self._known[id(parameter)], parameter))
        reducer.extend(fresh)
        if not isinstance(self._options.groups, int):
            known = self._known
            members = [
                [known[id(one)] for one in group if id(one) in known]
                for group in self._options.groups
            ]
            reducer.options = self._options._replace(groups=members)
        self._seen = [list(group) for group in groups]

    def synchronize(self) -> None:
        if self.reducer is not None:
            self.update_hooks()
            self.reducer.before_step()
            self._synchronized = True

    def start_over(self) -> None:
        """Drop the state of the current step: the program returns to an earlier state and removes
        the gradients.
        """
        if self.reducer is not None:
            self.catch_up()
            self.reducer.start_over()
            self._synchronized = False

    def scaled_by(self, scaler: Any) -> None:
        """Record the scaler of the latest loss."""
        if self.reducer is not None and (self._scaler is None or self._scaler() is not scaler):
            self._scaler, self.reducer.codec_context.scale = (
                weakref.ref(scaler),
                loss_scale.scale_of(scaler),
            )
            self.reducer.update_codec()

    def state_dict(self) -> dict[str, Any]:
        if self.reducer is not None:
            # The scaler's own checkpoint has the scale of the next loss.
            self.reducer.update_codec()
        return (
            {}
            if self.reducer is None
            else codec_state.state_of(self.reducer.codec, self._options.process_set)
        )

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        if self.reducer is not None:
            options = self._options
            self.reducer.codec_context.forget()
            codec_state.load(
                self.reducer.codec, options.process_set, state, own=options.owner is None
            )

    def shared(self) -> dict[str, Any]:
        return {}

    def share(self, state: Mapping[str, Any]) -> None: ...
    def before_sync(self) -> None: ...

    def before_step(self, with_closure: bool) -> None:
        original = self._original()
        if original is not None and "step" in original.__dict__:  # a scheduler watches the original
            original._opt_called = True
        if self.reducer is None:
            return
        if not (self.skip or with_closure):
            self._complete(self.reducer)
        self._checks.before_step(None if with_closure else self.reducer.nonfinite)

    def _complete(self, reducer: BucketReducer) -> None:
        """Make the gradients of all ranks final."""
        self.update_hooks()
        if not self._synchronized:
            reducer.before_step()
            return
        warnings.warn(
            "optimizer.step() called without optimizer.skip_synchronize() context after"
            " optimizer.synchronize(), which costs another round of communication. Call step()"
            " inside the context",
            stacklevel=5,
        )
        if reducer.anything_new():
            reducer.before_step()

    def after_step(self) -> None:
        self._counter.steps += 1
        self._synchronized = False
        if self.reducer is not None:
            self.reducer.after_step()
            self._checks.after_step(self._counter.steps)

    def averaged(self, closure: Closure) -> Closure:
        """Wrap the closure so that it returns the reduced loss and reduces the gradients: a line
        search then sees the same function on every rank.
        """
        if self.reducer is None or self.skip:
            return closure
        reducer, process_set, op = self.reducer, self._options.process_set, self._options.op

        def on_all_ranks() -> Any:
            loss = closure()
            self.update_hooks()
            reducer.before_step()
            if loss is None:
                return None
            if isinstance(loss, torch.Tensor):
                return allreduce(loss.detach(), op=op, process_set=process_set)
            return allreduce(
                torch.tensor(loss, dtype=torch.float64, device="cpu"),
                op=op,
                process_set=process_set,
            ).item()

        return on_all_ranks


def drop_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Clear an optimizer's gradients. Between backward passes of a step, accumulation begins
    again.
    """
    state = getattr(optimizer, "_farandole", None)
    if isinstance(state, OptimizerState | ShareState):
        state.start_over()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def _same(groups: list[list[Any]], others: list[list[Any]]) -> bool:
    """Return whether both lists hold the same objects."""
    return len(groups) == len(others) and all(
        len(group) == len(other) and all(map(operator.is_, group, other))
        for group, other in zip(groups, others, strict=True)
    )


def _remove(hooks: Sequence[Any]) -> None:
    for hook in hooks:
        hook.remove()
