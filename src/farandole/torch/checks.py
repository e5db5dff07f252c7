"""The checks of PyTorch programs: digests of parameters and gradients, settings of optimizers, and
the steps of all optimizers in the process.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from farandole.base.digests import combined, digest_of_bytes, digest_of_text, stride
from farandole.base.log import logger
from farandole.checks.optimizer import BypassedStepCheck, NoGradientsCheck, NonFiniteCheck
from farandole.checks.replicas import FROZEN, KIND, Cures
from farandole.checks.reporting import report, report_own
from farandole.checks.unwrapped_optimizer import (
    MOMENT,
    STEPS,
    discarded_results,
    enough_for_gradients,
    report_unwrapped,
    stored_digests,
    unwrapped_second,
)
from farandole.core.engine import Engine
from farandole.errors import RanksDifferError
from farandole.job import context
from farandole.job.config.rank_variables import RUN_VARIABLE
from farandole.job.context import ProcessSet
from farandole.job.report import reporter
from farandole.torch.binding import is_dense
from farandole.torch.functions import _collectives
from farandole.torch.parameter_names import model_names, modules, names_of

if TYPE_CHECKING:
    from farandole.torch.recording import TrainingCounts

CURES = Cures(
    "hvd.broadcast_parameters(model.state_dict(), root_rank=0)",
    "torch.utils.data.DistributedSampler(dataset, hvd.size(), hvd.rank()), or data[hvd.rank() ::"
    " hvd.size()]",
    state="hvd.broadcast_optimizer_state(optimizer, root_rank=0)",
)
# options that do not change the result of a step
_NO_MATTER = ("foreach", "fused", "capturable", "differentiable")


class TorchReplica:
    """A ``checks.agreement.Replica``. ``parameters``: (name, parameter) of the exchanged
    parameters.
    """

    cures = CURES
    patient = False
    reported: Collection[str] = ()

    def __init__(self, optimizer: weakref.ref[Any]) -> None:
        self.parameters: list[tuple[str, Any]] = []
        self._optimizer = optimizer

    def names(self) -> Sequence[str]:
        return names_of(self.parameters)

    def weights(self) -> list[int]:
        return digests(
            [parameter if parameter.requires_grad else None for _, parameter in self.parameters]
        )

    def cause(self) -> str:
        """See ``checks.agreement.Explaining``."""
        held = {id(parameter) for _, parameter in self.parameters}
        for module in modules():
            weight, norm = getattr(module, "weight", None), getattr(module, "max_norm", None)
            if norm is not None and id(weight) in held:
                name = model_names([weight]).get(id(weight), "weight")
                return (
                    f"{type(module).__name__} with max_norm={norm:g} changes {name!r} in forward():"
                    " it rescales the rows of each rank's own batch. Leave max_norm out, and"
                    " rescale all rows after optimizer.step(): with torch.no_grad():"
                    f" weight.copy_(weight.renorm({module.norm_type:g}, 0, {norm:g}))"
                )
        return ""

    def settings(self) -> Mapping[str, str]:
        optimizer = self._optimizer()
        if optimizer is None:
            return {}
        several = len(optimizer.param_groups) > 1
        frozen = sum(not parameter.requires_grad for _, parameter in self.parameters)
        of_groups = {
            f"{key} of parameter group {number}" if several else key: text
            for number, group in enumerate(optimizer.param_groups)
            for key in sorted(optimizer.defaults)
            if key not in _NO_MATTER and (text := _number(group.get(key)))
        }
        return {KIND: type(optimizer).__name__, FROZEN: str(frozen), **of_groups}


def _number(value: Any) -> str:
    """Return a number or a sequence of numbers as text; an empty string for anything else."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        parts = [_number(part) for part in value]
        return f"({', '.join(parts)})" if all(parts) else ""
    return ""


def digest(gradient: Any) -> int:
    """Return a digest of a gradient; 0 for a gradient that does not identify the data: sparse, all
    zeros, or not finite.
    """
    if gradient.layout is not torch.strided:
        return 0
    seen = _elements(gradient).cpu()
    bits = _bytes(seen).numpy()
    if not bits.any() or not torch.isfinite(seen).all():
        return 0
    return digest_of_bytes(str(tuple(gradient.shape)).encode(), bits.data)


