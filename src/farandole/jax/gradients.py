"""Gradients in a few large buffers, with one host call per step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from farandole.base.types import Kind, ReduceOp
from farandole.checks.replicas import Cures
from farandole.core.api.documented import documented
from farandole.jax import native
from farandole.jax.calls import Collective, check_dtypes
from farandole.jax.checks import CURES, ArraysReplica, comparable, sample
from farandole.jax.models import Models, names_in
from farandole.jax.primitive import host_call, wait
from farandole.strategies.codecs import state_label
from farandole.strategies.list_reducer import GradientListReducer
from farandole.strategies.options import GradientOptions

if TYPE_CHECKING:
    from farandole.base.types import Array


class ModelsReducer(GradientListReducer):
    """A reducer whose codec keeps separate state for each of several models, by their names."""

    def __init__(self, name: str, options: GradientOptions) -> None:
        super().__init__(name, options)
        self.models = Models()
        self._names: dict[Any, tuple[str, ...]] = {}

    def names_in(
        self, mark: int | None, names: tuple[str, ...], arrays: Sequence[Array]
    ) -> tuple[str, ...]:
        """Return ``names`` for the model with this mark; without a mark, for the model with these
        names and shapes.
        """
        if self.codec is None:
            return names
        which = (names, tuple([array.shape for array in arrays]) if mark is None else mark)
        found = self._names.get(which)
        if found is None:
            found = self._names[which] = names_in(
                self.models.place(which if mark is None else mark), names
            )
        return found


class _Reduction:
    """The reduction of a step's gradients. See ``primitive.HostCall``.

    Its arrays are the gradients, then samples of parameters to compare, and last, if ``marked``, a
    model's mark and step number. Reductions with the same reducer and names are equal. ``replica``:
    concrete parameters, outside programs.
    """

    def __init__(
        self,
        reducer: GradientListReducer,
        names: Sequence[str],
        looked_at: Sequence[str] = (),
        cures: Cures = CURES,
        reported: Collection[str] = (),
        replica: ArraysReplica | None = None,
        *,
        marked: bool = False,
    ) -> None:
        self.reducer, self.names, self.looked_at, self._marked = (
            reducer,
            tuple(names),
            tuple(looked_at),
            marked,
        )
        self._cures, self._reported, self._replica = cures, reported, replica

    def __hash__(self) -> int:
        return hash((id(self.reducer), self.names, self.looked_at))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Reduction):
            return False
        mine, theirs = (
            (self.reducer, self.names, self.looked_at),
            (other.reducer, other.names, other.looked_at),
        )
        return mine == theirs and self._marked == other._marked

    def __str__(self) -> str:
        return self.reducer.name

    @property
    def elementwise(self) -> bool | None:
        return None if self.reducer.options.op is ReduceOp.ADASUM else True

    @property
    def in_place(self) -> bool:
        return True

    def shapes(
        self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[Any]
    ) -> list[tuple[tuple[int, ...], Any]]:
        for dtype, name in zip(dtypes, self.names, strict=False):
            check_dtypes(Kind.ALLREDUCE, [dtype], name)
        return list(zip(shapes, dtypes, strict=True))[: len(self.names)]

    def run(self, arrays: Sequence[Array], jitted: bool) -> Sequence[Array]:
        count, end = len(self.names), len(arrays) - 2 * self._marked
        replica, names = self._replica, self.names
        if self.looked_at:
            replica = ArraysReplica(arrays[count:end], self.looked_at, self._cures, self._reported)
        if not isinstance(self.reducer, ModelsReducer):
            return self.reducer(arrays[:count], names, in_place=True, replica=replica)
        mark, step = (int(word.flat[0]) for word in arrays[end:]) if self._marked else (None, 0)
        names = self.reducer.names_in(mark, names, arrays[:count])
        lasts = self.reducer.options.owner is not None  # the program created the codec
        with self.reducer.models.once(mark, step, state_label(self.reducer.codec), lasts):
            return self.reducer(arrays[:count], names, in_place=True, replica=replica)


@documented(
    "init",
    "disagree",
    leaves="arrays of floats or integers, None, or float0.",
    names="one per leaf, for messages.",
    reducer=(
        "a farandole.strategies.list_reducer.GradientListReducer, used in all steps. Its options"
        " apply."
    ),
    parameters="the parameters of the leaves, in the same order, if known.",
    mark=(
        "the model's mark and the number of its step, for a reducer that distinguishes models; or"
        " empty."
    ),
    cures="advice for ranks whose parameters differ.",
    reported="codes of findings that were already reported.",
)
def reduce_gradients(
    leaves: Sequence[Any],
    names: Sequence[str],
    reducer: GradientListReducer,
    parameters: Sequence[Any] = (),
    cures: Cures = CURES,
    reported: Collection[str] = (),
    mark: Sequence[Any] = (),
) -> list[Any]:
    """Reduce ``leaves`` over all ranks as one unit, inside and outside ``jit``.

    Leaves that are None or of dtype float0 (gradients of integers) are unchanged. Ranks compare
    ``parameters`` periodically (see ``checks.agreement``). Raises ValueError on all ranks, naming
    rank and array, if their lists differ (inside ``jit``, JAX raises JaxRuntimeError instead; see
    ``plain_errors``).
    """
    results = list(leaves)
    places = [
        place
        for place, leaf in enumerate(leaves)
        if leaf is not None and _dtype(leaf) != jax.dtypes.float0
    ]
    if not places:
        return results
    compression = reducer.options.compression
    pairs = [compression.compress(jnp.asarray(leaves[place])) for place in places]
    labels, smalls = [names[place] for place in places], [small for small, _ in pairs]
    of = [parameters[place] for place in places] if len(parameters) == len(leaves) else []
    reduced = _reduced(
        reducer, labels, smalls, of if comparable(of, smalls) else [], cures, reported, mark
    )
    for place, result, (_, token) in zip(places, reduced, pairs, strict=True):
        results[place] = compression.decompress(result, token)
    return results


def _reduced(
    reducer: GradientListReducer,
    names: Sequence[str],
    arrays: list[Any],
    parameters: Sequence[Any],
    cures: Cures,
    reported: Collection[str],
    mark: Sequence[Any],
) -> list[Any]:
    options = reducer.options
    scales = options.prescale, options.postscale
    call = Collective(
        Kind.ALLREDUCE, reducer.name, options.process_set, options.op, *scales, grouped=True
    )
    if any(isinstance(array, jax.core.Tracer) for array in arrays):
        if not options.codec and native.position() is not None:
            return native.inside(call, arrays)
    elif not options.codec and native.active():  # codecs work in host memory
        wait()
        found = native.now(call, arrays)
        if found is not None:
            return found
    marked = bool(mark)
    if parameters and isinstance(parameters[0], jax.core.Tracer):
        looking = _Reduction(reducer, names, names, cures, reported, marked=marked)
        return host_call(looking, [*arrays, *sample(parameters), *mark])
    replica = ArraysReplica(parameters, names, cures, reported)
    return host_call(
        _Reduction(reducer, names, (), cures, reported, replica, marked=marked), [*arrays, *mark]
    )


def _dtype(leaf: Any) -> Any:
    return getattr(leaf, "dtype", None)


def names_of(tree: Any) -> list[str]:
    """Return a name for each leaf: its path, such as ``['dense']['kernel']``."""
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
