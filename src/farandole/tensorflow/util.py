"""Small functions that Horovod programs import from ``horovod.tensorflow.util``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

_has_eager = True


def _executing_eagerly() -> bool:
    """Return whether operations run eagerly."""
    return bool(tf.executing_eagerly())


def _make_subgraph(function: Callable[..., Any]) -> Any:
    """Return ``function`` as a part of a graph."""
    return tf.function(function)


def vars_to_refs(vars: Any) -> Any:
    """Convert variables in nested lists to hashable references."""
    if isinstance(vars, (list, tuple)):
        return tuple(vars_to_refs(variable) for variable in vars)
    return vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """Invert ``vars_to_refs``."""
    if isinstance(refs, (list, tuple)):
        return [refs_to_vars(ref) for ref in refs]
    return refs.deref()
