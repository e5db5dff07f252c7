"""The digest of all bytes of an array."""

from __future__ import annotations

import numpy as np
import pytest

from farandole.base.digests import CHUNK, whole_digest


@pytest.mark.parametrize("count", [0, 1, 3, 2 * CHUNK, 4 * CHUNK + 5])
@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int8, np.float64])
def test_every_bit_counts(count: int, kind: type) -> None:
    array = np.random.default_rng(0).standard_normal(count).astype(kind)
    found = whole_digest(array)
    assert whole_digest(array.copy()) == found
    octets = array.view(np.uint8)
    for place in {0, len(octets) // 2, len(octets) - 1} if count else ():
        for bit in (1, 128):
            octets[place] ^= bit
            assert whole_digest(array) != found
            octets[place] ^= bit
    assert whole_digest(array) == found


def test_places_shapes_and_types_count() -> None:
    array = np.zeros(4 * CHUNK)
    one, other = array.copy(), array.copy()
    one[0] = other[3 * CHUNK] = 1.0
    digests = [whole_digest(each) for each in (array, one, other, array.reshape(4, -1))]
    assert len({*digests, whole_digest(array.view(np.int64))}) == 5


def test_any_layout_has_the_digest_of_its_elements() -> None:
    array = np.arange(6000.0).reshape(60, 100)
    assert whole_digest(np.asfortranarray(array)) == whole_digest(array)
    assert whole_digest(array[::2]) == whole_digest(array[::2].copy())
