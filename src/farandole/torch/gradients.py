"""The gradients of torch parameters, and the end of a backward pass."""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from farandole.base.types import Buffer, DType, ReduceOp
from farandole.strategies.options import GradientOptions
from farandole.torch import checks
from farandole.torch.binding import DTYPES, as_real, is_dense, supported
from farandole.torch.functions import anywhere, binding
from farandole.torch.sparse import sparse, sparse_allreduce_async

if TYPE_CHECKING:
    from farandole.base.types import Array

_AT_ONCE = (
    "Two threads run backward passes of one DistributedOptimizer's parameters at the same time,"
    " which loses gradients: the end of the first pass exchanges incomplete ones. Add up the"
    " losses for one backward pass, or run one pass after the other, with"
    " backward_passes_per_step if a parameter gets several gradients"
)
_PAIRS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_engine = torch.autograd.Variable._execution_engine
_task = torch._C._current_graph_task_id
_node = getattr(torch._C, "_current_autograd_node", lambda: None)


class TorchGradient:
    """The gradient of a torch parameter. See ``strategies.buckets.Gradient``."""

    __slots__ = (
        "_address",
        "_array",
        "_as_dense",
        "_binding",
        "_compressor",
        "_graph",
        "_last",
        "_like_view",
        "_name",
        "_parameter",
        "_room",
        "_seen",
        "_sent",
        "_sparse",
        "_strides",
        "_view",
        "count",
        "dtype",
    )

    def __init__(self, name: str, parameter: Any, options: GradientOptions) -> None:
        dtype = _travels_as(parameter)
        if options.codec and parameter.is_complex():
            raise ValueError(
                f"parameter {name!r} is {str(parameter.dtype).removeprefix('torch.')}, but a codec"
                " needs real numbers. Remove codec=, or make it a real parameter of"
                " torch.view_as_real(...) and use torch.view_as_complex in its layer"
            )
        if dtype is None:
            raise ValueError(
                f"Tensor type {parameter.type()} is not supported. (parameter {name!r})"
                f" {supported()}"
            )
        self._name, self._parameter = name, parameter
        self._compressor, self._as_dense = options.compression, options.sparse_as_dense
        self._binding = binding if options.codec else anywhere  # codecs work in host memory
        self.dtype: DType = dtype
        self.count: int = parameter.numel() * (1 + parameter.is_complex())
        # leading dimensions that a sparse gradient's indices cover; 0: the gradient is dense
        self._sparse = 0
        self._strides: tuple[int, ...] | None = None  # of the place, equal on all ranks
        self._array: Any = None  # the place
        # The place as a tensor. Programs see it, and may replace its memory (model.to(...)).
        self._view: Any = None
        self._room: Any = None  # the place, in the shape of the view
        self._address = 0  # of the place
        self._seen = 0  # address of the parameter when it was last checked
        self._like_view = True  # whether the parameter's layout is still the view's
        self._last: Any = None
        self._sent: Any = None
        self._graph: Any = None  # this rank's gradient if it can be differentiated again

    @property
    def device(self) -> str:
        return anywhere.device(self._parameter) if self._binding is anywhere else "CPU"

    @property
    def identity(self) -> tuple[Any, ...]:
        """The facts that must be equal on all ranks. Fixes the layout of all later places."""
        parameter, device = self._parameter, self.device
        self._strides = parameter.stride() if is_dense(parameter) else None
        kind = "complex " * parameter.is_complex() + self.dtype.value
        same = (self._name, tuple(parameter.shape), self._strides or "contiguous", kind)
        return same if device == "CPU" else (*same, device)

    def trainable(self) -> bool:
        return bool(self._parameter.requires_grad)

    def current(self, *, frozen: bool = False) -> Any:
        parameter = self._parameter
        return parameter.grad if parameter.requires_grad or frozen else None

    def digest(self, gradient: Any) -> int:
        return checks.digest(gradient)

    def place(self, array: Array) -> None:
        parameter = self._parameter
        if self.dtype is DType.BFLOAT16:
            flat = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            flat = torch.from_numpy(array)
        if parameter.is_complex():
            flat = torch.view_as_complex(flat.view(parameter.numel(), 2))
        self._array, self._address = array, flat.data_ptr()
        # Autograd's layout for gradients, so that its additions run in memory order.
        strides = self._strides
        view = (
            flat.view(parameter.shape)
            if strides is None
            else flat.as_strided(parameter.shape, strides)
        )
        # A view that autograd does not track: otherwise old ways to zero gradients (``detach_``)
        # fail.
        self._view = view.data
        self._room = None if self.dtype is DType.BFLOAT16 else self._view.numpy()
        self._look()

    def store(self, gradient: Any) -> None:
        parameter, view = self._parameter, self._view
        if view.data_ptr() != self._address:
            self.place(self._array)
            view = self._view
        if gradient is not view:
            if parameter.data_ptr() != self._seen:
                self._look()
            dense = self._dense(gradient).detach()
            try:
                array = dense.numpy() if self._room is not None and dense.is_cpu else None
            except (RuntimeError, TypeError):  # its negative bit is set, for example
                array = None
            if array is None:
                view.copy_(dense)
            else:  # takes 4/5 of the time of torch's copy for a large gradient
                np.copyto(self._room, array)
            if gradient.requires_grad:
                self._graph = gradient
            elif self._like_view and parameter.is_cpu and not self._sparse:
                parameter.grad = gradient = view
        self._last = gradient

    def load(self) -> None:
        parameter, view = self._parameter, self._view
        if view.data_ptr() != self._address:
            self.place(self._array)
            view = self._view
        if parameter.grad is view:
            return
        if self._graph is not None:
            self._keep_graph(view)
        elif self._sparse:
            parameter.grad = self._last = view.to_sparse(self._sparse)
        elif self._like_view and parameter.is_cpu:
            parameter.grad = self._last = view
        else:
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.detach().copy_(view)
            self._last = parameter.grad

    def _keep_graph(self, reduced: Any) -> None:
        """Make the reduced values the gradient, with the graph of this rank's gradient, as after
        ``backward(create_graph=True)`` in one process.
        """
        with torch.enable_grad():
            self._parameter.grad = self._last = _WithGraph.apply(self._graph, reduced)
        self._graph = None

    def _look(self) -> None:
        """Check the parameter's dtype and layout: ``model.to(...)`` and ``parameter.data = ...``
        change them in place. Raises ValueError if the dtype has changed.
        """
        parameter = self._parameter
        self._seen = parameter.data_ptr()
        if _travels_as(parameter) is not self.dtype:
            raise ValueError(
                f"parameter {self._name!r} was {self.dtype.value} when DistributedOptimizer was"
                f" created, but is now {str(parameter.dtype).removeprefix('torch.')}. Convert the"
                " model before wrapping its optimizer (model.half(), for example); torch.autocast"
                " leaves parameters unchanged"
            )
        self._like_view = (parameter.stride() if is_dense(parameter) else None) == self._strides

    def pack(self, gradient: Any) -> Buffer:
        dense = torch.zeros_like(self._parameter) if gradient is None else self._dense(gradient)
        if gradient is not None and gradient.requires_grad:
            self._graph = gradient
            dense = dense.detach().clone()  # the graph may need the values
        small, token = self._compressor.compress(as_real(dense.detach().resolve_conj()))
        buffer = self._binding.buffer(small)
        self._sent = small, token, buffer
        self._last = gradient
        return buffer

    def unpack(self) -> None:
        small, token, buffer = self._sent
        self._sent = None
        self._binding.write_back(small, buffer)
        result, parameter = self._compressor.decompress(small, token), self._parameter
        if parameter.is_complex():
            result = torch.view_as_complex(result)
        if self._graph is not None:
            self._keep_graph(result)
        elif parameter.grad is None or self._sparse:
            parameter.grad = self._last = result.to_sparse(self._sparse) if self._sparse else result
        elif result.data_ptr() != parameter.grad.data_ptr():
            parameter.grad.detach().copy_(result)

    def holds(self, gradient: Any) -> bool:
        return gradient is self._last

    def leave(self) -> None:
        parameter = self._parameter
        if parameter.grad is not None and parameter.grad is self._view:
            parameter.grad = parameter.grad.clone()
            if self._last is self._view:
                self._last = parameter.grad

    def is_sparse(self, gradient: Any) -> bool:
        return bool(gradient.is_sparse) and not self._as_dense

    def reduce_sparse(self, name: str, options: GradientOptions) -> None:
        parameter = self._parameter
        gradient = parameter.grad
        if gradient is None or not gradient.is_sparse or gradient.sparse_dim() != 1:
            gradient = _rows_of(parameter, gradient)
        gradient = gradient.detach().coalesce()
        values, token = self._compressor.compress(gradient.values())
        rows = sparse(gradient.indices(), values, parameter.shape)
        total = sparse_allreduce_async(rows, name, options.op, options.process_set)().coalesce()
        if not total._nnz():
            return  # no rank has rows
        values = self._compressor.decompress(total.values(), token)
        if options.prescale * options.postscale != 1.0:
            values = values * (options.prescale * options.postscale)
        parameter.grad = self._last = sparse(total.indices(), values, parameter.shape)

    def take(self) -> Any:
        gradient, self._parameter.grad = self._parameter.grad, None
        return gradient

    def add(self, gradient: Any) -> None:
        parameter = self._parameter
        if parameter.grad is not None:
            gradient = parameter.grad.detach().to_dense() + gradient.detach().to_dense()
        parameter.grad = gradient

    def add_flat(self, array: Array) -> None:
        parameter = self._parameter
        self.add(
            torch.from_numpy(array.copy())
            .view(parameter.shape)
            .to(parameter.device, parameter.dtype)
        )

    def copy(self) -> Any:
        return self._parameter.grad.detach().clone()

    def amplify(self, factor: float, old: Any) -> None:
        gradient = self._parameter.grad.detach()
        if gradient.is_sparse:  # sparse tensors cannot be added in place
            self._parameter.grad = (
                gradient * factor if old is None else gradient * factor - old * (factor - 1)
            )
            return
        gradient.mul_(factor)
        if old is not None:
            gradient.sub_(old, alpha=factor - 1)

    def _dense(self, gradient: Any) -> Any:
        """Return the gradient as a dense tensor, and record its form. The result has the same form,
        because optimizers for sparse gradients reject dense ones, and vice versa.
        """
        self._sparse = gradient.sparse_dim() if gradient.is_sparse else 0
        return gradient.to_dense() if self._sparse else gradient


