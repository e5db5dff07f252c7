"""The gradients of one optimizer in a job with a fixed global batch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from farandole.base.types import ReduceOp
from farandole.job import context
from farandole.job.report import training_progress
from farandole.strategies.options import GradientOptions
from farandole.strategies.shares.blocks import Shares, block
from farandole.strategies.shares.exchange import StepPlace, completed
from farandole.strategies.shares.guarantee import report
from farandole.strategies.shares.streams import seed_generators, stream
from farandole.strategies.shares.tree import Node, TreeSum
from farandole.torch import loss_scale
from farandole.torch.gradients import Arrivals
from farandole.torch.shares import guarantee, schedules
from farandole.torch.shares.vectors import FlatTensors, TorchVectors, bytes_of, write_bytes

_SYNC = ("SyncBatchNorm",)
_EACH = (
    "In a job with --fixed-global-batch, each batch needs one backward() and one step(), because"
    " the job divides the global batch into shares"
)
living: weakref.WeakSet[ShareState] = weakref.WeakSet()
_latest: weakref.ref[ShareState] | None = None  # the one with the latest gradients


class ShareState:
    """Sums gradients by share, and exchanges them after this rank's last share of a step. See
    ``optimizer.OptimizerState``.

    When the backward pass of the last share ends, all ranks have the gradients of the global batch.
    After the other shares there are none.
    """

    def __init__(
        self,
        optimizer: Any,
        original: weakref.ref[Any],
        options: GradientOptions,
        buffers: Iterable[Any] | Callable[[], Iterable[Any]],
    ) -> None:
        self.reducer = None  # gradients are not exchanged in buckets
        self.options = options
        self.skip = False
        self.backward = -1  # the latest backward pass with gradients of this optimizer
        self.steps = 0
        self._seed = torch.initial_seed()
        self._optimizer, self._original = weakref.ref(optimizer), original
        self._counter = training_progress.counter()
        self._arrivals = Arrivals(self)
        self._hooks: dict[int, Any] = {}
        self._buffers = _Buffers(buffers)
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        self._shares: Shares | None = None
        self._engine: weakref.ref[Any] | None = None  # of the current membership
        self._agreed = False  # its ranks have compared their facts
        self._facts: guarantee.Facts | None = None
        self._reason: str | None = None
        self._left = False  # for another optimizer
        self.start_over()
        self.update_hooks()
        weakref.finalize(optimizer, _remove, self._hooks).atexit = False
        for one in (optimizer, original()):
            schedules.follow(one, _open_of(weakref.ref(self)))
        loss_scale.watch()
        living.add(self)

    # Shares.

    @property
    def shares(self) -> Shares:
        """This rank's shares of the step."""
        engine = context.engine()
        if self._shares is None or self._engine is None or self._engine() is not engine:
            self._shares = block(context.rank(), context.size(), context.shares())
            self._agreed = self._agreed and self._engine is not None and self._engine() is engine
            self._engine = weakref.ref(engine)
            self._forget_step()
        return self._shares

    def is_open(self) -> bool:
        """Return whether some, but not all, of this rank's shares of the step are done."""
        return self._step.done != 0

    def has_begun_with(self, engine: Any) -> bool:
        """Return whether the step has begun in the membership with this engine."""
        return self._engine is not None and self._engine() is engine

    def follow_model(self, model: torch.nn.Module) -> None:
        """Give each share the random numbers of its step, and the buffers (BatchNorm's statistics)
        with which the step began. After the step all ranks have the buffers of the first share.

        Raises ValueError for layers that exchange statistics between ranks.
        """
        if model in self._models:
            return
        for name, module in model.named_modules():
            if type(module).__name__ in _SYNC:
                raise ValueError(
                    f"{type(module).__name__} {name!r} computes with the batches of all ranks,"
                    " which depend on their number. With --fixed-global-batch use BatchNorm"
                )
        self._models.add(model)
        self._buffers.models.append(weakref.ref(model))
        reference = weakref.ref(self)

        def begin(module: Any, inputs: Any) -> None:
            state = reference()
            if state is not None and module.training and torch.is_grad_enabled():
                state.begin_share()

        model.register_forward_pre_hook(begin)

    def begin_share(self) -> None:
        """Seed the global generators for the next share. Repeated calls have no effect until its
        backward pass has ended.
        """
        if self._step.begun:
            return
        share = self.shares.begin + self._step.done
        self._step.begun = True
        if not self._step.done:
            self._buffers.keep()
        seed_generators(stream(self._seed, self.steps, share))

    def check_share_done(self) -> None:
        """Raise AssertionError if the program has not computed and stepped with the gradients of
        the share that has begun.
        """
        if self._step.begun or self._step.waits:
            raise AssertionError(
                f"a batch of step {self.steps + 1} has ended without backward() and step(). {_EACH}"
            )

    # Calls by the hooks of gradients.

    def ready(self, index: int, gradient: Any) -> None:
        """Check a gradient that has been computed."""
        if gradient is not None and gradient.is_sparse and not self.options.sparse_as_dense:
            raise ValueError(
                "sparse gradients have no fixed order of sums. With --fixed-global-batch create"
                " the embedding with sparse=False, or the optimizer with sparse_as_dense=True"
            )

    def end_of_backward(self) -> None:
        """Add the gradients of a share, and exchange the sums if it is the last one."""
        shares = self.shares
        if self._step.waits:
            raise AssertionError(f"a second backward pass before optimizer.step(). {_EACH}")
        self._check_alone()
        parameters = self._parameters()
        if self._step.flat is None:
            self._step.flat = FlatTensors(parameters)
            self._step.tree = TreeSum(shares.total, _add)
        share = shares.begin + self._step.done
        gradients = [
            None if parameter.grad is None else parameter.grad.detach().to_dense()
            for parameter in parameters
        ]
        self._step.tree.put(Node(0, share), self._step.flat.packed(gradients))
        for parameter in parameters:
            parameter.grad = None
        if not share:
            self._buffers.keep_first()
        self._step.done += 1
        self._step.begun = False
        self._step.waits = True
        if self._step.done < shares.held:
            self._buffers.go_back()
        else:
            self._exchange(parameters)

    def _exchange(self, parameters: list[Any]) -> None:
        """Compute the gradients and buffers of the global batch on all ranks. Collective."""
        shares, flat = self.shares, self._step.flat
        assert flat is not None
        context.announce_step(self.steps)
        self._agree(parameters)
        place = StepPlace(context.rank(), context.size(), shares.total, self.steps, flat.digest)
        device = parameters[0].device
        sums, first = completed(
            dict(self._step.tree.parts()), self._buffers.first(device), place, TorchVectors(device)
        )
        self._buffers.end(first)
        for parameter, total in zip(parameters, flat.unpacked(sums), strict=True):
            if total is not None:
                parameter.grad = torch.empty_like(parameter)
                parameter.grad.copy_(total.view(parameter.shape))
                if self.options.op == ReduceOp.AVERAGE:
                    parameter.grad.div_(shares.total)

    def _agree(self, parameters: list[Any]) -> None:
        """Determine the exactness of the weights once for each membership, and log it if it has
        changed. Collective.
        """
        if self._agreed:
            return
        context.skip_exchange_check()  # gradients travel as bytes
        facts, reason = guarantee.agreed(guarantee.facts_of(parameters), self._facts)
        if reason != self._reason:
            report(self.shares.total, reason)
        self._facts, self._reason, self._agreed = facts, reason, True

    # Calls by the optimizer.

    def take_step(self) -> bool:
        """Return whether the optimizer has to step: after this rank's last share."""
        if not self._step.waits:
            raise AssertionError(f"optimizer.step() without a backward pass before it. {_EACH}")
        original = self._original()
        if original is not None and "step" in original.__dict__:  # a scheduler watches the original
            original._opt_called = True
        self._step.waits = False
        return self._step.done == self.shares.held

    def before_step(self, with_closure: bool) -> None: ...

    def after_step(self) -> None:
        self.steps += 1
        self._counter.steps += 1
        self._forget_step()
        self.update_hooks()

    def check_droppable(self) -> None:
        """Raise AssertionError if the program would drop the gradients of the global batch."""
        if self._step.waits and self._step.done == self.shares.held:
            raise AssertionError(
                f"optimizer.zero_grad() between backward() and step(). {_EACH}: call zero_grad()"
                " before backward()"
            )

    def scaled_by(self, scaler: Any) -> None:
        raise ValueError(
            f"{type(scaler).__name__} changes its scale after a number of batches, which depends"
            " on the number of ranks. With --fixed-global-batch use bfloat16 (torch.autocast("
            "..., dtype=torch.bfloat16)), which needs no scaling, or GradScaler(enabled=False)"
        )

    def update_hooks(self) -> None:
        """Hook parameters that are new or newly trainable."""
        for index, parameter in enumerate(self._parameters()):
            if parameter.requires_grad and id(parameter) not in self._hooks:
                self._hooks[id(parameter)] = self._arrivals.hook(index, parameter)

    def catch_up(self) -> None:
        self._arrivals.catch_up()

    def synchronize(self) -> None: ...
    def before_sync(self) -> None: ...

    def start_over(self) -> None:
        """Drop the shares of the current step, because the program returns to an earlier state."""
        self._shares = None
        self._forget_step()

    def averaged(self, closure: Any) -> Any:
        raise ValueError(
            f"optimizer.step(closure) computes gradients several times. {_EACH}: use an optimizer"
            " without a closure"
        )

    # State.

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "seed": self._seed, "facts": self._facts}

    shared = state_dict

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Load ``state_dict()``; the state of another optimizer begins at step 0."""
        self.start_over()
        state = state or {}
        self.steps, self._facts = state.get("steps", 0), state.get("facts")
        self._seed = state.get("seed", self._seed)

    share = load_state_dict

    def _forget_step(self) -> None:
        self._step = _Step()

    def _parameters(self) -> list[Any]:
        optimizer = self._optimizer()
        groups = [] if optimizer is None else optimizer.param_groups
        return [parameter for group in groups for parameter in group["params"]]

    def _check_alone(self) -> None:
        """Raise ValueError if two optimizers take turns: the second would see weights that the
        first has changed on some ranks only.
        """
        global _latest
        before, _latest = _latest() if _latest else None, weakref.ref(self)
        if before is not None and before is not self and before._engine == self._engine:
            before._left = True
            if self._left or before.is_open():
                raise ValueError(
                    "two optimizers take turns in a job with --fixed-global-batch, so the second"
                    " one sees different weights on ranks with several shares. Pass all parameters"
                    " to one optimizer, in groups"
                )


def follow_models(optimizers: Iterable[Any], models: Iterable[Any]) -> None:
    """Let the optimizers with shares follow the models (see ``ShareState.follow_model``)."""
    for optimizer in optimizers:
        state = getattr(optimizer, "_farandole", None)
        if isinstance(state, ShareState):
            for model in models:
                state.follow_model(model)


class _Step:
    """The progress of a rank within a step.

    ``done``: the number of its complete shares. ``begun``: whether the next one has begun.
    ``waits``: whether the program has to call ``step()``. ``flat`` and ``tree``: the sums so far.
    """

    def __init__(self) -> None:
        self.done = 0
        self.begun = False
        self.waits = False
        self.flat: FlatTensors | None = None
        self.tree: TreeSum[list[torch.Tensor]] = TreeSum(0, _add)


class _Buffers:
    """The buffers of models, which are reset at each share to their values at the beginning of the
    step.
    """

    def __init__(self, buffers: Iterable[Any] | Callable[[], Iterable[Any]]) -> None:
        kept = () if callable(buffers) else list(buffers)
        self._given = buffers if callable(buffers) else lambda: kept
        self.models: list[weakref.ref[Any]] = []
        self._before: list[Any] = []
        self._first: Any = None

    def _all(self) -> list[Any]:
        found = {id(buffer): buffer for buffer in self._given()}
        for reference in self.models:
            model = reference()
            if model is not None:
                found.update({id(buffer): buffer for buffer in model.buffers()})
        return list(found.values())

    def keep(self) -> None:
        """Keep the values with which the step begins."""
        self._before = [buffer.detach().clone() for buffer in self._all()]

    def go_back(self) -> None:
        """Return to the values with which the step began."""
        with torch.no_grad():
            for buffer, before in zip(self._all(), self._before, strict=False):
                buffer.copy_(before)

    def keep_first(self) -> None:
        """Keep the values after the first share."""
        buffers = self._all()
        self._first = bytes_of(buffers, torch.device("cpu")) if buffers else None

    def first(self, device: torch.device) -> torch.Tensor:
        """Return the values after the first share, as bytes on ``device``. On ranks that have not
        computed this share, only the number of bytes is correct.
        """
        if self._first is not None:
            return self._first.to(device)
        return bytes_of(self._all(), device)

    def end(self, first: torch.Tensor) -> None:
        """Adopt the values after the first share."""
        with torch.no_grad():
            write_bytes(first, self._all())
        self._first = None


def _add(left: list[torch.Tensor], right: list[torch.Tensor]) -> list[torch.Tensor]:
    for one, other in zip(left, right, strict=True):
        one.add_(other)
    return left


def _open_of(reference: weakref.ref[ShareState]) -> Callable[[], bool]:
    def is_open() -> bool:
        state = reference()
        return state is not None and state.is_open()

    return is_open


def _any_open() -> bool:
    """Return whether a step is incomplete; without the steps of an earlier membership or session,
    which are never completed.
    """
    engine = context.engine() if context.is_initialized() else None
    return any(state.is_open() and state.has_begun_with(engine) for state in living)


def _remove(hooks: dict[int, Any]) -> None:
    for hook in hooks.values():
        hook.remove()


context.open_steps.append(_any_open)
