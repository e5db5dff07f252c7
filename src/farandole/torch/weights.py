"""Distributed optimizers that step locally and exchange weights by a strategy."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from farandole.base.contracts import Strategy
from farandole.job import context
from farandole.strategies.options import GradientOptions
from farandole.strategies.weights import StatefulExchange
from farandole.torch import codec_state, inner_optimizer
from farandole.torch.binding import as_real
from farandole.torch.checks import OwnSteps
from farandole.torch.validation import name_of

if TYPE_CHECKING:
    from farandole.base.types import Array

_WIDE = (torch.float32, torch.float64)  # dtypes that strategies compute with


living: weakref.WeakSet[WeightState] = weakref.WeakSet()


class WeightState:
    """The state of a distributed optimizer that exchanges weights. See
    ``optimizer.OptimizerState``.
    """

    def __init__(
        self,
        optimizer: Any,
        original: weakref.ref[Any],
        options: GradientOptions,
        strategy: Strategy,
        buffers: Iterable[Any] | Callable[[], Iterable[Any]],
    ) -> None:
        self.reducer = None  # gradients are not reduced
        reference = self._optimizer = weakref.ref(optimizer)
        self._original = original
        self._strategy = strategy
        self._kept = StatefulExchange("DistributedOptimizer", options, strategy)
        self._exchange = self._kept.exchange
        # without a reference to ``self``, so that this object is freed with its optimizer
        self._exchange.inner = lambda: inner_optimizer.groups_of(reference())
        self._set = options.process_set
        # whether this optimizer created the codec, if there is one
        self._own = options.owner is None
        kept = () if callable(buffers) else list(buffers)
        # a function, because the model may replace its buffers: ``model.to(device)``
        self._buffers = buffers if callable(buffers) else lambda: kept
        self._own_steps = OwnSteps(optimizer, options.process_set, f"strategy {strategy.spec!r}")
        self._step = 0
        self._seen: list[Any] = []  # the parameters when they were last checked
        # ids and addresses of parameters found to be in different memory
        self._alone: list[Any] = []
        self._apart: list[Any] = []  # addresses of parameters found not to overlap
        # a checkpoint's ``shared``, until a step or an average
        self._loaded: dict[str, Any] | None = None
        living.add(self)

    def update_hooks(self) -> None: ...
    def synchronize(self) -> None: ...

    def before_step(self, with_closure: bool) -> None:
        self._own_steps.before_step()
        self._loaded = None
        original = self._original()
        if original is not None and "step" in original.__dict__:  # a scheduler watches the original
            original._opt_called = True
        if self._exchange.needed():
            self._keep(stepping=True)

    def after_step(self) -> None:
        self._exchange.stepped()
        self._step += 1
        if self._exchange.needed() and self._strategy.due(self._step):
            self._run(self._step)

    @property
    def is_averaged(self) -> bool:
        """True if the weights of all ranks have just been averaged, and not changed since."""
        spec = self._strategy.spec
        averages = spec.partition(":")[0] in ("local_sgd", "bmuf", "diloco")
        # With a quorum, a late rank gets the average later.
        return (
            averages and "quorum" not in spec and self._step > 0 and self._strategy.due(self._step)
        )

    def end_of_epoch(self) -> None:
        """Exchange weights now, if the strategy exchanges at the end of epochs."""
        if self._exchange.needed() and self._kept.at_end_of_epoch(self._step):
            self._run(self._step)

    def average(self) -> None:
        if self._exchange.needed():
            self._keep()
            self._over(self._kept.average)

    def averaged(self, closure: Any) -> Any:
        """Return the closure unchanged: every rank minimizes its own loss."""
        return closure

    def state_dict(self) -> dict[str, Any]:
        kept = self._kept.state_dict()
        slots = [
            [None if array is None else torch.from_numpy(array) for array in slot]
            for slot in kept["slots"]
        ]
        residuals = codec_state.state_of(self._exchange.codec, self._set)
        return {**kept, "step": self._step, "slots": slots, **residuals}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Load a state. Raises ValueError for the state of another strategy."""
        self._step = 0
        self._loaded = None
        self._restart()
        if state is not None and "strategy" in state:
            slots = [
                [None if tensor is None else tensor.numpy() for tensor in slot]
                for slot in state["slots"]
            ]
            self._kept.load_state_dict({**state, "slots": slots})
            self._step = state["step"]
            self._loaded = self.shared()
        codec_state.load(self._exchange.codec, self._set, state, own=self._own)

    def shared(self) -> dict[str, Any]:
        """Return the state that ranks share: the number of steps, and the slots if the strategy
        keeps them equal on all ranks. The shared state of a checkpoint lasts until the next step,
        because ``broadcast_parameters``, which precedes that step, restarts strategies.
        """
        if self._loaded is not None:
            return self._loaded
        kept = self.state_dict()
        return {name: kept[name] for name in ("strategy", "step", "last")} | {
            "slots": kept["slots"] if self._strategy.reference.same_slots else []
        }

    def before_sync(self) -> None:
        """Prepare for the synchronization of an elastic state: keep the shared state, which new
        weights would discard, and merge the weights of the ranks that have trained. Collective.
        """
        self._loaded = self.shared()
        if context.is_elastic() and self._exchange.needed():
            held = [Held(each) for _, each in self._parameters()]
            held += [Held(buffer) for buffer in self._buffers() if _holds_reals(buffer)]
            self._kept.merge([one.array for one in held], self._step)
            for one in held:
                one.put_back()

    def share(self, state: Mapping[str, Any]) -> None:
        """Load another rank's ``shared``. Missing state begins again."""
        self._restart()
        self._exchange.forget_kept()
        self._step = state.get("step", 0)
        if state.get("strategy") == self._strategy.spec:
            slots = [
                [None if tensor is None else tensor.numpy() for tensor in slot]
                for slot in state["slots"]
            ]
            self._kept.load_state_dict({**state, "slots": slots})

    def overwritten(self, places: Container[int]) -> None:
        """Handle new values that all ranks received at these addresses. If weights are among them,
        the strategy's state begins again, because its deltas would include the change.
        """
        if any(parameter.data_ptr() in places for _, parameter in self._parameters()):
            self._restart()
            self._exchange.forget_kept()

    def _restart(self) -> None:
        self._seen = []
        self._kept.restart()

    def _parameters(self) -> list[tuple[str, Any]]:
        """Return (name, parameter) pairs, only one for all parameters with the same memory
        (``decoder.weight.data = encoder.weight.data``).
        """
        optimizer: Any = self._optimizer()
        names = optimizer._parameter_names
        named = [
            (names.get(parameter) or name_of(number, place), parameter)
            for number, group in enumerate(optimizer.param_groups)
            for place, parameter in enumerate(group["params"])
            if _holds_reals(parameter)
        ]
        places = [(id(parameter), parameter.data_ptr()) for _, parameter in named]
        if places == self._alone:
            return named
        found: dict[Any, tuple[str, Any]] = {}
        for each in named:
            memory = _memory(each[1])
            if memory not in found or (
                each[1].requires_grad and not found[memory][1].requires_grad
            ):
                found[memory] = each
        if len(found) == len(named):
            self._alone = places
        return list(found.values())

    def _keep(self, *, stepping: bool = False) -> None:
        named = self._parameters()
        self._look([parameter for _, parameter in named])
        # A parameter that is frozen but already has a gradient takes part in this step.
        trained = [parameter.requires_grad or parameter.grad is not None for _, parameter in named]
        self._kept.begin(named, lambda one: Held(one[1]).array, trained, stepping=stepping)

    def _look(self, now: list[Any]) -> None:
        """Keep the slots of a parameter with it, even if the program reorders or replaces
        parameters.
        """
        seen, self._seen = self._seen, now
        if any(map(operator.is_not, seen, now)) or len(now) < len(seen):
            places = {id(parameter): place for place, parameter in enumerate(seen)}
            self._kept.moved([places.get(id(parameter)) for parameter in now])

    def _run(self, step: int) -> None:
        self._keep()
        self._over(lambda weights, names, statistics: self._kept(weights, step, names, statistics))

    def _over(self, change: Callable[[list[Array], list[str], list[Array]], None]) -> None:
        """Pass weights, their names and statistics to ``change`` as arrays, and copy the results
        back.
        """
        self._loaded = None
        named = self._kept.chosen(self._parameters())
        self._check_apart(named)
        weights = [Held(parameter) for _, parameter in named]
        statistics = [Held(buffer) for buffer in self._buffers() if _holds_reals(buffer)]
        change(
            [one.array for one in weights],
            [name for name, _ in named],
            [one.array for one in statistics],
        )
        for one in (*weights, *statistics):
            one.put_back()

    def _check_apart(self, named: list[tuple[str, Any]]) -> None:
        """Raise ValueError if parameters overlap: each exchange would apply twice to their common
        elements.
        """
        places = [parameter.data_ptr() for _, parameter in named]
        if places != self._apart:
            _refuse_overlaps([each for each in named if each[1].numel()], self._strategy.spec)
            self._apart = places


