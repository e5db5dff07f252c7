"""The state of a Keras model that is packed, and continues in another process."""

from __future__ import annotations

from typing import Any

import pytest

keras = pytest.importorskip("keras", reason="Keras is not installed")

from farandole.keras.elastic import KerasState  # noqa: E402
from tests.kits.messages import mentioning  # noqa: E402
from tests.kits.packed_state import check_continues  # noqa: E402


def made(units: int = 1) -> tuple[Any, Any]:
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(units)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return KerasState(model, epoch=0), model


def test_a_model_continues_from_a_packed_state() -> None:
    packed = check_continues(made)
    with pytest.raises(ValueError, match=mentioning("(2, 1)", "(2, 3)")):
        made(units=3)[0].from_bytes(packed)
