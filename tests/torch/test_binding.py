"""The binding kit over torch tensors."""

from __future__ import annotations

import pytest

from tests.kits.binding import Binding, BindingKit

torch = pytest.importorskip("torch", reason="torch is not installed")


class TestBinding(BindingKit):
    binding = Binding(
        "farandole.torch",
        make=lambda array: torch.tensor(array),
        read=lambda tensor: tensor.numpy(),
    )
