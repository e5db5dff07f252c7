"""The binding kit over the tensors of Keras's backend."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.binding import Binding, BindingKit

pytest.importorskip("keras", reason="keras is not installed")


def make(array: Any) -> Any:
    import keras

    return keras.ops.convert_to_tensor(array)


def read(tensor: Any) -> Any:
    import keras

    return keras.ops.convert_to_numpy(tensor)


class TestBinding(BindingKit):
    binding = Binding("farandole.keras", make=make, read=read)