def digests(tensors: Sequence[Any]) -> list[int]:
    """Return a digest per tensor, 0 for None. Tensors on a device are copied in one transfer."""
    there = [tensor for tensor in tensors if tensor is not None]
    if not there:
        return [0] * len(tensors)
    parts = [_bytes(_elements(tensor)) for tensor in there]
    whole = torch.cat([part.to(parts[0].device) for part in parts]).cpu().numpy()
    found, begin = [], 0
    for tensor, part in zip(there, parts, strict=True):
        bits = whole[begin : begin + len(part)]
        found.append(digest_of_bytes(f"{tensor.dtype}{tuple(tensor.shape)}".encode(), bits.data))
        begin += len(part)
    remaining = iter(found)
    return [0 if tensor is None else next(remaining) for tensor in tensors]


def _elements(tensor: Any) -> Any:
    """Return a sample of the elements in memory order, which is equal on all ranks."""
    tensor = tensor.detach()
    flat = tensor.as_strided((tensor.numel(),), (1,)) if is_dense(tensor) else tensor.reshape(-1)
    return flat[:: stride(len(flat))].resolve_conj().resolve_neg().contiguous()


def _bytes(elements: Any) -> Any:
    return elements.view(torch.uint8)


class OptimizerChecks:
    """All checks of one distributed optimizer that reduces gradients."""

    def __init__(self, optimizer: weakref.ref[Any], process_set: ProcessSet) -> None:
        self.replica = TorchReplica(optimizer)
        self._optimizer = optimizer
        self._set = process_set
        self._nonfinite = NonFiniteCheck(self._is_finite, self._name_of)
        self._no_gradients = NoGradientsCheck()

    def before_step(self, nonfinite: int | None) -> None:
        """Run the checks before a step. ``nonfinite``: the index of a parameter whose gradient is
        not finite on this rank, or None.
        """
        self._count_trainable()
        self._nonfinite.before_step(nonfinite)

    def after_step(self, step: int) -> None:
        """Run the checks after a step. Raises RanksDifferError with ``--check raise``."""
        found = self._nonfinite.after_step(step)
        if found is not None:
            report_own([found])
        if self._no_gradients.active:
            trainable = self._count_trainable()
            found = self._no_gradients.after_step(type(self._optimizer()).__name__, trainable)
            if found is not None:
                report(context.engine(self._set), [found])

    def _count_trainable(self) -> int:
        """Return the number of trainable parameters; 0 once any of them has had a gradient. Called
        before a step, which may drop gradients, and after it, because a closure may compute them.
        """
        if not self._no_gradients.active:
            return 0
        trainable = [
            parameter for _, parameter in self.replica.parameters if parameter.requires_grad
        ]
        if any(parameter.grad is not None for parameter in trainable):
            self._no_gradients.on_gradient()
        return len(trainable)

    def _is_finite(self, index: int) -> bool:
        weights = self.replica.parameters[index][1].detach()
        return bool(torch.isfinite(weights[(0,) * weights.ndim]))

    def _name_of(self, index: int) -> str:
        return names_of(self.replica.parameters)[index]


class OwnSteps:
    """Detects other optimizers that step with the parameters of a distributed optimizer, which
    exchanges only in its own ``step()``. ``exchange``: the name of the exchange.
    """

    def __init__(self, optimizer: Any, process_set: ProcessSet, exchange: str) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._set = process_set
        self._check = BypassedStepCheck(exchange)
        _own_steps.add(self)

    def before_step(self) -> None:
        self._check.on_own_step()
        _own_steps.discard(self)

    def on_other_step(self, other: Any) -> None:
        """Count a step of another optimizer. Raises RanksDifferError with ``--check raise``."""
        optimizer = self._optimizer()
        if optimizer is None or other is optimizer or not share_parameters(optimizer, other):
            return
        found = self._check.on_other_step(type(optimizer).__name__, type(other).__name__)
        if (
            found is not None
            and context.takes_part()
            and self._set.included()
            and self._set.size() > 1
        ):
            _own_steps.discard(self)
            report(context.engine(self._set), [found])