def _memory(tensor: Any) -> Any:
    """Return a key that is equal for tensors with the same memory, even in a different order (a
    matrix and its transpose).
    """
    count = tensor.numel()
    if not count:
        return id(tensor)
    if tensor.is_contiguous():
        return tensor.data_ptr(), count
    _, begin, end = _span(tensor)
    return (begin, count) if end - begin == count * tensor.element_size() else (begin, end, count)


def _span(tensor: Any) -> tuple[Any, int, int]:
    """Return the device, the address of the first element, and the address after the last one. The
    elements need not be contiguous.
    """
    begin = tensor.data_ptr()
    if tensor.is_contiguous():
        return tensor.device, begin, begin + tensor.nbytes
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.device, begin, begin + (last + 1) * tensor.element_size()


def _places(tensor: Any) -> Any:
    """Return the addresses of the elements."""
    _, begin, end = _span(tensor)
    within = torch.arange((end - begin) // tensor.element_size()).as_strided(
        tensor.shape, tensor.stride()
    )
    return begin + within.reshape(-1) * tensor.element_size()


def _refuse_overlaps(named: Sequence[tuple[str, Any]], spec: str) -> None:
    """Raise ValueError with the names of two overlapping parameters. None of ``named`` may be
    empty.
    """
    before: list[tuple[str, Any]] = []  # parameters that have not ended yet
    for name, parameter in sorted(
        named, key=lambda each: (str(each[1].device), each[1].data_ptr())
    ):
        device, begin, _ = _span(parameter)
        before = [
            each for each in before if _span(each[1])[0] == device and _span(each[1])[2] > begin
        ]
        for other, earlier in before:
            if torch.isin(_places(parameter), _places(earlier)).any():
                raise ValueError(
                    f"parameters {other!r} and {name!r} share memory, which strategy {spec!r}"
                    " would change twice in each exchange. Give the optimizer one tensor that"
                    " contains both, give them separate memory (.clone()), or exchange gradients"
                    " (strategy='allreduce')"
                )
        before.append((name, parameter))


def _holds_reals(tensor: Any) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())


class Held:
    """A tensor as an array that a strategy may change: its own memory, or a copy that is written
    back. Complex tensors become real and imaginary parts.
    """

    def __init__(self, tensor: Any) -> None:
        self._tensor = as_real(tensor.detach())
        plain = self._tensor.is_cpu and self._tensor.dtype in _WIDE and self._tensor.is_contiguous()
        self._copy: Any = None if plain else self._copied()
        self.array: Array = (self._tensor if self._copy is None else self._copy).numpy()

    def _copied(self) -> Any:
        wide = self._tensor.dtype if self._tensor.dtype in _WIDE else torch.float32
        return self._tensor.to("cpu", wide, copy=True).contiguous()

    def put_back(self) -> None:
        if self._copy is not None:
            self._tensor.copy_(self._copy)
