"""Arrays in flat buffers: unpacked unchanged, aligned as TensorFlow requires, with zeros between
them.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.base.types import DType
from farandole.errors import RequestError
from farandole.strategies.buffer_pool import ALIGNMENT
from farandole.strategies.flat_layout import LARGE, flat_layout, separate, write_back
from tests.kits.messages import mentioning

shapes = st.lists(st.integers(0, 40), max_size=2).map(tuple)
lists = st.lists(
    st.tuples(shapes, st.sampled_from(["float64", "float32", "float16", "int8", "bool"])),
    max_size=8,
)


@given(lists, st.booleans())
def test_packing_and_unpacking_keep_arrays(
    described: list[tuple[tuple[int, ...], str]], in_place: bool
) -> None:
    random = np.random.default_rng(0)
    arrays = [np.array(random.integers(0, 2, shape), dtype) for shape, dtype in described]
    layout = flat_layout(arrays, None, None, in_place)
    flats = layout.cut(np.full(layout.nbytes() + 100, 255, np.uint8))
    layout.fill(flats, arrays)
    for one, two in zip(layout.unpack(flats, arrays), arrays, strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)
    assert all(
        begin * layout.sizes[number][0].itemsize % ALIGNMENT == 0
        for number, begin, _ in filter(None, layout.places)
    )
    ends = sum(int(flat.astype("float64").sum()) for flat in flats)
    assert ends == sum(int(each.astype("float64").sum()) for each in arrays)


def test_large_writable_arrays_travel_by_themselves() -> None:
    arrays = [np.zeros(LARGE // 4, "float32"), np.zeros(3, "float32"), np.zeros(LARGE, "float64")]
    assert flat_layout(arrays, None, None, False).alone() == []
    layout = flat_layout(arrays, None, None, True)
    assert (layout.alone(), layout.sizes) == ([0, 2], [(DType.FLOAT32, 16)])
    # on their way they are smaller
    assert flat_layout(arrays, None, DType.FLOAT16, True).alone() == []


def test_lists_that_differ_have_other_digests() -> None:
    arrays = [np.zeros((2, 3), "float32"), np.zeros(6, "float32")]
    known = flat_layout(arrays, ["a", "b"], None, False).digest
    assert known == flat_layout(arrays, ["a", "b"], None, True).digest
    assert known != flat_layout(arrays, ["a", "c"], None, False).digest
    assert known != flat_layout(arrays[::-1], ["a", "b"], None, False).digest
    for dtype, cure in (("complex64", ("real", "imaginary")), ("uint32", "Cast")):
        with pytest.raises(RequestError, match=mentioning("'b'", dtype, cure)):
            flat_layout([arrays[0], arrays[1].astype(dtype)], ["a", "b"], None, False)


def test_aliased_arrays_are_copied_once() -> None:
    array = np.arange(3.0)
    one, two, other = separate([array, array[:], np.arange(3.0)])
    assert one is array
    assert not np.shares_memory(two, array)
    two[:] = 7
    given = write_back([one, two, other], [array, array[:], other])
    assert given[0].tolist() == [7.0] * 3