def share_parameters(one: Any, other: Any) -> bool:
    """Return whether two optimizers step with a common parameter."""
    mine = {id(parameter) for parameter in _parameters_of(one)}
    return any(id(parameter) in mine for parameter in _parameters_of(other))


def _parameters_of(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


_EARLY = 2  # steps; a program that only tries a step takes fewer
_AGAIN = 5  # steps until rank 0 checks again for the digests of other ranks
_WATCHED = 32  # optimizers at most; some programs create many short-lived ones

# optimizers that exchange gradients or weights
distributed: weakref.WeakSet[Any] = weakref.WeakSet()


class UnwrappedWatch:
    """Watches the steps of the first optimizer in a job, or of an optimizer next to distributed
    ones. Each step costs one comparison and one addition.
    """

    def __init__(self, engine: Engine, number: int) -> None:
        self._engine = weakref.ref(engine)
        self._number = number
        self._digest = 0
        self._early = 0  # the digest of a job that may end before ``STEPS`` steps
        self._kind = ""
        self._enough = 0.0
        # identifies the optimizer to other ranks; empty for the first one if none is distributed
        self._subject = ""
        self._next = STEPS if engine.size > 1 and context.settings().check != "off" else 0
        self._count = 0
        self._discarded = 0  # gradients that the program reduced without using the result

    def is_on(self, engine: Engine | None) -> bool:
        return self._engine() is engine

    def after_step(self, optimizer: Any) -> None:
        if not self._next:
            return
        self._count += 1
        if self._count == _EARLY:
            self._take_early_digest(optimizer)
        elif self._count == STEPS - 1:
            _record_reduced()
        if self._count == self._next:
            # other ranks may reach this step later
            self._next += max(_AGAIN, self._next - STEPS)
            self._look(optimizer)

    def _take_early_digest(self, optimizer: Any) -> None:
        """Take the digest that ``at_exit`` compares if the program ends soon."""
        if not self._number and not len(distributed):
            parameters = _parameters_of(optimizer)
            self._kind = type(optimizer).__name__
            self._enough = enough_for_gradients(sum(each.numel() for each in parameters))
            self._early = combined(digests(parameters))

    def _look(self, optimizer: Any) -> None:
        parameters = _parameters_of(optimizer)
        numbers = sum(parameter.numel() for parameter in parameters)
        self._enough = enough_for_gradients(numbers)
        if not self._digest:
            self._discarded = _count_discarded(parameters)
            self._kind = type(optimizer).__name__
            if len(distributed):
                self._name_second(parameters)
                if any(
                    one is optimizer or share_parameters(one, optimizer)
                    for one in tuple(distributed)
                ):
                    self._next = 0
                    return
            if self._exchanges_nothing():
                self._digest = combined(digests(parameters))
        self._compare()

    def _name_second(self, parameters: Sequence[Any]) -> None:
        """Name the optimizer by its parameters, because others are distributed."""
        shapes = [list(parameter.shape) for parameter in parameters]
        self._subject = f"/{self._number}.{digest_of_text(f'{self._kind}{shapes}')}"
        known = model_names(parameters)
        names = [known.get(id(parameter)) for parameter in parameters]
        listed = shapes if None in names else names
        shown = ", ".join(map(str, listed[:3]))
        more = ", ..." if len(shapes) > 3 else ""
        self._kind += f" (parameters {'of shapes ' if None in names else ''}{shown}{more})"

    def _exchanges_nothing(self) -> bool:
        others = torch.distributed
        return bool(self._discarded) or not (
            (not self._subject and (context.exchange_counts().skipped or self._number))
            or context.largest_exchange(by_program=bool(self._subject)) >= self._enough
            or (others.is_available() and others.is_initialized())
        )

    def _compare(self, seconds: float = 0.0) -> None:
        if not self._exchanges_nothing():
            self._next = 0
            return
        found = stored_digests(self._digest, 0.0 if self._subject else seconds, self._subject)
        if found is not None or context.rank():
            self._next = 0
        if found is not None:
            self._report(found)

    def _report(self, found: Sequence[int]) -> None:
        what = f"every rank took {min(self._count, STEPS)} steps with {self._kind}"
        cure = (
            f"broadcast the parameters ({CURES.broadcast}) and wrap the optimizer:"
            " hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters()). If"
            " the ranks are meant to train separately: --check off"
        )
        if not self._discarded and not self._subject:
            report_unwrapped(what, found, cure)
            return
        finding = (
            discarded_results(what, found, self._discarded)
            if self._discarded
            else unwrapped_second(what, found, cure)
        )
        if finding is not None:
            report(context.engine(), [finding])

    def at_exit(self) -> None:
        """Compare once more if training ended before rank 0 had the digests of all ranks: other
        ranks may have reached the step since.
        """
        engine = self._engine()
        self._digest = self._digest or (0 if len(distributed) else self._early)
        if (
            self._digest
            and self._next
            and engine is not None
            and not engine.ended
            and not reporter.failed()
        ):
            try:
                self._compare(MOMENT)
            except RanksDifferError as error:  # with --check raise; it is too late to raise
                logger.warning(error)


# A program may pass gradients to ``allreduce``, which returns a new tensor, and then step with the
# unchanged gradients. Only the gradients' values after a step show this, so collectives are
# recorded during the one step before a watch compares.

_reduced: dict[int, int] = {}  # address -> digest of a tensor that was reduced into another one


def _record_reduced() -> None:
    """Record reduced tensors until ``_count_discarded`` is called."""
    _reduced.clear()
    _collectives.on_reduced_copy = _on_reduced_copy


def _on_reduced_copy(tensor: Any) -> None:
    _reduced[tensor.data_ptr()] = digest(tensor)


def _count_discarded(parameters: Sequence[Any]) -> int:
    """End the recording. Return the number of parameters whose gradients were reduced but have not
    changed.
    """
    _collectives.on_reduced_copy = None
    gradients = (
        [parameter.grad for parameter in parameters if parameter.grad is not None]
        if _reduced
        else []
    )
    dense = [gradient for gradient in gradients if not gradient.is_sparse]
    found = sum(
        _reduced.get(gradient.data_ptr(), 0) == (digest(gradient) or -1) for gradient in dense
    )
    _reduced.clear()
    return found


# The steps of all optimizers in the process.

_own_steps: weakref.WeakSet[OwnSteps] = weakref.WeakSet()  # of optimizers not stepped yet
_watches: list[UnwrappedWatch] = []  # of one session
_watch_of: weakref.WeakKeyDictionary[Any, UnwrappedWatch] = weakref.WeakKeyDictionary()


def none_stepped() -> Callable[[], bool]:
    """Return a function that returns whether no PyTorch optimizer has stepped in this session."""
    engine = weakref.ref(context.engine())
    return lambda: not _watches or not _watches[0].is_on(engine())


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if _counts is not None:
        _counts.after_step(optimizer)
    for own_steps in list(_own_steps):
        own_steps.on_other_step(optimizer)
    if not context.takes_part():
        return
    engine = context.engine()
    if _watches and not _watches[0].is_on(engine):
        _watches.clear()
        _watch_of.clear()
    watch = _watch_of.get(optimizer)
    if watch is None:
        if len(_watches) == _WATCHED:
            return
        watch = _watch_of[optimizer] = UnwrappedWatch(engine, len(_watches))
        _watches.append(watch)
    watch.after_step(optimizer)


def _counts_of_run() -> TrainingCounts | None:
    """Return the counts of a training that belongs to a run; None outside a run."""
    if not os.environ.get(RUN_VARIABLE):
        return None
    # imported here because most jobs leave no run
    from farandole.torch import recording

    counts = recording.TrainingCounts()
    recording.install(counts)
    return counts


_counts = _counts_of_run()


def _at_exit() -> None:
    if _watches and context.takes_part() and _watches[0].is_on(context.engine()):
        for watch in _watches:
            watch.at_exit()


register_optimizer_step_post_hook(_after_step)
atexit.register(_at_exit)
