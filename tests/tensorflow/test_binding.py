"""The binding kit over TensorFlow's eager tensors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.binding import Binding, BindingKit

pytest.importorskip("tensorflow", reason="tensorflow is not installed")


def make(array: Any) -> Any:
    import tensorflow as tf

    return tf.constant(array)


class TestBinding(BindingKit):
    binding = Binding("farandole.tensorflow", make=make, read=lambda tensor: tensor.numpy())

    def test_in_place(self) -> None:
        pytest.skip("does not apply: tensors do not change; broadcast_ takes variables")
