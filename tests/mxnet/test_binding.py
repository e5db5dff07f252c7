"""The binding kit over MXNet arrays."""

from __future__ import annotations

import pytest

from tests.kits.binding import Binding, BindingKit

mx = pytest.importorskip("mxnet", reason="mxnet is not installed")


class TestBinding(BindingKit):
    binding = Binding(
        "farandole.mxnet",
        make=lambda array: mx.nd.array(array, dtype=array.dtype),
        read=lambda tensor: tensor.asnumpy(),
        many_rows=False,
    )
