"""The binding kit over JAX arrays, outside of programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kits.binding import DTYPES, Binding, BindingKit
from tests.kits.messages import mentioning
from tests.run_job import job

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
        many_rows=False,
    )


def many_rows(_: int) -> None:
    import jax
    import jax.numpy as jnp

    import farandole.jax as hvd
    from farandole.errors import RequestError

    count = 2**31 + 8
    given = jnp.zeros((count, 0))
    assert hvd.alltoall(given).shape == given.shape
    with pytest.raises(RequestError, match=mentioning(f"[{count}]", "jax_enable_x64")):
        hvd.alltoall(given, [count])
    jax.config.update("jax_enable_x64", True)
    found, received = hvd.alltoall(given, [count])
    jax.config.update("jax_enable_x64", False)
    assert found.shape == given.shape
    assert received.tolist() == [count]


def test_numbers_of_rows_above_int32_need_x64() -> None:
    job(1, many_rows)
