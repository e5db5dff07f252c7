"""The binding kit over JAX arrays, outside of programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kits.binding import DTYPES, Binding, BindingKit

pytest.importorskip("jax", reason="jax is not installed")


def make(array: Any) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(array)


class TestBinding(BindingKit):
    binding = Binding(
        "farandole.jax",
        make=make,
        read=np.asarray,
        dtypes=tuple(dtype for dtype in DTYPES if "64" not in dtype),
    )
