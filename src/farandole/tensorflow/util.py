"""Small things that programs written for Horovod import from ``horovod.tensorflow.util``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

_has_eager = True


def _executing_eagerly() -> bool:
    """Is what is called now done now?"""
    return bool(tf.executing_eagerly())


def _make_subgraph(function: Callable[..., Any]) -> Any:
    """``function`` as a part of a graph."""
    return tf.function(function)


def vars_to_refs(vars: Any) -> Any:
    """Variables, in lists within lists, as what can be hashed."""
    if isinstance(vars, (list, tuple)):
        return tuple(vars_to_refs(variable) for variable in vars)
    return vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """The inverse of ``vars_to_refs``."""
    if isinstance(refs, (list, tuple)):
        return [refs_to_vars(ref) for ref in refs]
    return refs.deref()