class _WithGraph(torch.autograd.Function):  # type: ignore[misc]
    """Returns reduced values with the derivatives of this rank's gradient."""

    @staticmethod
    def forward(ctx: Any, own: Any, reduced: Any) -> Any:
        return reduced.reshape(own.shape).clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        return upstream[0], None


def _travels_as(parameter: Any) -> DType | None:
    """Return the dtype in which a parameter's gradient is sent. Complex numbers are sent as pairs
    of floats.
    """
    return DTYPES.get(_PAIRS.get(parameter.dtype, parameter.dtype))


def _rows_of(parameter: Any, gradient: Any) -> Any:
    """Return a gradient of another form, or None, as rows of the parameter."""
    if gradient is not None:
        return gradient.detach().to_dense().to_sparse(1)
    indices = torch.empty((1, 0), dtype=torch.int64, device=parameter.device)
    return sparse(indices, parameter.detach().new_empty((0, *parameter.shape[1:])), parameter.shape)


class Reducing(Protocol):
    """The receiver of gradients. ``backward``: the number of the latest backward pass."""

    backward: int

    @property
    def options(self) -> GradientOptions:
        """The options of the optimizer."""

    def ready(self, index: int, gradient: Any) -> None:
        """Receive a gradient that is complete."""

    def end_of_backward(self) -> None:
        """Record that the backward pass has ended."""


