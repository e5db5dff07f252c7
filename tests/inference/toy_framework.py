"""A framework in one file: models that multiply by a number, and save it to a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole.inference.models import Execution, Model

if TYPE_CHECKING:
    from farandole.base.types import Array


class Scale:
    """A model of this framework."""

    def __init__(self, factor: float) -> None:
        self.factor = factor


class ScalePredictor:
    floating: str | None = "float32"

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def __call__(self, inputs: dict[str, Array]) -> Any:
        return next(iter(inputs.values())) * self._factor


def pack(model: Any, folder: Path, options: Mapping[str, Any]) -> Model:
    path = folder / "model.scale"
    path.write_text(str(model.factor))
    return Model.of_file("toy", path, options, "array<float>")


def load(path: str, options: Mapping[str, Any], execution: Execution) -> ScalePredictor:
    return ScalePredictor(float(Path(path).read_text()))


def wrap(model: Any, options: Mapping[str, Any], execution: Execution) -> ScalePredictor:
    return ScalePredictor(model.factor)
