"""Containers taken apart and put together."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest

from farandole.core.api.trees import Leaf, put_together, take_apart

Pair = namedtuple("Pair", "first second")


def is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


@pytest.mark.parametrize(
    ("tree", "skeleton"),
    [
        (np.zeros(1), Leaf(0)),
        (
            {"a": np.zeros(1), "b": [1, (np.ones(2), None)]},
            {"a": Leaf(0), "b": [1, (Leaf(1), None)]},
        ),
        (Pair(np.zeros(1), "x"), Pair(Leaf(0), "x")),
        (OrderedDict(z=1, a=np.zeros(0)), {"z": 1, "a": Leaf(0)}),
        ([], []),
        (3, 3),
    ],
)
def test_apart_and_together(tree: Any, skeleton: Any) -> None:
    found, arrays = take_apart(tree, is_array)
    assert found == skeleton
    assert type(found) is type(skeleton)
    again, same = take_apart(put_together(found, arrays), is_array)
    assert again == skeleton
    assert all(one is other for one, other in zip(arrays, same, strict=True))