class Arrivals:
    """Reports to a reducer each gradient as it arrives, and the end of the backward pass.

    Gradients that later hooks of the program may change are reported after these hooks: at the end
    of backward, or in ``catch_up()``.
    """

    def __init__(self, reducer: Reducing) -> None:
        self._ready, self._op = reducer.ready, reducer.options.op
        self._late: list[tuple[int, Any]] = []
        self.catch_up = functools.partial(_catch_up, reducer.ready, self._late)
        self._watch = end_of_backward(reducer, self.catch_up)

    def hook(self, index: int, parameter: Any) -> Any:
        """Report the gradients of ``parameter`` from now on. Return a handle with ``remove()``.

        Raises ValueError if another reducer has the parameter and one of the two reducers uses Sum:
        the result would be a sum of sums.
        """
        if self._added_twice(parameter):
            gc.collect()  # may free an optimizer without references
            if self._added_twice(parameter):
                raise ValueError(
                    f"a parameter of shape {list(parameter.shape)} already belongs to another"
                    " DistributedOptimizer, and with op=Sum both would sum its gradients. Use"
                    " op=Average, whose repetition changes nothing, or wrap only one of the two"
                    " optimizers"
                )
        ready, late, watch = self._ready, self._late, self._watch

        def hook(parameter: Any) -> None:
            watch()
            hooks = parameter._post_accumulate_grad_hooks
            if len(hooks) > 1 and not hasattr(next(reversed(hooks.values())), "of_farandole"):
                late.append((index, parameter))
            else:
                ready(index, parameter.grad)

        hook.of_farandole = self._op  # type: ignore[attr-defined]
        return parameter.register_post_accumulate_grad_hook(hook)

    def _added_twice(self, parameter: Any) -> bool:
        hooks = (parameter._post_accumulate_grad_hooks or {}).values()
        others = [hook.of_farandole for hook in hooks if hasattr(hook, "of_farandole")]
        return bool(others) and ReduceOp.SUM in (self._op, *others)


def _catch_up(ready: Callable[[int, Any], None], late: list[tuple[int, Any]]) -> None:
    while late:
        index, parameter = late.pop(0)
        if parameter.grad is not None:  # or a hook has already stepped with it
            ready(index, parameter.grad)


def end_of_backward(reducer: Reducing, catch_up: Callable[[], None]) -> Callable[[], None]:
    """Return a function for hooks to call. When the current backward pass ends, it calls
    ``catch_up`` and reports the end to ``reducer``.
    """
    seen = -1
    thread = 0  # the thread in a backward pass; nested passes share it

    def done() -> None:
        nonlocal thread
        outer = _node()
        if outer is None:
            try:
                catch_up()
                reducer.end_of_backward()
            finally:
                thread = 0
        # A backward inside a backward (activation checkpoints): check again when the outer one
        # continues.
        else:
            outer.register_hook(lambda *_: _engine.queue_callback(done))

    def watch() -> None:
        nonlocal seen, thread
        task = _task()
        if task != seen:
            before, thread = thread, threading.get_ident()
            if before not in (0, thread) and any(
                one.ident == before for one in threading.enumerate()
            ):
                thread = 0  # once: the end of a backward that raised is not reported
                raise AssertionError(_AT_ONCE)
            seen = reducer.backward = task
            _engine.queue_callback(done)

    return watch
