"""User functions: on arrays, or without arguments, which load a model of any framework."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

from farandole.base.pickled import dumps
from farandole.inference.models import Execution, Model, computing, is_loader, wrap_loaded

if TYPE_CHECKING:
    from farandole.base.types import Array
    from farandole.inference.stream import Predictor


class FunctionPredictor:
    """A predictor that passes columns as arguments, in order. The function may modify them."""

    floating: str | None = None

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, inputs: dict[str, Array]) -> Any:
        with computing(self):
            return self._function(
                *(each if each.flags.writeable else each.copy() for each in inputs.values())
            )


def pack(model: Any, folder: Path, options: Mapping[str, Any]) -> Model:
    path = folder / "function.pkl"
    path.write_bytes(dumps(model))
    packed = Model.of_file("function", path, options)
    return packed._replace(load=uuid.uuid4().hex) if is_loader(model) else packed


def load(path: str, options: Mapping[str, Any], execution: Execution) -> Predictor:
    return wrap(cloudpickle.loads(Path(path).read_bytes()), options, execution)


def wrap(model: Any, options: Mapping[str, Any], execution: Execution) -> Predictor:
    """Return the predictor of a function. A loader is called here, and its model is opened."""
    return (
        wrap_loaded(model(), options, execution) if is_loader(model) else FunctionPredictor(model)
    )
