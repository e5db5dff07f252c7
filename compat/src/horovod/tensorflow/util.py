from farandole.tensorflow.util import (
    _executing_eagerly,
    _has_eager,
    _make_subgraph,
    refs_to_vars,
    vars_to_refs,
)

__all__ = ["_executing_eagerly", "_has_eager", "_make_subgraph", "refs_to_vars", "vars_to_refs"]
