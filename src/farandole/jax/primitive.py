"""Host calls in JAX programs, through one primitive for all collectives.

A program runs its calls in the order of tracing, and programs run theirs in the order of dispatch:
the primitive has an *ordered* effect, so XLA threads a token through the calls, and JAX passes the
token from program to program. At most one call at a time therefore holds an XLA thread, and ranks
that run the same programs meet in the same order.

The effect differs from ``io_callback``'s, because it must be allowed in custom derivatives and in
``jax.checkpoint``. The host function gets numpy views of XLA's memory, never JAX arrays: reading a
JAX array inside a callback may wait for the thread that runs the callback.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import dispatch, effects
from jax._src.callback import _callback_op_sharding
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from farandole.errors import HorovodInternalError
from farandole.jax import foreign
from farandole.job import context

if TYPE_CHECKING:
    from farandole.base.types import Array

_REMEMBERED = 64  # failures whose exceptions are kept, to be raised with their own type


class HostCall(Protocol):
    """The parameter of the primitive. Hashable; equal calls may share a compiled program."""

    @property
    def elementwise(self) -> bool | None:
        """The places of a batch axis. True: anywhere. False: not first. None: batching is not
        supported.
        """

    @property
    def in_place(self) -> bool:
        """True if results replace the first arrays, with equal shapes and dtypes; ``run`` may then
        write to these.
        """

    def shapes(
        self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[Any]
    ) -> list[tuple[tuple[int, ...], Any]]:
        """Return shape and dtype of each output. Raises ValueError for invalid inputs."""

    def run(self, arrays: Sequence[Array], jitted: bool) -> Sequence[Array]:
        """Run the call on contiguous arrays that are valid until it returns. They are read-only
        unless ``in_place``.
        """


class _Failures:
    """The errors of calls, and the tokens invalidated by them.

    A failed program leaves a failed token, and every program that gets the token fails in turn.
    When JAX looks up the token for the next program (by the effect's hash), a token known to have
    failed is dropped.
    """

    def __init__(self) -> None:
        self.count = 0
        self._seen = threading.local()
        self._kept: dict[int, BaseException] = {}

    def note(self, error: BaseException) -> str:
        """Return a mark that identifies ``error`` in a string."""
        self.count += 1
        self._kept[self.count] = error
        self._kept.pop(self.count - _REMEMBERED, None)
        return f"[failure {self.count} of this process]"

    def find(self, text: str) -> BaseException | None:
        """Return the error whose mark is in ``text``."""
        for number, error in self._kept.items():
            if f"[failure {number} of this process]" in text:
                return error
        return None

    def drop_token(self) -> None:
        if getattr(self._seen, "count", 0) != self.count:
            self._seen.count = self.count
            # The failed program has ended or is ending: its token may fail later than its results.
            wait()


_failures = _Failures()


class CollectiveEffect(effects.Effect):  # type: ignore[misc]  # jax is Any
    def __hash__(self) -> int:
        _failures.drop_token()
        return hash(CollectiveEffect)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __str__(self) -> str:
        return "Collective"

    def __repr__(self) -> str:
        """Return the message that JAX shows for a program with several devices, where effects have
        no order.
        """
        return (
            "collectives of Farandole work only in programs with one device. Start one rank per"
            " device, or exchange outside of this program (docs/jax.md)"
        )


EFFECT = CollectiveEffect()
for _registry in (
    effects.lowerable_effects,
    effects.ordered_effects,
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.remat_allowed_effects,
):
    _registry.add_type(CollectiveEffect)


def _token() -> Any:
    """Return the token of the last program with collectives that this thread dispatched."""
    tokens = dispatch.runtime_tokens.current_tokens
    return next((token for effect, token in list(tokens.items()) if effect is EFFECT), None)


def wait() -> None:
    """Wait until all collectives in programs that this thread has dispatched are done. Their errors
    are not raised here, but by the results of those programs.
    """
    token = _token()
    if token is None:
        return
    try:
        token.block_until_ready()
    except Exception:
        # otherwise the deletion, which hashes the effect, would recurse
        _failures._seen.count = _failures.count
        tokens = dispatch.runtime_tokens
        tokens.current_tokens.pop(EFFECT, None)
        tokens.output_runtime_tokens.clear()


def shutdown() -> None:
    """Leave the job when the programs that this thread has dispatched are done. ``init()`` may be
    called again.
    """
    wait()
    context.shutdown()


atexit.register(wait)  # before shutdown(), and before JAX waits for the token itself


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Raise errors of collectives in programs with their own type (HorovodInternalError,
    ValueError, or a signal handler's exception) instead of JAX's JaxRuntimeError. Errors occur when
    a result is awaited, so wait inside the context.
    """
    try:
        yield
    except Exception as error:
        found = (
            _failures.find(str(error))
            if type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError")
            else None
        )
        if found is None:
            raise
        raise found from error


_call_p = Primitive("farandole")
_call_p.multiple_results = True


def host_call(call: HostCall, arrays: Sequence[Any]) -> list[Any]:
    """Run ``call.run`` on the host, now, or when the traced program runs."""
    outputs: list[Any] = _call_p.bind(*arrays, call=call)
    return outputs


@_call_p.def_impl  # type: ignore[untyped-decorator]
def _now(*arrays: Any, call: HostCall) -> list[Any]:
    wait()
    results = call.run(
        [_own(array) if call.in_place else np.asarray(array) for array in arrays], False
    )
    place = arrays[0].sharding if arrays else None
    return [jax.device_put(result, place) for result in results]


@_call_p.def_effectful_abstract_eval  # type: ignore[untyped-decorator]
def _traced(*avals: Any, call: HostCall) -> tuple[list[Any], set[Any]]:
    described = call.shapes([aval.shape for aval in avals], [aval.dtype for aval in avals])
    return [jax.core.ShapedArray(shape, dtype) for shape, dtype in described], {EFFECT}


def _lowered(ctx: Any, *operands: Any, call: HostCall) -> Any:
    def run(*arrays: Array) -> Sequence[Array]:
        try:
            return tuple(call.run(arrays, True))
        # A signal handler may raise KeyboardInterrupt or SystemExit.
        except BaseException as error:
            raise _marked(error, call) from None

    token = ctx.tokens_in.get(EFFECT)
    many = isinstance(token, (list, tuple))  # up to JAX 0.4
    results, token = _emitted(ctx, run, call.in_place, token[0] if many else token, operands)
    ctx.set_tokens_out(
        ctx.tokens_in.update_tokens(mlir.TokenSet({EFFECT: (token,) if many else token}))
    )
    return results


def _emitted(
    ctx: Any,
    run: Callable[..., Sequence[Array]],
    in_place: bool,
    token: Any,
    operands: Sequence[Any],
) -> tuple[Any, Any]:
    if foreign.usable(ctx):
        return foreign.emit(ctx, run, in_place, token, operands)

    def callback(*arrays: Array) -> Sequence[Array]:
        return run(*map(_own, arrays)) if in_place else run(*arrays)

    on_host = "cpu" in ctx.module_context.platforms
    results, token, _ = mlir.emit_python_callback(
        ctx,
        callback,
        token,
        list(operands),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=True,
        sharding=None if on_host else _sharding(ctx),
    )
    if on_host:
        _without_config(token)
    return results, token


def _sharding(ctx: Any) -> Any:
    """Return the sharding that JAX's own callbacks use. Without it, XLA's GPU compiler ended the
    process for programs with several calls ("shape_util.cc: Check failed", JAX 0.11.2).
    """
    arguments = (ctx.module_context.axis_context, None, ctx.avals_out)
    return _callback_op_sharding(*arguments[: len(signature(_callback_op_sharding).parameters)])


def _own(array: Any) -> Array:
    """Return a writable copy."""
    return np.array(array, order="C")


def _without_config(token: Any) -> None:
    """Clear a call's configuration. XLA in JAX 0.4.30 reads it as JSON (after a small matrix
    product) and aborts the process because JAX stores a number there. On the CPU that number is
    also an argument and is not read elsewhere. Calls in later versions have another form.
    """
    if token.owner.name == "stablehlo.get_tuple_element":
        token.owner.operands[0].owner.attributes["backend_config"] = mlir.ir.StringAttr.get("")


def _marked(error: BaseException, call: HostCall) -> Exception:
    """Return ``error`` for JAX, which keeps only its text."""
    text = (
        f"rank {context.rank() if context.is_initialized() else '?'}, {call}: {error}"
        f" {_failures.note(error)}"
    )
    if isinstance(error, HorovodInternalError):
        return HorovodInternalError(text)
    return (
        ValueError(text)
        if isinstance(error, ValueError)
        else RuntimeError(f"{type(error).__name__}: {text}")
    )


mlir.register_lowering(_call_p, _lowered)


def _batched(
    arrays: Sequence[Any], axes: Sequence[int | None], call: HostCall
) -> tuple[list[Any], list[int | None]]:
    """Run the call on a whole batch. Ranks must have batches of equal size."""
    if call.elementwise is None:
        raise NotImplementedError(f"{call} is not defined under vmap. Call it outside")
    if call.elementwise:
        results = host_call(call, arrays)
        return results, list(axes)[: len(results)]
    pairs = list(zip(arrays, axes, strict=True))
    one = [
        array.shape if axis is None else array.shape[:axis] + array.shape[axis + 1 :]
        for array, axis in pairs
    ]
    # Validate the shapes of one sample: in a batch, even scalars have rows.
    call.shapes(one, [array.dtype for array in arrays])
    moved = [array if axis is None else jnp.moveaxis(array, axis, 1) for array, axis in pairs]
    return host_call(call, moved), [None if axis is None else 1 for axis in axes]


def _not_differentiable(*_: Any, call: HostCall) -> None:
    raise NotImplementedError(
        f"{call} has no derivative. Use the blocking form, or jax.lax.stop_gradient"
    )


batching.primitive_batchers[_call_p] = _batched
ad.primitive_jvps[_call_p] = _not_differentiable
